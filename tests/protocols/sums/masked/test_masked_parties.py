"""Whole masked sums, exact or failed with a reason; the client's states and messages; what the server's half checks."""

from __future__ import annotations

import pickle
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocols.codec import b64encode
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.keys import Keyring, digest
from protocols.crypto.sealing import SealingKey
from protocols.errors import (
    AtFaultError,
    CodecError,
    ContributionError,
    ParameterError,
    RefusalError,
    ThresholdError,
)
from protocols.layout import Route, whole_route
from protocols.messages.stages import MASKED_MESSAGES, MaskedMessage
from protocols.sums.base import OneMessage, SumPlan
from protocols.sums.masked import client, server, wire
from protocols.sums.masked.masks import mask_context
from protocols.sums.masked.parameters import MaskedParameters, Mode, corrupt_clients
from protocols.sums.masked.plan import MASKED, MaskedMechanism, MaskedPlan, encode, make_plan
from protocols.sums.masked.roster import (
    Roster,
    RosterEntry,
    longest_roster,
    make_roster,
    neighbours,
    open_handout,
    open_roster,
    sign_advertisement,
    signed_survivors,
)
from protocols.sums.masked.run import run_masked_sum
from protocols.sums.wire import Ring, pack
from tests.protocols.sums.conformance import MechanismConformance, opened
from tests.protocols.sums.masked.rounds import (
    LAYOUT,
    VICTIM,
    Round,
    alter_share,
    complete_plan,
    entry_of,
    names,
    new_round,
    round_context,
    with_model,
)


@pytest.mark.parametrize("mode", ["semi-malicious", "curious"])
def test_the_plan_says_how_many_bytes_a_round_has_besides_the_vectors(mode: Mode) -> None:
    """Of a client with as many neighbours before it in the roster as after it, and ids of five characters."""
    played = new_round(9, mode).advertise().share().contribute()
    if mode == "semi-malicious":
        played.confirm()
    played.unmask()
    name = played.roster.entries[4].client_id
    sent = (played.entries[name].advertisement, played.shares[name], played.replies[name])
    shown = (b64encode(body) for body in (played.survivors, b"".join(played.confirmations.values())))
    received = (played.roster.handout(name), played.inboxes[name], *shown)
    up = sum(map(len, sent)) + len(played.confirmations.get(name, b""))
    assert played.context.plan.other_bytes(9, len(name)) == (up, sum(map(len, received)))


class WithoutMasks(MaskedMechanism, OneMessage):
    """Contributions as a round makes them, less the masks."""

    interactive = False

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        own = MaskedPlan.of(plan)
        return pack(encode(own, route, blocks), own.bits)


class TestRaw(MechanismConformance):
    mechanism = WithoutMasks()


class TestPacked(MechanismConformance):
    mechanism = WithoutMasks()
    parameters = {"bits": 23, "mode": "curious"}


def some_vectors(clients: Iterable[str], seed: int = 3) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    return {name: np.concatenate([rng.uniform(-1, 1, 5), rng.integers(0, 2, 2).astype(np.float64)]) for name in clients}


def check_run(plan: MaskedPlan, clients: list[str], drop: Mapping[str, MaskedMessage], seed: int = 3) -> None:
    """The survivors are those that contributed, and the sum is theirs to the last bit: as without any mask."""
    vectors, route = some_vectors(clients, seed), whole_route(LAYOUT)
    done = run_masked_sum(plan, vectors, drop)
    stayed = [name for name in clients if drop.get(name, "unmask") in ("confirm", "unmask")]
    assert sorted(done.contributions) == stayed
    bodies = [pack(encode(plan, route, LAYOUT.split(vectors[name])), plan.bits) for name in stayed]
    np.testing.assert_array_equal(done.total, opened(MASKED, plan, bodies))
    assert not set(done.replies) & set(drop)


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("stage", MASKED_MESSAGES)
def test_dropouts_in_every_stage(mode: Mode, stage: MaskedMessage) -> None:
    """9 clients, k=8, t=5: three gone leave six, so that each has five neighbours, exactly t. One more is too many."""
    plan, dropouts = complete_plan(mode), ["c_000", "c_004", "c_008"]
    check_run(plan, names(9), dict.fromkeys(dropouts, stage))
    again = dict.fromkeys([*dropouts, "c_002"], stage)
    if stage == "advertise":
        check_run(plan, names(9), again)  # a smaller roster has a smaller threshold
        return
    with pytest.raises(ThresholdError) as failed:
        run_masked_sum(plan, some_vectors(names(9)), again)
    named = {"share": "sharing", "contribute": "collecting", "confirm": "confirming", "unmask": "unmasking"}
    assert failed.value.stage == named["unmask" if mode == "curious" and stage == "confirm" else stage]


