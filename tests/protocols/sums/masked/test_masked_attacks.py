"""What a lying server, with clients that help it, can do to a masked sum: each attack, with its defence and without.

Every attack says whether it SUCCEEDED. It is run as the protocol stands, and must fail; then with the one defence it is
aimed at taken out, and must succeed: so a test here fails as soon as its defence does.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.errors import CodecError, HushRecError, RefusalError, ThresholdError
from protocols.sums.masked import agreement, client, roster, server, shamir, shares
from protocols.sums.masked.agreement import is_mask_secret, mask_context, pair_mask_key, public_key, seed_commitment
from protocols.sums.masked.context import RoundContext
from protocols.sums.masked.masks import add_masks
from protocols.sums.masked.messages import SEALED_BYTES, decode_set, join_slots, split_slots
from protocols.sums.masked.packing import ring_dtype, unpack
from protocols.sums.masked.policy import ClientPolicy
from protocols.sums.masked.roster import Roster, make_roster
from protocols.sums.masked.shamir import SHARE_BYTES
from protocols.sums.masked.shares import open_pair, point
from tests.protocols.sums.masked.rounds import (
    LAYOUT,
    CompletePlan,
    Round,
    complete_plan,
    entry_of,
    names,
    new_round,
    round_context,
    sum_of,
    with_model,
)

DEFENDED = pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence taken out"])
Patch = pytest.MonkeyPatch
VICTIM = "c_000"


def always_true(*_: object) -> bool:
    return True


def secrets_of(played: Round, replies: dict[str, list[bytes]], victim: str) -> tuple[bool, bool]:
    """Whether the server can put together the victim's seed, and its mask key, from all that it was ever sent."""
    place, entry = played.roster.index(victim), played.roster.entries[played.roster.index(victim)]
    held: list[tuple[int, bytes]] = []
    for holder, bodies in replies.items():
        slot = played.roster.neighbours_of(played.roster.index(holder)).index(place)
        for body in bodies:
            share = split_slots(body, played.roster.degree, SHARE_BYTES, "a reply")[slot]
            held += [(point(played.roster.index(holder)), share)] if share else []

    def found(check: Callable[[bytes], bool]) -> bool:
        for chosen in itertools.combinations(held, played.roster.threshold):
            if len(dict(chosen)) == len(chosen):
                try:
                    if check(shamir.combine(dict(chosen), played.roster.threshold)):
                        return True
                except CodecError:
                    continue
        return False

    return (
        found(lambda secret: seed_commitment(secret) == entry.advertised.commitment),
        found(lambda secret: public_key(secret) == entry.advertised.mask_key),
    )


# --- both shares of one client --------------------------------------------------------------------------------------


@DEFENDED
def test_nobody_answers_two_unmask_requests(defended: bool, monkeypatch: Patch) -> None:
    """The server asks everyone twice: once with the victim alive, once with it dead."""
    if not defended:
        monkeypatch.setattr(client._Once, "take", lambda self: None)
    played = new_round(5, "curious").advertise().share().contribute()
    replies: dict[str, list[bytes]] = {name: [] for name in played.contributed if name != VICTIM}
    for told in (played.contributed, replies):
        survivors = played.roster.encode_set(told)
        for name in replies:
            try:
                replies[name].append(client.unmask_unconfirmed(played.contributed[name], survivors)[1])
            except RefusalError as refusal:
                assert "used" in str(refusal)
    seed, mask_key = secrets_of(played, replies, VICTIM)
    assert seed
    assert mask_key is not defended


def test_a_reply_holds_one_share_of_each_neighbour() -> None:
    played = new_round().advertise().share().contribute(without=["c_003"]).confirm().unmask()
    gone = played.roster.index("c_003")
    for name, body in played.replies.items():
        pairs = played.contributed[name].pairs
        slots = split_slots(body, played.roster.degree, SHARE_BYTES, "a reply")
        for place, slot in zip(played.roster.neighbours_of(played.roster.index(name)), slots, strict=True):
            assert slot == (pairs[place].of_mask_key if place == gone else pairs[place].of_seed)


