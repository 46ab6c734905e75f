"""What a lying server, with clients that help it, tries on a masked sum: each attack must fail.

Where the defence is an argument of a round, the attack is also run without it, and must succeed. Mutation testing
(`make mutants`) shows that the other tests fail as soon as the defence does.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.errors import CodecError, HushRecError, ParameterError, RefusalError, ThresholdError
from protocols.sums.masked import client, server, shamir
from protocols.sums.masked.masks import pair_mask_key
from protocols.sums.masked.parameters import ClientPolicy, choose_neighbourhood
from protocols.sums.masked.roster import make_roster
from protocols.sums.masked.shamir import SHARE_BYTES
from protocols.sums.masked.shares import open_pair, point
from protocols.sums.masked.wire import SEALED_BYTES, split_slots
from tests.protocols.sums.masked.rounds import (
    DEFENDED,
    VICTIM,
    Patch,
    Round,
    always_true,
    entry_of,
    names,
    new_round,
    secrets_of,
    unmasked,
    with_model,
    with_threshold,
)


def test_nobody_answers_two_unmask_requests() -> None:
    """The server sends two unmask requests: one with the victim as survivor, one as dropout."""
    played = new_round(5, "curious").advertise().share().contribute()
    replies: dict[str, list[bytes]] = {name: [] for name in played.contributed if name != VICTIM}
    for claimed in (played.contributed, replies):
        survivors = played.roster.encode_set(claimed)
        for name in replies:
            try:
                replies[name].append(client.unmask_unconfirmed(played.contributed[name], survivors)[1])
            except RefusalError as refusal:
                assert "used" in str(refusal)
    seed, mask_key = secrets_of(played, replies, VICTIM)
    assert seed
    assert not mask_key


def test_a_reply_holds_one_share_of_each_neighbour() -> None:
    played = new_round().advertise().share().contribute(without=["c_003"]).confirm().unmask()
    dropped = played.roster.index("c_003")
    for name, body in played.replies.items():
        pairs = played.contributed[name].pairs
        slots = split_slots(body, played.roster.degree, SHARE_BYTES, "a reply")
        for place, slot in zip(played.roster.neighbours_of(played.roster.index(name)), slots, strict=True):
            assert slot == (pairs[place].of_mask_key if place == dropped else pairs[place].of_seed)


def test_a_state_cannot_be_doubled() -> None:
    """States cannot be copied or pickled, so none is left that could answer a second request."""
    played = new_round().advertise().share().contribute().confirm()
    for state in (played.advertised, played.shared, played.contributed, played.confirmed):
        for double in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                double(state[VICTIM])  # type: ignore[operator]
    with pytest.raises(RefusalError, match="used"):  # a shallow copy is the same state
        client.confirm(copy.copy(played.contributed[VICTIM]), played.survivors)


def test_survivor_equivocation() -> None:
    """The server tells half of the clients that the victim survived, and the others that it did not."""
    played = new_round(9).advertise().share().contribute()
    others = [name for name in played.members if name != VICTIM]
    alive, dead = played.survivors, played.roster.encode_set(others)
    for number, name in enumerate(others):
        claimed = alive if number % 2 else dead
        played.confirmed[name], played.confirmations[name] = client.confirm(played.contributed[name], claimed)
    signed = server.confirmations(played.roster, played.confirmations)
    for state in played.confirmed.values():
        with pytest.raises(ThresholdError, match="confirming"):
            client.unmask(state, signed)


@pytest.mark.parametrize("threshold", [5, 4])
def test_the_threshold_leaves_no_room_for_two_answers(threshold: int) -> None:
    """2t > k: even without confirmations, each neighbour's one answer does not make two secrets. At 2t = k it does."""
    played = with_threshold(9, threshold).advertise().share().contribute()
    others = [name for name in played.members if name != VICTIM]
    replies = {}
    for number, name in enumerate(others):
        claimed = played.survivors if number % 2 else played.roster.encode_set(others)
        replies[name] = [client.unmask_unconfirmed(played.contributed[name], claimed)[1]]
    assert secrets_of(played, replies, VICTIM) == ((False, False) if threshold == 5 else (True, True))


def test_one_client_helps_the_server_in_a_small_cohort() -> None:
    """Of six clients one gives the server both its shares; two others answer "survived", and two "dropped out".

    With t = 3 the attack works, so no parameters for six clients are accepted.
    """
    with pytest.raises(ParameterError, match="no threshold"):
        choose_neighbourhood(6, 0.05, 0.34)
    played = with_threshold(6, 3).advertise().share().contribute()
    helper, *others = [name for name in played.members if name != VICTIM]
    survived, dropped_out = played.survivors, played.roster.encode_set([helper, *others])
    pair = played.contributed[helper].pairs[played.roster.index(VICTIM)]
    replies = {}
    for number, name in enumerate(others):
        claimed = survived if number % 2 else dropped_out
        replies[name] = [client.unmask_unconfirmed(played.contributed[name], claimed)[1]]
    assert secrets_of(played, replies, VICTIM, {helper: (pair.of_seed, pair.of_mask_key)}) == (True, True)