def sparse_plan(mode: Mode, bits: int) -> MaskedPlan:
    """A plan under which 16 clients have fewer than 15 neighbours."""
    return make_plan({"mode": mode, "bits": bits, "corrupt": 0.0, "dropout": 0.2}, LAYOUT, 16)


Dropouts = dict[str, MaskedMessage]
TWO: Dropouts = {"c_001": "advertise", "c_004": "contribute"}
MODES = st.sampled_from(get_args(Mode))
DROPOUTS = st.dictionaries(st.sampled_from(names(16)), st.sampled_from(MASKED_MESSAGES), max_size=8)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(get_args(Mode)),
    st.sampled_from([16, 21, 32, 64]),
    st.sampled_from([3, 4, 5, 8, 16]),
    DROPOUTS,
    st.integers(0, 99),
)
@example("curious", 16, 8, TWO, 3)
@example("semi-malicious", 64, 16, TWO, 3)
@example("semi-malicious", 21, 5, {"c_000": "share", "c_001": "share", "c_002": "confirm"}, 3)
def test_exact_or_failed(mode: Mode, bits: int, clients: int, drop: Dropouts, seed: int) -> None:
    """With any dropouts, the result is the exact sum of the contributions, or an error that says what was missing."""
    everyone = names(clients)
    gone = {name: stage for name, stage in drop.items() if name in everyone}
    try:
        check_run(sparse_plan(mode, bits) if clients == 16 else complete_plan(mode, bits), everyone, gone, seed)
    except ThresholdError as error:
        assert error.present < error.needed
        assert gone


def test_the_graph_follows_from_the_round_and_the_roster_and_tells_whose_key_is_needed() -> None:
    roster = Round(round_context(sparse_plan("curious", 32), 16), names(16)).advertise().roster
    seed = digest("masked graph", roster.context.round_seed, roster.digest)
    assert roster.degree < 15
    np.testing.assert_array_equal(roster.adjacency, neighbours(16, roster.degree, seed))
    # whoever shares no mask with a survivor leaves nothing in the sum: its key is not asked for
    place = roster.index("c_009")
    alone = {place, *roster.neighbours_of(place)}
    alive = [name for name in names(16) if roster.index(name) not in alone]
    server.check_replies(roster, names(16), alive, [*alive, "c_009"])  # none of its neighbours
    with pytest.raises(ThresholdError, match="unmasking"):  # its neighbours' keys are
        server.check_replies(roster, names(16), alive, [])


def test_contributions_hide_their_vectors() -> None:
    """A vector of zeros goes over the wire as something else in each position, and differently each time."""
    zeros: dict[str, Any] = {name: np.zeros(LAYOUT.length) for name in names(5)}
    first, second = (run_masked_sum(complete_plan(bits=64), zeros) for _ in range(2))
    bodies = [body for run in (first, second) for body in run.contributions.values()]
    elements = np.concatenate([np.frombuffer(body, "<u8") for body in bodies])
    assert np.unique(elements).size == elements.size
    assert (elements != 0).all()
    np.testing.assert_array_equal(first.total, np.zeros(LAYOUT.length))


class Body(bytearray):
    """A message that a weak reference can point to."""