def test_a_state_cannot_be_doubled() -> None:
    """No copy, no file: whatever could answer a second time does not exist."""
    played = new_round().advertise().share().contribute().confirm()
    for state in (played.advertised, played.shared, played.contributed, played.confirmed):
        for double in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                double(state[VICTIM])  # type: ignore[operator]
    with pytest.raises(RefusalError, match="used"):  # a shallow copy is the same state
        client.confirm(copy.copy(played.contributed[VICTIM]), played.survivors)


@DEFENDED
def test_survivor_equivocation(defended: bool, monkeypatch: Patch) -> None:
    """Half of the clients hear that the victim survived, the others that it did not."""
    if not defended:
        monkeypatch.setattr(client, "verify_survivors", always_true)
    played = new_round(9).advertise().share().contribute()
    others = [name for name in played.members if name != VICTIM]
    alive, dead = played.survivors, played.roster.encode_set(others)
    for number, name in enumerate(others):
        told = alive if number % 2 else dead
        played.confirmed[name], played.confirmations[name] = client.confirm(played.contributed[name], told)
    signed, replies = server.confirmations(played.roster, played.confirmations), {}
    for name, state in played.confirmed.items():
        try:
            replies[name] = [client.unmask(state, signed[name])[1]]
        except ThresholdError as error:
            assert error.stage == "confirming"
    assert bool(replies) is not defended


@pytest.mark.parametrize("threshold", [5, 4])
def test_the_threshold_leaves_no_room_for_two_answers(threshold: int, monkeypatch: Patch) -> None:
    """2t > k: even without confirmations, each neighbour's one answer does not make two secrets. At 2t = k it does."""
    chosen = complete_plan("curious").neighbourhood(9)
    monkeypatch.setattr(CompletePlan, "neighbourhood", lambda self, clients: replace(chosen, threshold=threshold))
    played = new_round(9, "curious").advertise().share().contribute()
    others = [name for name in played.members if name != VICTIM]
    replies = {}
    for number, name in enumerate(others):
        told = played.survivors if number % 2 else played.roster.encode_set(others)
        replies[name] = [client.unmask_unconfirmed(played.contributed[name], told)[1]]
    assert secrets_of(played, replies, VICTIM) == ((False, False) if threshold == 5 else (True, True))


# --- keys: man in the middle, invented members, a key found twice -----------------------------------------------------


def open_through_own_keys(played: Round, strangers: list[Ed25519PrivateKey | None]) -> bool:
    """The server takes the place of everybody but the victim, with keys that it made up, and opens the one vector.

    strangers: identity keys it signs with, or None to leave the members' own keys there, whose signature it has not.
    """
    played.advertise()
    known, entries = {}, [played.entries[VICTIM]]
    for name, stranger in zip((n for n in played.members if n != VICTIM), strangers, strict=True):
        identity = Ed25519PrivateKey.generate() if stranger is None else stranger
        state, body = client.advertise(played.context, name, identity, played.policy)
        known[name] = state
        entry = entry_of(played.identities[name], name, body)
        if stranger is not None:
            entry = replace(entry, identity_key=stranger.public_key().public_bytes_raw())
        entries.append(entry)
    forged = make_roster(played.context, entries)
    try:
        shared, body = client.share(played.advertised[VICTIM], forged.body, played.vouch)
        inbox = forged.encode_set(played.members) + bytes(SEALED_BYTES * forged.degree)
        _, contribution = client.contribute(shared, inbox, played.elements[VICTIM])
    except RefusalError:
        return False
    place = forged.index(VICTIM)
    slots = split_slots(body, forged.degree, SEALED_BYTES, "shares")
    pairs = {
        receiver: open_pair(
            slot or b"", known[forged.entries[receiver].client_id].sealing_secret, forged, place, receiver
        )
        for receiver, slot in zip(forged.neighbours_of(place), slots, strict=True)
    }
    seed = shamir.combine({point(at): pair.of_seed for at, pair in pairs.items() if pair}, forged.threshold)
    return bool((strip(forged, place, contribution, {place: seed}, known) == played.elements[VICTIM]).all())


