"""Attacks on one-shot sums: each fails, and succeeds against the form without the defence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.errors import CodecError, ContributionError, RefusalError, ThresholdError
from protocols.layout import whole_route
from protocols.sums.oneshot import client, member, server
from protocols.sums.oneshot.committee import open_share, seal_share, signed_survivors
from protocols.sums.oneshot.mechanism import ONESHOT, release_unmasked
from protocols.sums.oneshot.member import _value_at, candidates
from protocols.sums.oneshot.plan import OneshotPolicy
from protocols.sums.oneshot.polynomials import add_products, canonical, public_polynomials
from protocols.sums.oneshot.wire import body_digest, survivors_digest
from tests.protocols.sums.oneshot.rounds import SEED, Round, counting_random, small_plan, unpacked_sum


@pytest.fixture
def played() -> Round:
    return Round(small_plan()).contribute()


def test_attack_t_members_read_a_vector_and_one_fewer_learn_nothing(played: Round) -> None:
    plan, prime, ticket, shares = played.plan, played.plan.ring.primes[0], played.uploads["c0"].ticket, {}
    assert plan.threshold == 4
    for place, name in enumerate(played.members[:4]):  # colluding members open its shares with their own keys
        own = (played.secrets[name], played.committee, place, "c0", ticket.ephemeral_key)
        shares[place + 1] = open_share(ticket.sealed[place], *own)
    ((secret, _),) = candidates(shares, plan.threshold, prime, 1)
    alone = ONESHOT.fold(plan, None, [(whole_route(plan.layout), played.uploads["c0"].contribution)])
    opened = ONESHOT.open(plan, release_unmasked(plan, alone, played.context.binding, secret), 1, None)
    assert opened.tolist() == played.truth(["c0"]).tolist()  # beyond the assumption: t members collude

    fewer = {point: share for point, share in shares.items() if point != 4}
    with pytest.raises(ThresholdError):
        candidates(fewer, plan.threshold, prime, 1)
    # Three shares fit every secret: for any, some share of the fourth member completes them.
    guess = np.zeros(plan.ring.degree, np.int64)
    with pytest.raises(CodecError):
        candidates(fewer, 3, prime, 1)  # a polynomial through three shares only has another constant
    weights = {1: 4, 2: -6, 3: 4}  # Lagrange at 0 of points 1, 2, 3, 4: 4, -6, 4, -1
    total = sum(weights[point] * share.astype(np.int64) for point, share in fewer.items())
    completing = ((total - guess) % prime).astype(np.uint32)
    assert candidates({**fewer, 4: completing}, 4, prime, 1)[0][0].tolist() == guess.tolist()


def test_attack_two_sets_of_survivors(played: Round) -> None:
    everyone, fewer = played.names, played.names[1:]
    ledgers = {name: played.confirm(name, everyone)[1] for name in played.members}
    for name in played.members:
        with pytest.raises(RefusalError, match="another set"):
            played.confirm(name, fewer, ledgers[name])
        again = played.confirm(name, everyone, ledgers[name])  # after a restart: the same set, the same bytes
        assert again[0].signature == played.confirm(name, everyone)[0].signature
        assert again[1] == ledgers[name]

    # Members that forget what they signed give the difference away: the vector of one client.
    both = [played.open(names, played.summed(names)) for names in (everyone, fewer)]
    assert (both[0] - both[1]).tolist() == played.truth(["c0"]).tolist()


def read_by_colluding_members(played: Round, colluding: int, first: int) -> NDArray[np.float64] | None:
    """What the server and its members learn of c0 when it shows `first` honest members another set than the others."""
    bad, honest, opened = played.members[:colluding], played.members[colluding:], []
    for names, shown in ((played.names, honest[:first]), (played.names[1:], honest[first:])):
        states = {name: played.confirm(name, names)[0] for name in (*bad, *shown)}
        signatures = {name: state.signature for name, state in states.items()}
        digest = survivors_digest(played.statements(names))
        shares = {name: states[name].inspection.summed for name in bad}
        try:
            for name in shown:
                body = member.sum_share(states[name], signatures)
                shares[name] = server.check_summed_share(played.committee, name, digest, body)
            opened.append(played.open(names, shares))
        except ThresholdError:
            return None
    return np.asarray(opened[0] - opened[1])


@pytest.mark.parametrize(("committee", "corrupt", "bound"), [(3, 1, 2), (5, 0, 0), (5, 1, 2), (6, 2, 3)])
def test_attack_two_sets_with_the_help_of_colluding_members(committee: int, corrupt: int, bound: int) -> None:
    """A vector stays hidden from a lying server with 0 to 2t - c - 1 members, and from one with more it does not."""
    plan = small_plan(clients=4, values=5, committee=committee, corrupt=corrupt)
    played = Round(plan, clients=4, policy=OneshotPolicy(min_corrupt_members=0)).contribute()
    assert played.plan.parameters.collusion_bound == bound and corrupt <= bound <= corrupt + 1
    for colluding in range(min(bound + 2, committee) + 1):
        ways = [read_by_colluding_members(played, colluding, first) for first in range(committee - colluding + 1)]
        read = [found.tolist() for found in ways if found is not None]
        assert read == [played.truth(["c0"]).tolist()] * len(read)
        assert bool(read) == (colluding > bound)


def test_attack_a_set_of_one_or_of_clients_that_nobody_vouches_for(played: Round) -> None:
    with pytest.raises(RefusalError, match="1 survivors"):
        played.confirm("m0", ["c0"])
    for more in ({"minimum": 5}, {"policy": OneshotPolicy(min_cohort=5)}):
        with pytest.raises(RefusalError, match="at least 5"):
            played.confirm("m0", played.names[:4], **more)
    shares = [played.uploads[name].ticket.sealed[0] for name in played.names]
    found = member.inspect(played.ready("m0"), played.statements(), shares, lambda one: one.client_id == "c0")
    assert found.bad == tuple(played.names[1:])
    with pytest.raises(RefusalError, match="5 clients of the set"):
        member.confirm(played.ready("m0"), found, member.Ledger(), 3, SEED)

    states = {}  # members without the minimum sign it
    for name in played.members:
        found = played.inspect(name, ["c0"])
        signature = played.identities[name].sign(signed_survivors(played.committee, found.digest))
        states[name] = member.Confirmed(played.ready(name), found, signature)
    summed = played.checked(played.sum_shares(states, ["c0"]), ["c0"])
    assert played.open(["c0"], summed).tolist() == played.truth(["c0"]).tolist()


def test_attack_one_client_fills_the_set_under_two_names(played: Round) -> None:
    statements = played.statements()
    shares = [played.uploads[name].ticket.sealed[0] for name in played.names]
    twice = replace(statements[1], identity_key=statements[0].identity_key)
    for wrong in ([*statements[:-1], statements[0]], [statements[0], twice, *statements[2:]]):
        with pytest.raises(RefusalError, match="twice"):
            member.inspect(played.ready("m0"), wrong, shares, lambda _: True)


def test_attack_a_replayed_share(played: Round) -> None:
    """A sealed share of another client, member, round, step or model does not open."""
    old = played.uploads["c0"].ticket
    for changed in ({"number": 2}, {"step": 1}, {"model": bytes(31) + b"\1"}):
        later = Round(played.plan, **changed)
        if "number" not in changed:  # committee keys are for a round; the same ones here, which the member must not do
            later.committee = replace(later.committee, members=played.committee.members)
        assert open_share(old.sealed[0], played.secrets["m0"], later.committee, 0, "c0", old.ephemeral_key) is None
    other = played.uploads["c1"].ticket
    assert open_share(other.sealed[0], played.secrets["m0"], played.committee, 0, "c0", other.ephemeral_key) is None
    played.tamper("c0", sealed={0: other.sealed[0]})
    assert [played.inspect(name).bad for name in played.members] == [("c0",), (), (), (), ()]
    played.tamper("c0", sealed={0: old.sealed[1], 1: old.sealed[0]})
    assert [played.inspect(name).bad for name in played.members] == [("c0",), ("c0",), (), (), ()]


def test_attack_the_server_exchanges_a_share_or_a_contribution(played: Round) -> None:
    """What the client did not sign is refused by the server's own check, and by every member."""
    upload, other = played.uploads["c0"], played.uploads["c1"]
    key, digest = played.public_key("c0"), body_digest(upload.contribution)
    honest = played.statement("c0")
    ticket = replace(upload.ticket, sealed=(other.ticket.sealed[0], *upload.ticket.sealed[1:])).encode()
    for body, summary in ((ticket, digest), (upload.ticket.encode(), body_digest(other.contribution))):
        with pytest.raises(ContributionError, match="not signed"):
            server.check_upload(played.committee, "c0", key, bytes(32), NO_CERTIFICATE, body, summary)
    with pytest.raises(ContributionError, match="bytes"):
        server.check_upload(played.committee, "c0", key, bytes(32), NO_CERTIFICATE, ticket[:-1], digest)
    forged = replace(honest, contribution_digest=body_digest(other.contribution))
    sealed = upload.ticket.sealed[0]
    assert member.inspect(played.ready("m0"), [forged], [sealed], lambda _: True).bad == ("c0",)
    assert member.inspect(played.ready("m0"), [honest], [other.ticket.sealed[0]], lambda _: True).bad == ("c0",)
    assert member.inspect(played.ready("m0"), [honest], [sealed], lambda _: True).bad == ()