class StoredShares(Mapping[str, Body]):
    """The shares of all members of a roster, which remembers how often each was read, and which are still in memory."""

    def __init__(self, roster: Roster) -> None:
        self._roster, self.reads, self._made = roster, Counter[str](), list[weakref.ref[Body]]()

    def __len__(self) -> int:
        return len(self._roster)

    def __iter__(self) -> Iterator[str]:
        return (entry.client_id for entry in self._roster.entries)

    def __getitem__(self, client: str) -> Body:
        self.reads[client] += 1
        body = Body(server.share_bytes(self._roster, client))
        self._made.append(weakref.ref(body))
        return body

    @property
    def in_memory(self) -> int:
        return sum(made() is not None for made in self._made)


def test_the_shares_of_a_large_round_are_each_read_once_and_few_are_in_memory() -> None:
    clients = 200
    plan = MASKED.plan({"bits": 32}, LAYOUT, clients)
    roster = Round(round_context(plan, clients), names(clients)).advertise().roster
    stored, most, receivers = StoredShares(roster), 0, list[str]()
    for receiver, _ in server.inboxes(roster, stored):
        most = max(most, stored.in_memory)
        receivers.append(receiver)
    assert sorted(receivers) == names(clients) and stored.reads == Counter(names(clients))
    assert roster.degree < most <= 2.5 * roster.degree < clients


def test_every_state_is_good_for_one_step() -> None:
    """Also if the step fails: the server gets no second try."""
    before = new_round(5).advertise().share()
    opened = client.open_inbox(before.shared[VICTIM], before.inboxes[VICTIM])
    client.contribute(opened, before.elements[VICTIM])
    played = new_round(5).advertise().share().contribute().confirm().unmask()
    signed = server.confirmations(played.roster, played.confirmations)
    failed = new_round(5).advertise()
    with pytest.raises(CodecError):
        client.share(failed.advertised[VICTIM], b"nonsense", failed.is_member)
    for again in (
        lambda: client.share(played.advertised[VICTIM], played.roster.handout(VICTIM), played.is_member),
        lambda: client.open_inbox(played.shared[VICTIM], played.inboxes[VICTIM]),
        lambda: client.contribute(opened, played.elements[VICTIM]),
        lambda: client.confirm(played.contributed[VICTIM], played.survivors),
        lambda: client.unmask(played.confirmed[VICTIM], signed),
        lambda: client.share(failed.advertised[VICTIM], failed.roster.handout(VICTIM), failed.is_member),
    ):
        with pytest.raises(RefusalError, match="takes each step of a round once"):
            again()


def test_states_say_nothing_and_keep_no_secret_that_has_served() -> None:
    """No repr of a state, or of anything in it, holds a secret; states that answer unmask requests have none."""
    played = new_round(5).advertise().share().contribute()
    pairs = list(played.contributed[VICTIM].pairs.values())
    shown = repr((played.advertised, played.shared, played.contributed, pairs))
    for secret in (played.advertised[VICTIM].seed, played.advertised[VICTIM].mask_secret.seed):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown
    for state in (client.Contributed, client.Confirmed, client.Done):
        assert {"seed", "mask_secret", "sealing_secret", "secrets"}.isdisjoint(field.name for field in fields(state))


def test_everybody_else_is_vouched_for() -> None:
    asked: list[str] = []

    def is_member(entry: RosterEntry) -> bool:
        asked.append(entry.client_id)
        return True

    played = new_round(6).advertise()
    client.share(played.advertised[VICTIM], played.roster.handout(VICTIM), is_member)
    assert asked == names(6)[1:]


def test_malformed_messages_and_elements() -> None:
    played = new_round(6).advertise().share()
    elements = played.elements[VICTIM]
    for place, (body, sent, error) in enumerate(
        (
            (lambda inbox: inbox[:-1], elements, CodecError),
            (lambda inbox: bytes([inbox[0] | 0x80]) + inbox[1:], elements, CodecError),
            (bytes, elements[1:], ParameterError),
            (bytes, elements[:, None], ParameterError),
            (bytes, elements.astype(np.uint64), ParameterError),
        )
    ):
        name = names(6)[place]
        with pytest.raises(error):
            client.contribute(client.open_inbox(played.shared[name], body(played.inboxes[name])), sent)
    contributed, _ = client.contribute(client.open_inbox(played.shared["c_005"], played.inboxes["c_005"]), elements)
    with pytest.raises(CodecError, match="a set of 6 members"):
        client.confirm(contributed, bytes(2))