def strip(
    known_roster: Roster, place: int, contribution: bytes, seeds: dict[int, bytes], known: dict[str, client.Advertised]
) -> NDArray[np.unsignedinteger[Any]]:
    """One contribution without the masks that somebody with these seeds and mask keys can compute."""
    bits = known_roster.context.plan.bits
    sharers = known_roster.encode_set(entry.client_id for entry in known_roster.entries)
    context = mask_context(known_roster.context, known_roster.digest, sharers)
    own = known_roster.entries[place].advertised.mask_key
    target = unpack(contribution, bits, LAYOUT.length).copy()
    masks: list[Any] = [(seed, context, -1) for seed in seeds.values()]
    for peer in known_roster.neighbours_of(place):
        entry = known_roster.entries[peer]
        key = pair_mask_key(known[entry.client_id].mask_secret, entry.advertised.mask_key, own)
        masks.append((key, context, -1 if place < peer else 1))
    add_masks(target, masks)
    return target


@DEFENDED
def test_man_in_the_middle(defended: bool, monkeypatch: Patch) -> None:
    """Other round keys under the members' own identities: they did not sign them."""
    if not defended:
        monkeypatch.setattr(client, "verify_advertisement", always_true)
    played = new_round(6)
    assert open_through_own_keys(played, [None] * 5) is not defended


@DEFENDED
def test_invented_members(defended: bool) -> None:
    """Other identities altogether, with good signatures: no member vouches for them."""
    played = new_round(6) if defended else new_round(6, vouch=always_true)
    strangers: list[Ed25519PrivateKey | None] = [Ed25519PrivateKey.generate() for _ in range(5)]
    assert open_through_own_keys(played, strangers) is not defended


@DEFENDED
def test_two_rosters(defended: bool, monkeypatch: Patch) -> None:
    """Half of the clients see one more member: with the roster in the masks, the halves have none in common."""
    if not defended:
        monkeypatch.setattr(roster, "digest", lambda purpose, *parts: bytes(32))
    played = new_round(7).advertise()
    whole, less = played.roster, make_roster(played.context, list(played.entries.values())[:-1])
    low, high = names(2)
    states = {}
    for name, body in ((low, whole.body), (high, less.body)):
        states[name], _ = client.share(played.advertised[name], body, played.vouch)
    keys = [
        client._masks(states[name], b"\x3f", [place])[1]
        for name, place in ((low, whole.index(high)), (high, less.index(low)))
    ]
    cancels = keys[0][:2] == keys[1][:2] and keys[0][2] == -keys[1][2]
    assert cancels is not defended


@DEFENDED
def test_a_key_found_twice(defended: bool, monkeypatch: Patch) -> None:
    """The victim's own round keys stand in the roster again, under a name that the server invented."""
    played = new_round(6).advertise()
    if not defended:
        monkeypatch.setattr(roster, "_repeated", lambda entries: None)
        monkeypatch.setattr(client, "verify_advertisement", always_true)
    mirror = replace(entry_of(Ed25519PrivateKey.generate(), "c_005", played.entries[VICTIM].advertisement))
    entries = [*(entry for name, entry in played.entries.items() if name != "c_005"), mirror]
    body = len(entries).to_bytes(4, "little") + b"".join(entry.encode() for entry in entries)
    try:
        client.share(played.advertised[VICTIM], body, played.vouch)
    except CodecError as error:
        assert defended, error
        assert "a round key stands in the roster twice" in str(error)
    else:
        assert not defended


@pytest.mark.parametrize("lie", ["missing", "other keys", "other identity"])
def test_own_entry(lie: str) -> None:
    """A client stands in its roster, as itself."""
    played = new_round(6).advertise()
    entries = dict(played.entries)
    if lie == "missing":
        del entries[VICTIM]
    elif lie == "other keys":
        _, body = client.advertise(played.context, VICTIM, played.identities[VICTIM], played.policy)
        entries[VICTIM] = entry_of(played.identities[VICTIM], VICTIM, body)
    else:
        entries[VICTIM] = entry_of(Ed25519PrivateKey.generate(), VICTIM, entries[VICTIM].advertisement)
    forged = make_roster(played.context, entries.values())
    with pytest.raises(RefusalError, match="not in the roster" if lie == "missing" else "not its own"):
        client.share(played.advertised[VICTIM], forged.body, played.vouch)