def test_attack_a_share_that_its_client_sealed_but_did_not_sign(played: Round) -> None:
    """A client gives a member another share than the one in its statement: it opens, and is refused all the same."""
    own = (played.committee, "c0", played.identities["c0"], played.policy, played.steps("c0"))
    played.uploads["c0"] = client.contribute(*own, counting_random(3))
    ephemeral = X25519PrivateKey.from_private_bytes(counting_random(3)(32))
    other = seal_share(np.zeros(played.plan.ring.degree, np.uint32), ephemeral, played.committee, 0, "c0")
    key = played.uploads["c0"].ticket.ephemeral_key
    assert open_share(other, played.secrets["m0"], played.committee, 0, "c0", key) is not None
    statements = [played.statement("c0")]
    assert member.inspect(played.ready("m0"), statements, [other], lambda _: True).bad == ("c0",)


@pytest.mark.parametrize("offset", [1, 2**20])
def test_attack_a_member_sends_a_wrong_sum(played: Round, offset: int) -> None:
    """One share more than t names the member, even if its shift leaves the sum of secrets small (offset 1)."""
    prime, shares = played.plan.ring.primes[0], played.summed()
    shifted = (shares["m1"].astype(np.uint64) + np.uint64(offset)) % np.uint64(prime)
    wrong = {**shares, "m1": shifted.astype(np.uint32)}
    points = played.points(wrong)
    assert (len(candidates(points, 4, prime, len(played.names))) > 1) == (offset == 1)
    done = server.unmask(played.committee, played.partial(), len(played.names), wrong)
    assert done.wrong == ("m1",)
    opened = ONESHOT.open(played.plan, done.aggregate, len(played.names), None)
    assert opened.tolist() == played.truth(played.names).tolist()

    exactly_t = {name: share for name, share in wrong.items() if name != "m4"}
    with pytest.raises(CodecError, match="wrong"):
        server.unmask(played.committee, played.partial(), len(played.names), exactly_t)

    secret = _value_at({at: points[at] for at in (1, 2, 3, 4)}, (1, 2, 3, 4), 0, prime).astype(np.int64)
    secret -= np.where(secret > prime // 2, prime, 0)
    assert unchecked(played, played.partial(), secret) != sum(map(played.steps, played.names)).tolist()


def unchecked(played: Round, partial: bytes, secret: NDArray[np.int64]) -> list[int]:
    """The steps of the sum as a server without the checks of errors and zeros releases them."""
    plan, ring = played.plan, played.plan.ring
    planes = np.frombuffer(partial, "<u4", offset=8).astype(np.float64).reshape(len(ring.primes), -1)
    public = public_polynomials(played.context.binding, ring.degree, ring.primes, plan.polynomials)
    add_products(planes, public, -secret, ring.primes)
    left = np.stack([canonical(plane, prime) for plane, prime in zip(planes, ring.primes, strict=True)])
    rows = -(-plan.layout.length // ring.per)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("protocols.sums.oneshot.mechanism._check_noise", lambda *_: None)
        return list(unpacked_sum(ring, left[:, :rows], ring.per * rows, 1)[: plan.layout.length].tolist())


def test_nothing_is_released_if_two_sums_of_secrets_fit(played: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    shares, names = played.summed(), played.names
    ((secret, _),) = candidates(played.points(shares), 4, played.plan.ring.primes[0], len(names))
    both = [(secret, frozenset({1})), (secret, frozenset({2}))]
    monkeypatch.setattr(server, "candidates", lambda *_: both)
    with pytest.raises(CodecError, match="do not come off"):
        played.open(names, shares)
    monkeypatch.setattr(server, "candidates", lambda *_: both[:1])
    assert played.open(names, shares).tolist() == played.truth(names).tolist()


def test_attack_a_member_shifts_the_sum_of_secrets_by_little(played: Round) -> None:
    """A member knows how its share enters the secret, and shifts it within the bounds: the errors show it."""
    prime, kept = played.plan.ring.primes[0], ["m0", "m1", "m2", "m3"]
    shares = {name: share for name, share in played.summed().items() if name in kept}
    weight = 4  # of point 1 among 1, 2, 3, 4
    shift = np.zeros(played.plan.ring.degree, np.uint64)
    shift[5] = pow(weight, -1, prime)
    shares["m0"] = ((shares["m0"] + shift) % np.uint64(prime)).astype(np.uint32)
    ((_, wrong),) = candidates(played.points(shares), 4, prime, len(played.names))
    assert wrong == frozenset()  # the secret is as small as an honest one
    with pytest.raises(CodecError):
        server.unmask(played.committee, played.partial(), len(played.names), shares)


def test_attack_the_server_adds_a_contribution_twice_or_its_own(played: Round) -> None:
    shares, names, route = played.summed(), played.names, whole_route(played.plan.layout)
    own = Round(played.plan, seed=5).contribute("c0")
    honest = [(route, played.uploads[name].contribution) for name in names]
    twice = ONESHOT.fold(played.plan, None, [honest[0], honest[0], *honest[2:]])
    strange = ONESHOT.fold(played.plan, None, [(route, own.uploads["c0"].contribution), *honest[1:]])
    for partial in (twice, strange):
        with pytest.raises(CodecError):
            played.open(names, shares, partial)
    points = played.points(shares)
    ((secret, _),) = candidates(points, played.plan.threshold, played.plan.ring.primes[0], len(names))
    truth = sum(map(played.steps, names)).tolist()
    assert unchecked(played, played.partial(), secret) == truth
    assert unchecked(played, twice, secret) != truth
    assert unchecked(played, strange, secret) != truth


def test_attack_a_step_is_summed_twice_with_one_client_fewer(played: Round) -> None:
    _, ledger = played.confirm("m0")
    later = Round(played.plan, number=2, seed=3).contribute()
    with pytest.raises(RefusalError, match="too few clients"):
        later.confirm("m0", later.names[1:], ledger.begin())
    later.confirm("m0", later.names, ledger.begin())
    later.confirm("m0", later.names[3:], ledger.begin())  # three clients fewer: a sum over three is allowed anyway
    totals = [one.open(names, one.summed(names)) for one, names in ((played, played.names), (later, later.names[1:]))]
    assert (totals[0] - totals[1]).tolist() == played.truth(["c0"]).tolist()  # members without a ledger


def test_attack_a_client_whose_contribution_does_not_match_its_secret(played: Round) -> None:
    other = Round(played.plan, seed=8).contribute("c0")
    played.tamper("c0", contribution=other.uploads["c0"].contribution)
    shares = played.summed()
    assert all(played.inspect(name).bad == () for name in played.members)  # nobody can see it before the sum
    with pytest.raises(CodecError):
        played.open(played.names, shares)