def test_too_few_sharers_or_survivors() -> None:
    """9 clients, k = 8, t = 5."""
    played = new_round(9).advertise().share(without=names(9)[5:])
    with pytest.raises(ThresholdError, match="sharing: 5 clients .* among the neighbours of c_000, 4 are present"):
        client.open_inbox(played.shared[VICTIM], played.inboxes[VICTIM])
    curious, strict = (new_round(9, mode).advertise().share().contribute() for mode in ("curious", "semi-malicious"))
    for step, played in ((client.unmask_unconfirmed, curious), (client.confirm, strict)):
        with pytest.raises(ThresholdError, match="collecting: 5 clients are needed .* 4 are present"):
            step(played.contributed[VICTIM], played.roster.encode_set(names(5)))


def test_only_signatures_of_other_survivors_of_this_set_count() -> None:
    """Four neighbours signed; then the others' are forged, or a client signs that is not a survivor."""
    missing, stranger, forged = (new_round(9).advertise().share() for _ in range(3))
    missing.contribute().confirm(without=names(9)[5:])
    stranger.contribute(without=["c_008"]).confirm(without=names(9)[5:])
    sets = (stranger.roster.encode_set(stranger.shares), stranger.survivors)
    more = stranger.identities["c_008"].sign(signed_survivors(stranger.roster, *sets))
    stranger.confirmations["c_008"] = more
    forged.contribute().confirm()
    for name in names(9)[1:5]:
        forged.confirmations[name] = bytes([forged.confirmations[name][0] ^ 1]) + forged.confirmations[name][1:]
    for played in (missing, forged, stranger):
        with pytest.raises(ThresholdError, match="confirming: 5 clients .* neighbours of c_000, 4 are present"):
            client.unmask(played.confirmed[VICTIM], server.confirmations(played.roster, played.confirmations))


def test_neighbours_without_a_quorum_confirm_nothing() -> None:
    """In a sparse graph t neighbours are few: a client also needs signatures of more than half of the roster."""
    plan = MaskedPlan(MaskedParameters(dropout=0.1), LAYOUT, 30)
    played = Round(round_context(plan, 30), names(30)).advertise().share().contribute()
    near = {VICTIM} | {played.roster.entries[at].client_id for at in played.roster.neighbours_of(0)}
    assert played.roster.degree < 10
    played.confirm(without=set(played.members) - near)
    signed = server.confirmations(played.roster, played.confirmations)
    needed = f"confirming: {plan.quorum(30)} clients are needed"
    with pytest.raises(ThresholdError, match=f"{needed} .* {len(near)} are present"):
        client.unmask(played.confirmed[VICTIM], signed)
    with pytest.raises(ThresholdError, match=needed):
        server.check_confirmed(played.roster, played.shares, played.contributions, played.confirmations)
    assert played.confirm(without=near).unmask(without=[VICTIM]).replies.keys() == set(played.members) - {VICTIM}


@given(members=st.integers(1, 70), data=st.data())
@settings(max_examples=50, deadline=None)
def test_sets_come_back(members: int, data: st.DataObject) -> None:
    chosen = data.draw(st.frozensets(st.integers(0, members - 1)))
    body = wire.encode_set(chosen, members)
    assert len(body) == wire.set_bytes(members)
    assert wire.decode_set(body, members) == chosen
    for wrong in (body + b"\0", body[:-1], *([bytes([*body[:-1], body[-1] | 0x80])] if members % 8 else [])):
        with pytest.raises(CodecError):
            wire.decode_set(wrong, members)