# --- model inconsistency ----------------------------------------------------------------------------------------------


@DEFENDED
@pytest.mark.parametrize("signatures", [True, False], ids=["signatures checked", "masks alone"])
def test_model_inconsistency(defended: bool, signatures: bool, monkeypatch: Patch) -> None:
    """The victim alone is given the true model, all others one to which their answer is known: zeros."""
    if not defended:
        monkeypatch.setattr(
            RoundContext, "binding", lambda self: agreement.digest("no model", self.task_id, self.round_number)
        )
    if not signatures:
        monkeypatch.setattr(client, "verify_advertisement", always_true)
    played = new_round(6, "curious")
    crafted = with_model(played.context, b"crafted")
    played.contexts = {name: crafted for name in played.members if name != VICTIM}
    for name in played.contexts:
        played.elements[name][:] = 0
    try:
        played.advertise().share().contribute().unmask()
        isolated = bool((played.opened() == played.elements[VICTIM]).all())
    except HushRecError:
        isolated = False
    assert isolated is not defended


# --- small cohort -----------------------------------------------------------------------------------------------------


@DEFENDED
@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("asked", "the round asks"),
        ("roster", "the roster has"),
        ("sharers", "shares came from"),
        ("survivors", "contributions came from"),
    ],
)
def test_small_cohort(stage: str, text: str, defended: bool, monkeypatch: Patch) -> None:
    """A sum of few, in whichever stage the server makes it small, is refused by the client's own policy."""
    if not defended:
        monkeypatch.setattr(ClientPolicy, "check_cohort", lambda *_: None)
    floor = 10 if stage == "asked" else 7
    played = new_round(9, "curious", policy=ClientPolicy(min_cohort=floor, modes=frozenset({"curious"})))
    gone = names(9)[-3:]
    try:
        played.advertise(without=gone if stage == "roster" else [])
        played.share(without=gone if stage == "sharers" else [])
        played.contribute(without=gone if stage == "survivors" else [])
        played.unmask()
        released = bool((played.opened() == played.expected()).all())
    except RefusalError as refusal:
        assert str(refusal).startswith(text)  # in the stage in which it became small
        assert f"at least {floor}" in str(refusal)
        released = False
    assert released is not defended


@pytest.mark.parametrize(
    "policy",
    [
        ClientPolicy(min_degree=6),
        ClientPolicy(min_threshold=5),
        ClientPolicy(min_bits=64),
        ClientPolicy(modes=frozenset({"curious"})),
    ],
)
def test_policy_of_the_client(policy: ClientPolicy) -> None:
    """k=5 and t=4 of 6 clients, 32 bits, semi-malicious: each policy wants another thing."""
    played = new_round(6)
    played.policy = policy
    with pytest.raises(RefusalError, match="policy"):
        played.advertise().share()


# --- masks ------------------------------------------------------------------------------------------------------------


@DEFENDED
def test_no_mask_serves_two_rounds(defended: bool, monkeypatch: Patch) -> None:
    """Even a client whose generator repeats itself, as on a restored machine, shows no difference of its vectors."""
    if not defended:
        monkeypatch.setattr(client, "mask_context", lambda *_: bytes(32))
    identities = {name: Ed25519PrivateKey.generate() for name in names(5)}
    bodies, vectors = [], []
    for number in (1, 2):
        played = Round(round_context(complete_plan(), 5, number), names(5))
        played.identities = identities
        played.elements[VICTIM] += np.uint32(number)
        stuck = iter([bytes([i + 1]) * 32 for i in range(15)])
        for name in played.members:
            draw = next(stuck), next(stuck), next(stuck)
            source = iter(draw)
            played.advertised[name], body = client.advertise(
                played.context, name, identities[name], played.policy, lambda _, source=source: next(source)
            )
            played.entries[name] = entry_of(identities[name], name, body)
        played.roster = make_roster(played.context, played.entries.values())
        played.share().contribute()
        bodies.append(unpack(played.contributions[VICTIM], 32, LAYOUT.length))
        vectors.append(played.elements[VICTIM])
    leaked = bool((bodies[1] - bodies[0] == vectors[1] - vectors[0]).all())
    assert leaked is not defended