def open_through_own_keys(played: Round, strangers: list[Ed25519PrivateKey | None]) -> bool:
    """The server impersonates all clients but the victim, with keys of its own, and opens the one vector.

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
        shared, body = client.share(played.advertised[VICTIM], forged.body, played.is_member)
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

    own = forged.entries[place].advertised.mask_key

    def key_with(peer: int) -> bytes:
        entry = forged.entries[peer]
        return pair_mask_key(known[entry.client_id].mask_secret, entry.advertised.mask_key, own)

    return bool((unmasked(forged, place, contribution, key_with, seed) == played.elements[VICTIM]).all())


def test_man_in_the_middle() -> None:
    """Other round keys under the members' own identities: they did not sign them."""
    played = new_round(6)
    assert not open_through_own_keys(played, [None] * 5)


@DEFENDED
def test_invented_members(defended: bool) -> None:
    """Invented identities with valid signatures have no proof of membership."""
    played = new_round(6) if defended else new_round(6, is_member=always_true)
    strangers: list[Ed25519PrivateKey | None] = [Ed25519PrivateKey.generate() for _ in range(5)]
    assert open_through_own_keys(played, strangers) is not defended


def test_two_rosters() -> None:
    """Half of the clients see one more member: with the roster in the masks, the halves have none in common."""
    played = new_round(7).advertise()
    whole, less = played.roster, make_roster(played.context, list(played.entries.values())[:-1])
    low, high = names(2)
    states = {}
    for name, body in ((low, whole.body), (high, less.body)):
        states[name], _ = client.share(played.advertised[name], body, played.is_member)
    keys = [
        client._masks(states[name], b"\x3f", [place])[1]
        for name, place in ((low, whole.index(high)), (high, less.index(low)))
    ]
    cancels = keys[0][:2] == keys[1][:2] and keys[0][2] == -keys[1][2]
    assert not cancels


def test_a_key_found_twice() -> None:
    """The victim's own round keys occur again in the roster, under an invented client id."""
    played = new_round(6).advertise()
    mirror = replace(entry_of(Ed25519PrivateKey.generate(), "c_005", played.entries[VICTIM].advertisement))
    entries = [*(entry for name, entry in played.entries.items() if name != "c_005"), mirror]
    body = len(entries).to_bytes(4, "little") + b"".join(entry.encode() for entry in entries)
    with pytest.raises(CodecError, match="a round key occurs twice in the roster"):
        client.share(played.advertised[VICTIM], body, played.is_member)


@pytest.mark.parametrize("lie", ["missing", "other keys", "other identity"])
def test_own_entry(lie: str) -> None:
    """A client must be in its roster with its own keys."""
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
        client.share(played.advertised[VICTIM], forged.body, played.is_member)


@pytest.mark.parametrize("signatures", [True, False], ids=["signatures checked", "masks alone"])
def test_model_inconsistency(signatures: bool, monkeypatch: Patch) -> None:
    """Only the victim gets the true model; the others get one for which their contribution is zero."""
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
    assert not isolated


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
def test_small_cohort(stage: str, text: str, defended: bool) -> None:
    """The client's policy refuses a sum over few clients, in whichever stage the server reduces them."""
    floor = 3 if not defended else 10 if stage == "asked" else 7
    played = new_round(9, "curious", policy=ClientPolicy(min_cohort=floor, modes=frozenset({"curious"})))
    dropouts = names(9)[-3:]
    try:
        played.advertise(without=dropouts if stage == "roster" else [])
        played.share(without=dropouts if stage == "sharers" else [])
        played.contribute(without=dropouts if stage == "survivors" else [])
        played.unmask()
        released = bool((played.opened() == played.expected()).all())
    except RefusalError as refusal:
        assert str(refusal).startswith(text)  # in the stage in which it became small
        assert f"at least {floor}" in str(refusal)
        released = False
    assert released is not defended


@DEFENDED
@pytest.mark.parametrize(
    "policy",
    [
        ClientPolicy(min_degree=6),
        ClientPolicy(min_threshold=5),
        ClientPolicy(min_bits=64),
        ClientPolicy(modes=frozenset({"curious"})),
        ClientPolicy(min_corrupt=0.06),
        ClientPolicy(min_sigma=65),
    ],
)
def test_policy_of_the_client(policy: ClientPolicy, defended: bool) -> None:
    """k=5 and t=4 of 6 clients, 32 bits, semi-malicious: each policy wants another thing."""
    played = new_round(6)
    if defended:
        played.policy = policy
    try:
        shared = bool(played.advertise().share().shares)
    except RefusalError as refusal:
        assert "policy" in str(refusal)
        shared = False
    assert shared is not defended