def test_a_roster_is_read_back_and_does_not_depend_on_the_order_of_entries() -> None:
    played = new_round(9).advertise()
    made = played.roster
    read = open_roster(made.context, made.whole)
    assert (read.entries, read.body, read.digest) == (made.entries, made.body, made.digest)
    np.testing.assert_array_equal(read.adjacency, made.adjacency)
    assert [entry.client_id for entry in read.entries] == names(9)
    assert wire.decode_set(read.encode_set(["c_004", "c_002"]), len(read)) == {2, 4}
    assert make_roster(played.context, reversed(list(played.entries.values()))).digest == made.digest


def test_a_roster_has_one_form() -> None:
    """Rosters that are short, long or not in order: masked_keys.json."""
    played = new_round(4).advertise()
    good = [entry.encode() for entry in played.roster.entries]
    count = (4).to_bytes(4, "little")
    bad = {
        "3 to 4 members, got 2": (2).to_bytes(4, "little") + good[0] + good[1],
        "1 to 64 bytes, got 0": count + b"\0" + b"".join(good),
        "UTF-8": count + good[0].replace(b"c_000", b"\xff_000") + b"".join(good[1:]),
        "3 to 4 members, got 4294967295": b"\xff" * 4 + b"".join(good),
    }
    for reason, body in bad.items():
        keys = bytes(4 * wire.ADVERTISEMENT_BYTES)
        with pytest.raises(CodecError, match=reason):
            open_roster(played.context, body + keys)
        own = played.advertised[VICTIM].advertisement
        with pytest.raises(CodecError, match=reason):
            open_handout(played.context, body + keys[: 3 * wire.ADVERTISEMENT_BYTES], VICTIM, own)
    with pytest.raises(CodecError, match="shorter than the advertisements"):
        open_roster(played.context, played.roster.body)


def test_attack_a_neighbour_gets_other_keys_than_the_roster_names() -> None:
    """The server hands out a key of its own, keys in another order, or those of somebody else."""
    played = new_round(9).advertise()
    roster, size, state = played.roster, wire.ADVERTISEMENT_BYTES, played.advertised[VICTIM]
    good, stranger = roster.handout(VICTIM), new_round(9).advertise().entries["c_001"].advertisement
    edge, keys = len(roster.body), good[len(roster.body) :]
    assert len(keys) == size * roster.degree
    for wrong in (
        stranger + keys[size:],
        keys[size : 2 * size] + keys[:size] + keys[2 * size :],
        keys[:-1] + bytes([keys[-1] ^ 1]),
    ):
        with pytest.raises(RefusalError, match="not those that the roster names"):
            open_handout(played.context, good[:edge] + wrong, VICTIM, state.advertisement)
    with pytest.raises(RefusalError, match="with keys that are not its own"):
        open_handout(played.context, good, VICTIM, stranger)
    with pytest.raises(RefusalError, match="not in the roster"):
        open_handout(played.context, good, "z", state.advertisement)
    read = open_handout(played.context, good, VICTIM, state.advertisement)
    assert read.digest == roster.digest
    known = {place for place, entry in enumerate(read.entries) if entry.advertisement}
    index = roster.index(VICTIM)
    assert known == {index, *roster.neighbours_of(index)}
    assert client.share(state, good, played.is_member)[1]


def test_a_client_refuses_a_key_that_occurs_twice_among_its_neighbours() -> None:
    """As the server does before it makes the roster; here a lying one has made it."""
    played = new_round(4).advertise()
    roster, own = played.roster, played.advertised[VICTIM].advertisement
    entries, index = list(roster.entries), roster.index(VICTIM)
    other = next(place for place in range(4) if place != index)
    keys = entries[other].advertisement
    twice = keys[:1184] + entries[index].advertisement[1184:1216] + keys[1216:]
    entries[other] = replace(entries[other], advertisement=twice)
    body = roster.body[:4] + b"".join(entry.encode() for entry in entries)
    peers = b"".join(entry.advertisement for place, entry in enumerate(entries) if place != index)
    with pytest.raises(RefusalError, match="a round key occurs twice"):
        open_handout(played.context, body + peers, VICTIM, own)
    whole = body + b"".join(entry.advertisement for entry in entries)
    with pytest.raises(CodecError, match="a round key occurs twice"):
        open_roster(played.context, whole)