def test_keys_are_fresh_in_every_round() -> None:
    first, second = (new_round(5).advertise().entries[VICTIM].advertised for _ in range(2))
    assert not {first.mask_key, first.sealing_key, first.commitment} & {
        second.mask_key,
        second.sealing_key,
        second.commitment,
    }


@DEFENDED
def test_no_mask_serves_two_vectors(defended: bool, monkeypatch: Patch) -> None:
    """The server asks for the contribution again, hoping for one of other values."""
    if not defended:
        monkeypatch.setattr(client._Once, "take", lambda self: None)
    played = new_round(5).advertise().share().contribute()
    try:
        _, again = client.contribute(played.shared[VICTIM], played.inboxes[VICTIM], played.elements[VICTIM] + 1)
        leaked = np.unique(unpack(again, 32, 7) - unpack(played.contributions[VICTIM], 32, 7)).tolist() == [1]
    except RefusalError:
        leaked = False
    assert leaked is not defended


@DEFENDED
def test_late_upload(defended: bool, monkeypatch: Patch) -> None:
    """The victim is declared dead, its mask key put together; then its vector arrives after all."""
    if not defended:
        real = client._masks
        monkeypatch.setattr(client, "_masks", lambda *parts: real(*parts)[1:])  # single masking
    played = new_round(9).advertise().share().contribute()
    late = played.contributions.pop(VICTIM)
    played.contributed.pop(VICTIM)
    played.confirm().unmask()
    place = played.roster.index(VICTIM)
    secrets, _ = server._secrets(played.roster, played.shares, played.contributions, played.replies)
    assert public_key(secrets[place]) == played.entries[VICTIM].advertised.mask_key
    context = mask_context(played.context, played.roster.digest, played.roster.encode_set(played.shares))
    masks: list[Any] = []
    for peer in played.roster.neighbours_of(place):
        key = pair_mask_key(
            X25519PrivateKey.from_private_bytes(secrets[place]),
            played.entries[VICTIM].advertised.mask_key,
            played.roster.entries[peer].advertised.mask_key,
        )
        masks.append((key, context, -1 if place < peer else 1))
    target = unpack(late, 32, LAYOUT.length).copy()
    add_masks(target, masks)
    assert bool((target == played.elements[VICTIM]).all()) is not defended
    seed, mask_key = secrets_of(played, {name: [body] for name, body in played.replies.items()}, VICTIM)
    assert mask_key
    assert not seed


@DEFENDED
def test_sharer_equivocation(defended: bool, monkeypatch: Patch) -> None:
    """Told that others shared with it, a client has masks that nobody else has: the sum does not open, nothing leaks.

    The server's gain, were the set not bound into the masks: it could leave single pairs out and still open the sum.
    """
    if not defended:
        real = agreement.mask_context
        monkeypatch.setattr(client, "mask_context", lambda context, listed, sharers: real(context, listed, b""))
        monkeypatch.setattr(server, "mask_context", lambda context, listed, sharers: real(context, listed, b""))
    played = new_round(7, "curious").advertise().share()
    low, high = names(2)
    edge = len(played.roster.encode_set([]))
    slot = played.roster.neighbours_of(played.roster.index(low)).index(played.roster.index(high))
    for name, peer, at in ((low, high, slot), (high, low, 0)):
        told = played.roster.encode_set(n for n in played.members if n != peer)
        inbox = bytearray(told + played.inboxes[name][edge:])
        inbox[edge + at * SEALED_BYTES : edge + (at + 1) * SEALED_BYTES] = bytes(SEALED_BYTES)
        played.inboxes[name] = bytes(inbox)
    played.contribute()
    for name in names(7)[2:]:
        _, played.replies[name] = client.unmask_unconfirmed(played.contributed[name], played.survivors)
    assert bool((played.opened() == played.expected()).all()) is not defended


