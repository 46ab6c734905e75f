"""Rounds of all parties, and the checks that each of them makes of the others' messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.codec import Reader, b64encode
from protocols.crypto.keys import Keyring
from protocols.errors import CodecError, ContributionError, ParameterError, RefusalError, ThresholdError
from protocols.layout import Route, Segment
from protocols.sums.base import OneMessage, SumPlan
from protocols.sums.oneshot import client, member, server
from protocols.sums.oneshot.committee import (
    check_committee_key,
    join_keys,
    make_committee,
    make_committee_key,
    open_share,
    seal_share,
    signed_sum,
)
from protocols.sums.oneshot.mechanism import OneshotMechanism, packed_residues
from protocols.sums.oneshot.plan import OneshotPlan, OneshotPolicy, make_plan
from protocols.sums.oneshot.run import run_oneshot_sum
from protocols.sums.oneshot.wire import CommitteeKey, Statement, Ticket, Upload, survivors_digest
from tests.protocols.sums.conformance import MechanismConformance, one_block
from tests.protocols.sums.oneshot.rounds import CLIENTS, Round, small_plan


def test_the_plan_says_how_many_bytes_a_round_has_besides_the_vectors() -> None:
    played = Round(small_plan()).contribute()
    keys = b64encode(join_keys(key.encode() for key in played.committee.members))
    ticket = played.uploads[played.names[0]].ticket
    assert played.plan.other_bytes(CLIENTS, len("m0")) == (len(ticket.encode()), len(keys))


class WithoutMasks(OneshotMechanism, OneMessage):
    """Contributions as a round makes them, less the masks."""

    interactive = False

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        own = OneshotPlan.of(plan)
        shape = (len(own.ring.primes), own.coefficients)
        residues = packed_residues(
            own.ring, own.encode(route, blocks), np.zeros(own.coefficients, np.int64), np.zeros(shape)
        )
        return residues.astype("<u4").tobytes()


class TestConformance(MechanismConformance):
    mechanism = WithoutMasks()
    parameters = {}


@pytest.fixture(scope="module")
def done() -> Round:
    return Round(small_plan()).contribute()


def test_a_sum_of_all_who_are_there() -> None:
    plan, rng = small_plan(clients=7), np.random.default_rng(1)
    vectors = {f"c{n}": np.append(rng.uniform(-1, 1, 40), rng.integers(0, 2, 3)) for n in range(7)}
    for absent in ((), ("c1", "c4"), ("c0", "member-3")):
        transcript = run_oneshot_sum(plan, vectors, absent)
        truth = np.sum([vector for name, vector in vectors.items() if name not in absent], axis=0)
        assert np.abs(transcript.total - truth).max() <= plan.predicted_error
        assert transcript.total[-3:].tolist() == truth[-3:].tolist()
        assert transcript.wrong == ()
        assert {len(body) for body in transcript.uploads.values()} == {plan.ticket_bytes + plan.body_bytes}
        assert {len(body) for body in transcript.summed_shares.values()} == {plan.summed_share_bytes}
        assert len(transcript.summed_shares) == 5 - ("member-3" in absent)
    with pytest.raises(ThresholdError):
        run_oneshot_sum(plan, vectors, {"member-0", "member-1"})


def test_contributions_look_uniform_and_differ_every_time(done: Round) -> None:
    plan = done.plan
    again = client.contribute(done.committee, "c0", done.identities["c0"], done.policy, done.steps("c0"))
    first, second = (np.frombuffer(body, "<u4") for body in (again.contribution, done.uploads["c0"].contribution))
    assert (first == second).mean() < 0.05
    assert again.ticket.ephemeral_key != done.uploads["c0"].ticket.ephemeral_key
    assert len(again.encode()) == plan.ticket_bytes + plan.body_bytes
    ticket, contribution = Upload.split(plan, again.encode())
    assert (bytes(ticket), bytes(contribution)) == (again.ticket.encode(), again.contribution)
    assert again.contribution.hex() not in repr(again)


def test_a_contribution_needs_its_shape_and_a_round_that_satisfies_the_policy(done: Round) -> None:
    own = (done.committee, "c0", done.identities["c0"])
    for steps in (np.zeros(42, np.int64), np.zeros(43)):
        with pytest.raises(ParameterError, match="steps are int64"):
            client.contribute(*own, done.policy, steps)
    for policy, text in (
        (OneshotPolicy(min_cohort=7), "at least 7"),
        (OneshotPolicy(min_committee=7), "committee is 5"),
        (OneshotPolicy(min_corrupt_members=2), "corrupt is 1"),
        (OneshotPolicy(min_ring_bits=32), "bits is 28"),
    ):
        with pytest.raises(RefusalError, match=text):
            client.contribute(*own, policy, done.steps("c0"))
        with pytest.raises(RefusalError, match=text):
            done.ready("m0", policy)
    with pytest.raises(ParameterError, match="at least 2"):
        OneshotPolicy(min_cohort=1)


def test_a_committee_is_checked_by_every_party(done: Round) -> None:
    keys, context = list(done.keys.values()), done.context
    assert make_committee(context, reversed(keys), lambda _: True) == done.committee
    assert done.committee.points == (1, 2, 3, 4, 5)
    stranger = make_committee_key(Ed25519PrivateKey.generate(), "t_1", 1, "m9")[1]
    other_round = make_committee_key(done.identities["m0"], "t_1", 2, "m0")[1]
    cases = {
        "names 4": keys[:4],
        "names 6": [*keys, stranger],
        "an id occurs twice": [*keys[:4], replace(stranger, member_id="m0")],
        "an identity key occurs twice": [*keys[:4], replace(keys[0], member_id="m9", round_key=stranger.round_key)],
        "a round key occurs twice": [*keys[:4], replace(stranger, round_key=keys[0].round_key)],
        "not signed by its member for this task and round": [other_round, *keys[1:]],
        "low order": [replace(keys[0], round_key=keys[0].round_key[:1184] + bytes(32)), *keys[1:]],
    }
    for text, wrong in cases.items():
        with pytest.raises(RefusalError, match=text):
            make_committee(context, wrong, lambda _: True)
    with pytest.raises(RefusalError, match="member 2 of the committee has no valid proof"):
        make_committee(context, keys, lambda key: key.member_id != "m2")
    with pytest.raises(CodecError):
        check_committee_key("t_2", 1, keys[0])
    with pytest.raises(ParameterError, match="not in the committee"):
        done.committee.place("m9")


def test_every_fact_of_a_round_is_in_its_binding(done: Round) -> None:
    changes = {"task_id": "t_2", "round_number": 2, "step": 1, "model_digest": bytes(31) + b"\1", "cohort": 5}
    plans = [make_plan({}, one_block(Segment("v", 5, 1.0)), 6), small_plan(bits=27), small_plan(corrupt=0)]
    others = [replace(done.context, **{name: value}) for name, value in changes.items()]
    others += [replace(done.context, plan=plan) for plan in (*plans, small_plan(committee=6))]
    assert len({context.binding for context in (done.context, *others)}) == 10
    for wrong in ({"model_digest": b""}, {"round_number": 0}, {"step": -1}, {"cohort": 2}, {"cohort": 7}):
        with pytest.raises(ParameterError):
            replace(done.context, **wrong)


def test_a_member_joins_only_with_its_own_keys(done: Round) -> None:
    for identity, secret in (("m0", "m1"), ("m1", "m0")):
        with pytest.raises(RefusalError, match="not its own"):
            member.join(done.committee, "m0", done.identities[identity], done.secrets[secret], done.policy)
    assert "secret" not in repr(done.ready("m0"))


def test_shares_that_do_not_open_name_their_client(done: Round) -> None:
    played = Round(done.plan).contribute()
    sealed = bytearray(played.uploads["c2"].ticket.sealed[1])
    sealed[100] ^= 1
    played.tamper("c2", sealed={1: bytes(sealed)})
    assert played.inspect("m0").bad == ()
    assert played.inspect("m1").bad == ("c2",)
    with pytest.raises(RefusalError, match="first c2"):
        played.confirm("m1")
    rest = [name for name in played.names if name != "c2"]
    assert played.open(rest, played.summed(rest)).tolist() == played.truth(rest).tolist()


def test_a_share_is_residues_of_the_planned_number(done: Round) -> None:
    ticket, committee = done.uploads["c0"].ticket, done.committee
    args = (done.secrets["m0"], committee, 0, "c0")
    assert open_share(ticket.sealed[0], *args, ticket.ephemeral_key) is not None
    assert open_share(ticket.sealed[0], *args, bytes(32)) is None  # low order
    assert open_share(ticket.sealed[0], *args, done.uploads["c1"].ticket.ephemeral_key) is None
    ephemeral, prime = X25519PrivateKey.generate(), done.plan.ring.primes[0]
    for share in (np.zeros(4095), np.full(4096, prime)):
        made = seal_share(share.astype(np.uint32), ephemeral, committee, 0, "c0")
        assert open_share(made, *args, ephemeral.public_key().public_bytes_raw()) is None


def test_confirmations_count_only_with_the_right_signature(done: Round) -> None:
    state = done.confirm("m0")[0]
    good = {name: done.confirm(name)[0].signature for name in done.members}
    digest = survivors_digest(done.statements())
    for name, signature in good.items():
        server.check_confirmation(done.committee, name, digest, signature)
    with pytest.raises(ContributionError, match="not this member's signature"):
        server.check_confirmation(done.committee, "m1", digest, good["m0"])
    server.check_confirmed(done.committee, ["m0", "m1", "m2", "m3"])
    with pytest.raises(ThresholdError):
        server.check_confirmed(done.committee, ["m0", "m1", "m2"])
    wrong = {**good, "m3": good["m4"], "m2": bytes(64), "stranger": good["m1"]}
    with pytest.raises(ThresholdError) as refusal:
        member.sum_share(state, wrong)
    assert refusal.value.present == 3
    four = {name: good[name] for name in ("m0", "m1", "m2", "m4")}
    assert member.sum_share(state, four) == member.sum_share(state, good)
    found = replace(done.inspect("m0"), clients=frozenset(map(str, range(7))))
    with pytest.raises(RefusalError, match="asks 6 clients"):
        member.confirm(done.ready("m0"), found, member.Ledger(), 3, bytes(32))


def test_summed_shares_are_checked(done: Round) -> None:
    digest, plan = survivors_digest(done.statements()), done.plan
    confirmed = {name: done.confirm(name)[0] for name in done.members}
    signatures = {name: state.signature for name, state in confirmed.items()}
    body = member.sum_share(confirmed["m0"], signatures)
    assert server.check_summed_share(done.committee, "m0", digest, body).tolist() == (
        done.inspect("m0").summed.tolist()
    )
    for name, survivors, wrong in (
        ("m1", digest, body),
        ("m0", bytes(32), body),
        ("m0", digest, bytes([body[0] ^ 1]) + body[1:]),
    ):
        with pytest.raises(ContributionError, match="not signed"):
            server.check_summed_share(done.committee, name, survivors, wrong)
    with pytest.raises(ContributionError, match="bytes"):
        server.check_summed_share(done.committee, "m0", digest, body[:-1])
    large = np.full(plan.ring.degree, plan.ring.primes[0]).astype("<u4").tobytes()
    signed = large + done.identities["m0"].sign(signed_sum(done.committee, digest, "m0", large))
    with pytest.raises(ContributionError, match="not below its prime"):
        server.check_summed_share(done.committee, "m0", digest, signed)


def test_messages_are_read_strictly(done: Round) -> None:
    key, statement = done.keys["m0"], done.statement("c0")
    assert CommitteeKey.decode(key.encode()) == key
    reader = Reader(statement.encode() * 2)
    assert Statement.read(done.plan, reader) == Statement.read(done.plan, reader) == statement
    reader.finish()
    upload = done.uploads["c0"]
    assert Ticket.decode(done.plan, upload.ticket.encode()) == upload.ticket
    for read, whole in ((Ticket.decode, upload.ticket.encode()), (Upload.split, upload.encode())):
        with pytest.raises(CodecError):
            read(done.plan, whole[:-1])
    body = key.encode()
    for wrong in (body[:-1], body + b"\0", b"\0" + body[1:], b"\x41" + body[1:], b"\2\xff\xff" + body[3:]):
        with pytest.raises(CodecError):
            CommitteeKey.decode(wrong)
    for changed in ({"member_id": ""}, {"member_id": "m" * 65}, {"round_key": b""}):
        with pytest.raises(ParameterError):
            replace(key, **changed).encode()
    with pytest.raises(ParameterError):
        replace(statement, share_digests=(b"",) * 5).encode()
    statements = done.statements()
    digest = survivors_digest(statements)
    assert survivors_digest(statements[::-1]) == digest
    other = replace(statements[0], contribution_digest=bytes(32))
    assert digest not in (survivors_digest(statements[1:]), survivors_digest([other, *statements[1:]]))