def test_what_makes_no_roster() -> None:
    played = new_round(4).advertise()
    entries = list(played.entries.values())
    first, last, stranger = entries[0], entries[3], Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    key, keys, proof = first.identity_key, last.advertisement, last.certificate
    for wrong, text in (
        (first, "a client id occurs twice in the roster"),
        (replace(first, client_id="z"), "an identity key occurs"),
        (replace(first, client_id="z", identity_key=stranger), "a round key occurs"),
        (replace(last, advertisement=keys[:1184] + key + keys[1216:]), "a round key occurs"),  # as mask key of another
        (replace(last, advertisement=keys[:2400] + key + keys[2432:]), "a round key occurs"),  # as sealing key
        (replace(last, certificate=proof[:1] + first.certificate[1:9] + proof[9:]), "a subject occurs twice"),
    ):
        with pytest.raises(ParameterError, match=text):
            make_roster(played.context, [*entries[:3], wrong])
    make_roster(played.context, [replace(entry, certificate=NO_CERTIFICATE) for entry in entries])
    with pytest.raises(ThresholdError, match="advertising: 3 clients are needed in the round, 2 are present"):
        make_roster(played.context, entries[:2])
    with pytest.raises(ParameterError, match="4 clients were asked, 5"):
        make_roster(played.context, [*entries, replace(first, client_id="z")])
    with pytest.raises(ParameterError, match="not in the roster"):
        played.roster.index("z")


def test_entries_have_fixed_lengths() -> None:
    entry = RosterEntry("c", bytes(32), bytes(32), bytes(81), bytes(2528))
    longest = len(replace(entry, client_id="c" * 64).encode())
    assert (longest, longest_roster(9)) == (178 + 64, 4 + 9 * (longest + 2528))
    assert wire.confirmations_bytes(100) == 100 * 64
    for field in ("client_id", "identity_key", "mailbox_key", "certificate", "advertisement"):
        with pytest.raises(ParameterError):
            replace(entry, **{field: "x" * 65 if field == "client_id" else bytes(31)}).encode()


def test_masks_and_signatures_are_bound_to_the_whole_round() -> None:
    context = round_context(complete_plan(), 9)
    facts = {"task_id": "t_2", "round_number": 2, "round_seed": bytes(32), "plan": complete_plan(bits=16), "cohort": 8}
    others = [replace(context, **{name: value}) for name, value in facts.items()]
    rounds = [context, *others, with_model(context, b"another")]
    assert len({bytes(c.binding) for c in rounds}) == len({mask_context(c, bytes(32), b"\x07") for c in rounds}) == 7
    bound = mask_context(context, bytes(32), b"\x07")
    assert bound not in (mask_context(context, b"\1" * 32, b"\x07"), mask_context(context, bytes(32), b"\x03"))
    wrong = ({"round_number": 0}, {"cohort": 2}, {"cohort": 65}, {"round_seed": b"short"}, {"model_digest": bytes(31)})
    for changes in wrong:
        with pytest.raises(ParameterError):
            replace(context, **changes)


def test_a_wrong_advertisement_stays_out() -> None:
    """Also keys of low order, with which a client would block its neighbours. Other rounds: masked_keys.json."""
    played = new_round(5).advertise()
    entry, identity, context = played.entries[VICTIM], played.identities[VICTIM], played.context
    own, body = entry.identity_key, entry.advertisement
    server.check_advertisement(context, VICTIM, own, body)
    key, seed = SealingKey.generate().public, bytes(32)
    low = key[:-32] + bytes(32)
    first, second = (sign_advertisement(identity, context, VICTIM, *keys, seed) for keys in ((low, key), (key, low)))
    unsigned = "not signed by this client for this round and model"
    for signer, wrong, text in (
        (played.entries["c_001"].identity_key, body, unsigned),
        (own, bytes([body[0] ^ 1]) + body[1:], unsigned),
        (own, body[:-1], "exactly 2528 bytes, got 2527"),
        *((own, each.encode(), "low order") for each in (first, second)),
    ):
        with pytest.raises(ContributionError, match=text):
            server.check_advertisement(context, VICTIM, signer, wrong)