# --- shares -----------------------------------------------------------------------------------------------------------


def bent(body: bytes, degree: int, slot: int) -> bytes:
    """A reply with one share changed."""
    slots = list(split_slots(body, degree, SHARE_BYTES, "a reply"))
    share = slots[slot] or bytes(SHARE_BYTES)
    slots[slot] = bytes([share[0] ^ 1]) + share[1:]
    return join_slots(slots, SHARE_BYTES)


def test_a_bad_share_is_named() -> None:
    """Wrong shares, one of a survivor's seed and one of a dropout's mask key: the sum is right and both are named."""
    played = new_round(9).advertise().share().contribute(without=["c_008"]).confirm().unmask()
    for liar, owner in (("c_001", VICTIM), ("c_002", "c_008")):
        slot = played.roster.neighbours_of(played.roster.index(liar)).index(played.roster.index(owner))
        played.replies[liar] = bent(played.replies[liar], played.roster.degree, slot)
    assert set(played.unmasking().bad_shares) == {
        server.BadShare(VICTIM, "c_001"),
        server.BadShare("c_008", "c_002"),
    }
    np.testing.assert_array_equal(played.opened(), played.expected())


def test_a_secret_that_is_slightly_wrong_is_wrong() -> None:
    """X25519 takes many secret keys for one; were they all right, a share off by a little could blame an honest one."""
    secret = new_round(5).advertise().advertised[VICTIM].mask_secret.private_bytes_raw()
    public = public_key(secret)
    assert is_mask_secret(secret, public)
    for position, change in [*((0, bits) for bits in range(1, 8)), (31, 0x80), (31, 0x40)]:
        near = bytearray(secret)
        near[position] ^= change
        assert public_key(bytes(near)) == public  # the same key to X25519
        assert not is_mask_secret(bytes(near), public)


@DEFENDED
def test_a_bad_share_never_makes_a_wrong_sum(defended: bool, monkeypatch: Patch) -> None:
    """With no share to spare, a wrong one fails the round, and whose secret it was is said."""
    if not defended:
        monkeypatch.setattr(server, "combine_checked", lambda held, t, check: (shamir.combine(held, t), frozenset()))
    played = new_round(9).advertise().share().contribute().confirm()
    played.unmask(without=names(9)[6:])
    slot = played.roster.neighbours_of(played.roster.index("c_001")).index(played.roster.index(VICTIM))
    played.replies["c_001"] = bent(played.replies["c_001"], played.roster.degree, slot)
    try:
        wrong = bool((played.opened() != played.expected()).any())
    except ThresholdError as error:
        assert error.whose == VICTIM
        wrong = False
    assert wrong is not defended


def test_shares_that_do_not_open_are_left_out() -> None:
    """A client that seals nonsense for another loses a holder of its own secrets, and stops nobody."""
    played = new_round(9).advertise().share()
    edge = len(played.roster.encode_set([]))
    body = bytearray(played.inboxes[VICTIM])
    body[edge] ^= 1  # what c_001 sealed for c_000
    body[edge + SEALED_BYTES : edge + 2 * SEALED_BYTES] = bytes(SEALED_BYTES)  # c_002 sent zeros
    played.inboxes[VICTIM] = bytes(body)
    played.contribute()
    assert {1, 2}.isdisjoint(played.contributed[VICTIM].pairs)
    assert len(played.contributed[VICTIM].pairs) == 6
    played.confirm().unmask()
    np.testing.assert_array_equal(played.opened(), played.expected())