def test_a_client_leaves_whose_shares_open_for_fewer_than_t_neighbours() -> None:
    played = new_round(9).advertise().share()
    roster, sharers = played.roster, list(played.shares)
    neighbours = [roster.entries[place].client_id for place in roster.neighbours_of(roster.index(VICTIM))]
    spare = len(neighbours) - roster.threshold
    enough = [(VICTIM, reporter) for reporter in neighbours[:spare]]
    assert server.short_of_shares(roster, sharers, []) == ()
    assert server.short_of_shares(roster, sharers, enough * 2) == ()  # a report counts once
    assert server.short_of_shares(roster, sharers, [*enough, (VICTIM, neighbours[spare])]) == (VICTIM,)
    absent = [name for name in sharers if name != neighbours[-1]]
    assert server.short_of_shares(roster, absent, enough) == (VICTIM,)  # who did not share holds no share


def test_who_is_in_dispute_with_more_clients_than_may_collude_is_at_fault() -> None:
    """As the owner of shares, or as the reporter of others' shares; one dispute may be told by both."""
    roster = new_round(9).advertise().roster
    most = max(1, corrupt_clients(roster.context.plan.parameters.corrupt, len(roster)))
    owns = [(VICTIM, other) for other in names(9)[1 : most + 2]]
    reports = [(other, owner) for owner, other in owns]
    for disputes in ([], owns[:-1], owns[:-1] + reports[:-1]):
        assert server.at_fault(roster, disputes) == frozenset()
    for disputes in (owns, reports):
        assert server.at_fault(roster, disputes) == {VICTIM}


def test_each_stage_names_what_it_misses() -> None:
    """9 clients, k = 8, t = 5."""
    roster, everyone = new_round(9).advertise().roster, names(9)
    for missed, check, *sets in (
        ("sharing: 6 clients are needed in the round, 5", server.check_sharers),
        ("collecting: 6 clients are needed in the round, 5", server.check_survivors, everyone),
        ("confirming: 6 clients are needed in the round, 5", server.check_confirmed, everyone, everyone),
        ("unmasking: 5 clients are needed among the neighbours of c_000, 4", server.check_replies, everyone, everyone),
    ):
        check(roster, *sets, names(6))
        for present, count in ((names(5), missed[-1]), ([], "0")):
            with pytest.raises(ThresholdError, match=f"{missed[:-1]}{count} are present"):
                check(roster, *sets, present)


def test_confirmations_are_for_one_set_and_bodies_have_one_length() -> None:
    played = new_round(9).advertise().share().contribute(without=["c_008"]).confirm()
    body, survivors = played.confirmations[VICTIM], list(played.contributions)
    asked = server.SurvivorSet.of(played.roster, played.shares, survivors)
    asked.check_confirmation(VICTIM, body)
    for sharers, alive, name in (
        (names(8), survivors, VICTIM),
        (played.shares, names(9), VICTIM),
        (played.shares, survivors, "c_001"),
    ):
        with pytest.raises(ContributionError, match="not this client's signature"):
            server.SurvivorSet.of(played.roster, sharers, alive).check_confirmation(name, body)
    with pytest.raises(ContributionError, match="only survivors confirm"):
        asked.check_confirmation("c_008", body)
    with pytest.raises(ContributionError, match="exactly 64"):
        asked.check_confirmation(VICTIM, body[:-1])
    played.unmask()
    for check, of, sent in (
        (server.check_shares, (played.roster, VICTIM), played.shares[VICTIM]),
        (server.check_reply, (played.roster,), played.replies[VICTIM]),
    ):
        check(*of, sent)
        with pytest.raises(ContributionError, match="exactly"):
            check(*of, sent + b"\0")


def test_workers_that_share_the_masks_find_what_one_finds() -> None:
    """Each gets the shares of its owners alone; corrections add up, as ring elements and as partial sums."""
    played = new_round(9).advertise().share(without=["c_002"]).contribute(without=["c_005"]).confirm().unmask()
    plan, received = played.context.plan, open_roster(played.context, played.roster.whole)
    whole = server.unmask(received, played.shares, played.contributions, played.replies, threads=2).correction
    np.testing.assert_array_equal(played.opened(), played.expected())
    np.testing.assert_array_equal(whole, played.unmasking().correction)
    alter_share(played, "c_001", VICTIM)
    held = server.collect_shares(
        played.roster, played.shares, played.shares.items(), played.contributions, played.replies
    )
    assert server.count_masks(played.roster, played.contributions, held) == 7 + 7

    def corrected(correction: Ring) -> bytes:
        return MASKED.correct(plan, None, lambda sums, _: np.copyto(sums, correction))[0]

    for parts in (1, 3, 20):
        groups = server.split_shares(played.roster, played.contributions, held, parts)
        assert len(groups) == min(parts, 8)  # seven survivors, and a dropout that shared
        assert sorted(place for group in groups for place in group) == sorted(held)
        found = [
            server.unmask_shares(received, tuple(played.shares), tuple(played.contributions), group) for group in groups
        ]
        np.testing.assert_array_equal(sum(each.correction for each in found), whole)
        assert [bad for each in found for bad in each.bad_shares] == [server.BadShare("c_000", "c_001")]
        assert MASKED.merge(plan, [corrected(each.correction) for each in found]) == corrected(whole)


def test_shares_are_read_one_at_a_time_and_what_stays_of_them_is_small() -> None:
    """A round's jobs are passed between processes: 33 bytes and a commitment a share, secrets of dropouts' masks."""
    played = new_round(9).advertise().share().contribute(without=["c_005"]).confirm().unmask()
    parties = (played.contributions, played.replies)
    held = server.collect_shares(played.roster, played.shares, iter(played.shares.items()), *parties)
    kept = sum(one.shares.nbytes + one.commitments.nbytes for one in held.values())
    kept += sum(len(secret) for one in held.values() for secret in one.secrets.values())
    assert kept == 9 * 8 * (33 + 16) + 8 * wire.PAIR_BYTES
    assert all(one.commitments.base is None for one in held.values())  # nothing else of a message is kept with it
    with pytest.raises(ThresholdError, match="sharing: 9 clients are needed in the round, 8 are present"):
        server.collect_shares(played.roster, played.shares, list(played.shares.items())[1:], *parties)


def test_an_empty_slot_is_a_missing_share() -> None:
    """A reply counts for the stage; a share that is not in it is missed when the secret is put together."""
    played = new_round(9).advertise().share().contribute().confirm().unmask(without=names(9)[6:])
    alter_share(played, "c_001", VICTIM, lambda _: None)
    with pytest.raises(ThresholdError, match="unmasking: 5 clients .* neighbours of c_000, 4 are present") as failed:
        played.unmasking()
    error = pickle.loads(pickle.dumps(failed.value))  # noqa: S301 - as a worker sends it
    assert (error.stage, error.needed, error.present, error.whose) == ("unmasking", 5, 4, VICTIM)


def test_a_commitment_to_another_seed_fails_the_round_and_names_its_owner() -> None:
    """A client that commits to one seed and shares another is at fault alone; the sum is never wrong."""
    played = new_round(9)
    identity = played.identities[VICTIM]
    state, body = client.advertise(played.context, VICTIM, identity, played.policy)
    object.__setattr__(state, "seed", bytes(32))
    played.advertise(without=[VICTIM])
    played.advertised[VICTIM] = state
    played.entries[VICTIM] = entry_of(identity, VICTIM, body)
    played.roster = make_roster(played.context, played.entries.values())
    played.share().contribute().confirm().unmask()
    with pytest.raises(AtFaultError, match="shares or commitments of c_000") as failed:
        played.unmasking()
    assert failed.value.clients == (VICTIM,)
    assert pickle.loads(pickle.dumps(failed.value)).clients == (VICTIM,)  # noqa: S301