@DEFENDED
def test_swapped_shares(defended: bool, monkeypatch: Patch) -> None:
    """The server hands a client the shares that were sealed for another place, or another way round."""
    if not defended:
        real = shares._cipher
        monkeypatch.setattr(shares, "_cipher", lambda shared, listed, *_: real(shared, listed, 0, 0))
    played = new_round(5).advertise().share()
    receiver = played.roster.index(VICTIM)
    sealed = played.shares[VICTIM][:SEALED_BYTES]  # for c_001; handed back to c_000 as if c_001 had sealed it
    secret = played.shared[VICTIM].sealing_secret
    assert (open_pair(sealed, secret, played.roster, 1, receiver) is not None) is not defended


# --- replay, and lies about who is there ------------------------------------------------------------------------------


@DEFENDED
def test_replayed_advertisement(defended: bool, monkeypatch: Patch) -> None:
    """An advertisement of round 1, whose mask key the server may know by now, in the roster of round 2."""
    if not defended:
        monkeypatch.setattr(RoundContext, "binding", lambda self: bytes(32))
    first = new_round(5).advertise()
    second = Round(round_context(complete_plan(), 5, 2), names(5))
    second.identities = first.identities
    second.advertise()
    second.entries["c_001"] = first.entries["c_001"]
    second.roster = make_roster(second.context, second.entries.values())
    try:
        client.share(second.advertised[VICTIM], second.roster.body, second.vouch)
        accepted = True
    except RefusalError:
        accepted = False
    assert accepted is not defended


def test_replayed_confirmations_count_as_none() -> None:
    """Signatures of another round, or of the same set in another roster, confirm nothing."""
    first = new_round(5).advertise().share().contribute().confirm()
    second = Round(round_context(complete_plan(), 5, 2), names(5))
    second.identities = first.identities
    second.advertise().share().contribute().confirm()
    old = server.confirmations(first.roster, first.confirmations)
    with pytest.raises(ThresholdError, match="confirming: 3 clients are needed .* 0 are there"):
        client.unmask(second.confirmed[VICTIM], old[VICTIM])


def test_lies_about_the_sharers() -> None:
    played = new_round(9).advertise().share(without=["c_008"])
    without_me = played.roster.encode_set(names(8)[1:])
    edge = len(without_me)
    with pytest.raises(RefusalError, match="this client shared"):
        client.contribute(played.shared[VICTIM], without_me + played.inboxes[VICTIM][edge:], played.elements[VICTIM])
    without_one = played.roster.encode_set(names(7))
    with pytest.raises(RefusalError, match="hands out shares of member 7"):
        client.contribute(played.shared["c_001"], without_one + played.inboxes["c_001"][edge:], played.elements[VICTIM])


@pytest.mark.parametrize("mode", ["curious", "semi-malicious"])
def test_lies_about_the_survivors(mode: Any) -> None:
    """Without this client, or with one that did not share ("dead twice"): refused, in both modes."""
    played = new_round(9, mode).advertise().share(without=["c_008"]).contribute()
    step = client.unmask_unconfirmed if mode == "curious" else client.confirm
    with pytest.raises(RefusalError, match="this client contributed"):
        step(played.contributed[VICTIM], played.roster.encode_set(names(8)[1:]))
    with pytest.raises(RefusalError, match="had not shared"):
        step(played.contributed["c_001"], played.roster.encode_set(names(9)))


def test_a_semi_malicious_task_is_not_unmasked_unconfirmed() -> None:
    played = new_round(5).advertise().share().contribute()
    with pytest.raises(RefusalError, match="confirmed survivors"):
        client.unmask_unconfirmed(played.contributed[VICTIM], played.survivors)


def test_states_say_nothing() -> None:
    """No repr of a state, or of anything in it, holds a secret."""
    played = new_round(5).advertise().share().contribute()
    shown = repr(
        (played.advertised, played.shared, played.contributed, list(played.contributed[VICTIM].pairs.values()))
    )
    for secret in (played.advertised[VICTIM].seed, played.advertised[VICTIM].mask_secret.private_bytes_raw()):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown
    assert decode_set(played.survivors, 5) == frozenset(range(5))
    assert sum_of(played, played.contributions).dtype == ring_dtype(32)
