"""What a lying server, with clients that help it, tries on a masked sum: each attack must fail.

Where the defence is an argument of a round, the attack is also run without it, and must succeed. Mutation testing
(`make mutants`) shows that the other tests fail as soon as the defence does.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols.crypto.sealing import SealingKey
from protocols.errors import HushRecError, ParameterError, RefusalError, ThresholdError
from protocols.sums.masked import client, server, shamir
from protocols.sums.masked.masks import add_masks, is_mask_secret, mask_context, pair_secret, seed_commitment
from protocols.sums.masked.neighbourhood import choose_neighbourhood
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.roster import Roster, make_roster
from protocols.sums.masked.shamir import SHARE_BYTES
from protocols.sums.masked.shares import (
    open_pair,
    open_pair_secret,
    point,
    seal_pair_secret,
    sealed_pair_secret,
)
from protocols.sums.masked.wire import SEALED_BYTES, split_slots
from protocols.sums.wire import unpack
from tests.protocols.sums.masked.rounds import (
    LAYOUT,
    VICTIM,
    Round,
    complete_plan,
    entry_of,
    names,
    new_round,
    round_context,
    with_model,
    with_threshold,
)


def secrets_of(
    played: Round, replies: Mapping[str, Iterable[bytes]], told: Mapping[str, Iterable[bytes]] | None = None
) -> tuple[bytes | None, bytes | None]:
    """Return the victim's seed and its mask key, where the server can reconstruct them from all messages.

    told: shares of the victim's secrets that colluding clients gave to the server.
    """
    roster, held = played.roster, list[tuple[int, bytes]]()
    place, advertised = roster.index(VICTIM), roster.entries[roster.index(VICTIM)].advertised
    for holder, bodies in replies.items():
        slot = roster.neighbours_of(roster.index(holder)).index(place)
        shares = (split_slots(body, roster.degree, SHARE_BYTES, "a reply")[slot] for body in bodies)
        held += [(point(roster.index(holder)), share) for share in shares if share]
    held += [(point(roster.index(holder)), share) for holder, shares in (told or {}).items() for share in shares]

    def found(check: Callable[[bytes], bool]) -> bytes | None:
        for chosen in itertools.combinations(held, roster.threshold):
            try:
                secret = shamir.combine(dict(chosen), roster.threshold)
            except HushRecError:  # no secret, or two shares of one holder
                continue
            if check(secret):
                return secret
        return None

    return (
        found(lambda secret: seed_commitment(secret) == advertised.commitment),
        found(lambda secret: is_mask_secret(secret, advertised.mask_key)),
    )


def unmasked(
    roster: Roster, body: bytes, key_with: Callable[[int], bytes], seed: bytes | None = None
) -> NDArray[np.unsignedinteger[Any]]:
    """The victim's contribution without the masks that somebody who knows its keys, and its seed, computes."""
    place, everybody = roster.index(VICTIM), roster.encode_set(entry.client_id for entry in roster.entries)
    context, target = mask_context(roster.context, roster.digest, everybody), unpack(body, 32, LAYOUT.length).copy()
    masks: list[Any] = [] if seed is None else [(seed, context, -1)]
    masks += [(key_with(peer), context, -1 if place < peer else 1) for peer in roster.neighbours_of(place)]
    add_masks(target, masks)
    return target


def secret_with(roster: Roster, key: SealingKey, owner: int, peer: int, body: bytes) -> bytes:
    """What who knows the mask key of `owner` has of the mask in common with `peer`. body: what the earlier one sent."""
    if owner < peer:
        return pair_secret(key.seed, roster.digest, owner, peer)
    return open_pair_secret(sealed_pair_secret(roster, body, peer, owner), key, roster, peer, owner) or b""


def answers(played: Round, claims: Mapping[str, bytes]) -> dict[str, list[bytes]]:
    """The replies of clients in mode `curious` that are told these sets of survivors."""
    return {name: [client.unmask_unconfirmed(played.contributed[name], claims[name])[1]] for name in claims}


def in_turn(played: Round, others: Sequence[str]) -> dict[str, bytes]:
    """Every second one of `others` is told that the victim survived, the rest that it did not."""
    claims = played.roster.encode_set(name for name in played.members if name != VICTIM), played.survivors
    return {name: claims[number % 2] for number, name in enumerate(others)}


def test_nobody_answers_two_unmask_requests() -> None:
    """The server sends two unmask requests: one with the victim as survivor, one as dropout."""
    played = new_round(5, "curious").advertise().share().contribute()
    others = names(5)[1:]
    replies = answers(played, dict.fromkeys(others, played.survivors))
    for name in others:
        with pytest.raises(RefusalError, match="used"):
            client.unmask_unconfirmed(played.contributed[name], played.roster.encode_set(others))
    seed, mask_key = secrets_of(played, replies)
    assert seed and not mask_key


def test_a_state_cannot_be_doubled() -> None:
    """States cannot be copied or pickled, so none is left that could answer a second request."""
    played = new_round().advertise().share().contribute().confirm()
    for state in (played.advertised, played.shared, played.contributed, played.confirmed):
        for double in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                double(state[VICTIM])
    with pytest.raises(RefusalError, match="used"):  # a shallow copy is the same state
        client.confirm(copy.copy(played.contributed[VICTIM]), played.survivors)


def test_survivor_equivocation() -> None:
    """The server tells half of the clients that the victim survived, and the others that it did not."""
    played = new_round(9).advertise().share().contribute()
    for name, claimed in in_turn(played, names(9)[1:]).items():
        played.confirmed[name], played.confirmations[name] = client.confirm(played.contributed[name], claimed)
    signed = server.confirmations(played.roster, played.confirmations)
    for state in played.confirmed.values():
        with pytest.raises(ThresholdError, match="confirming"):
            client.unmask(state, signed)


@pytest.mark.parametrize("threshold", [5, 4])
def test_the_threshold_leaves_no_room_for_two_answers(threshold: int) -> None:
    """2t > k: even without confirmations, each neighbour's one answer does not make two secrets. At 2t = k it does."""
    played = with_threshold(9, threshold).advertise().share().contribute()
    found = secrets_of(played, answers(played, in_turn(played, names(9)[1:])))
    assert all(found) if threshold == 4 else found == (None, None)


def test_one_client_helps_the_server_in_a_small_cohort() -> None:
    """Of six clients one gives the server both its shares; two others answer "survived", and two "dropped out".

    With t = 3 the attack works, so no parameters for six clients are accepted.
    """
    with pytest.raises(ParameterError, match="no threshold"):
        choose_neighbourhood(6, 0.05, 0.34)
    played = with_threshold(6, 3).advertise().share().contribute()
    pair = played.contributed["c_001"].pairs[played.roster.index(VICTIM)]
    replies = answers(played, in_turn(played, names(6)[2:]))
    assert all(secrets_of(played, replies, {"c_001": (pair.of_seed, pair.of_mask_key)}))


@pytest.mark.parametrize(
    ("invented", "vouched", "opens"),
    [(False, True, False), (True, True, False), (True, False, True)],
    ids=["other round keys, unsigned", "invented members", "invented members, defence taken out"],
)
def test_a_server_that_is_everybody_else_opens_the_one_vector(invented: bool, vouched: bool, opens: bool) -> None:
    """With keys of its own, under the members' identities or under others that have no proof of membership."""
    played = (new_round(6) if vouched else new_round(6, is_member=lambda _: True)).advertise()
    known, entries = {}, [played.entries[VICTIM]]
    for name in names(6)[1:]:
        identity = Ed25519PrivateKey.generate()
        known[name], body = client.advertise(played.context, name, identity, played.policy)
        entry = entry_of(played.identities[name], name, body)
        key = identity.public_key().public_bytes_raw() if invented else entry.identity_key
        entries.append(replace(entry, identity_key=key))
    forged = make_roster(played.context, entries)
    try:
        shared, body = client.share(played.advertised[VICTIM], forged.handout(VICTIM), played.is_member)
        own, keys = forged.index(VICTIM), [known.get(entry.client_id) for entry in forged.entries]
        sealed = [seal_pair_secret(keys[at].mask_secret, forged, at, own) for at in forged.earlier(own)]
        inbox = forged.encode_set(played.members) + bytes(SEALED_BYTES * forged.degree) + b"".join(sealed)
        _, contribution = client.contribute(client.open_inbox(shared, inbox), played.elements[VICTIM])
    except RefusalError:
        assert not opens
        return
    place = forged.index(VICTIM)
    states = [known.get(entry.client_id) for entry in forged.entries]
    slots = split_slots(body[: forged.degree * SEALED_BYTES], forged.degree, SEALED_BYTES, "shares")
    pairs = {at: open_pair(slot or b"", states[at].sealing_secret, forged, place, at)
             for at, slot in zip(forged.neighbours_of(place), slots, strict=True)}  # fmt: skip
    seed = shamir.combine({point(at): pair.of_seed for at, pair in pairs.items() if pair}, forged.threshold)

    def key_with(peer: int) -> bytes:
        return secret_with(forged, states[peer].mask_secret, peer, place, body)

    assert bool((unmasked(forged, contribution, key_with, seed) == played.elements[VICTIM]).all()) == opens


@pytest.mark.parametrize("lie", ["missing", "other keys", "other identity"])
def test_own_entry(lie: str) -> None:
    """A client must be in its roster with its own keys."""
    played = new_round(6).advertise()
    entries, own = dict(played.entries), played.identities[VICTIM]
    if lie == "missing":
        del entries[VICTIM]
    elif lie == "other keys":
        _, body = client.advertise(played.context, VICTIM, own, played.policy)
        entries[VICTIM] = entry_of(own, VICTIM, body)
    else:
        entries[VICTIM] = entry_of(Ed25519PrivateKey.generate(), VICTIM, entries[VICTIM].advertisement)
    forged = make_roster(played.context, entries.values())
    with pytest.raises(RefusalError, match="not in the roster" if lie == "missing" else "not its own"):
        handed = forged.handout(VICTIM if VICTIM in entries else forged.entries[0].client_id)
        client.share(played.advertised[VICTIM], handed, played.is_member)


@pytest.mark.parametrize("signatures", [True, False], ids=["signatures checked", "masks alone"])
def test_model_inconsistency(signatures: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the victim gets the true model; the others get one for which their contribution is zero."""
    if not signatures:
        monkeypatch.setattr(client, "verify_advertisement", lambda *_: True)
    played = new_round(6, "curious")
    played.contexts = dict.fromkeys(names(6)[1:], with_model(played.context, b"crafted"))
    for name in played.contexts:
        played.elements[name][:] = 0
    try:
        played.advertise().share().contribute().unmask()
        isolated = bool((played.opened() == played.elements[VICTIM]).all())
    except HushRecError:
        isolated = False
    assert not isolated


@pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence taken out"])
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
    played = new_round(9, "curious", policy=ClientPolicy(min_cohort=floor, masked_modes=frozenset({"curious"})))
    gone = names(9)[-3:]
    try:
        played.advertise(gone if stage == "roster" else []).share(gone if stage == "sharers" else [])
        played.contribute(gone if stage == "survivors" else []).unmask()
        assert (played.opened() == played.expected()).all() and not defended
    except RefusalError as refusal:
        assert str(refusal).startswith(text) and f"at least {floor}" in str(refusal) and defended


@pytest.mark.parametrize(
    ("mode", "policy"),
    [
        ("semi-malicious", {"min_neighbours": 6}),
        ("semi-malicious", {"min_threshold": 5}),
        ("semi-malicious", {"min_ring_bits": 64}),
        ("semi-malicious", {"masked_modes": frozenset({"curious"})}),
        ("semi-malicious", {"min_corrupt": 0.06}),
        ("semi-malicious", {"min_sigma": 65}),
        ("curious", {}),
    ],
)
def test_policy_of_the_client(mode: Any, policy: dict[str, Any]) -> None:
    """k=5 and t=4 of 6 clients, 32 bits: each policy wants another thing, and none allows mode `curious` by itself."""
    with pytest.raises(RefusalError, match="policy"):
        new_round(6, mode, policy=ClientPolicy(**policy)).advertise().share()


def test_no_mask_serves_two_rounds() -> None:
    """A client whose random generator repeats, as on a restored machine, does not reveal differences of its vectors."""
    identities = {name: Ed25519PrivateKey.generate() for name in names(5)}
    bodies, vectors = [], []
    for number in (1, 2):
        played = Round(round_context(complete_plan(), 5, number), names(5))
        played.identities = identities
        played.elements[VICTIM] += np.uint32(number)
        played.random = lambda label: np.random.default_rng([*label.encode()]).bytes
        played.advertise().share().contribute()
        bodies.append(unpack(played.contributions[VICTIM], 32, LAYOUT.length))
        vectors.append(played.elements[VICTIM])
    assert (bodies[1] - bodies[0] != vectors[1] - vectors[0]).any()


def test_late_upload() -> None:
    """The victim is declared a dropout and its mask key reconstructed; then its contribution arrives."""
    played = new_round(9).advertise().share().contribute()
    late = played.contributions.pop(VICTIM)
    played.contributed.pop(VICTIM)
    played.confirm().unmask()
    seed, mask_key = secrets_of(played, {name: [body] for name, body in played.replies.items()})
    assert mask_key and not seed
    roster, secret = played.roster, SealingKey(mask_key)
    place = roster.index(VICTIM)
    sent = [played.shares[entry.client_id] for entry in roster.entries]
    left = unmasked(roster, late, lambda peer: secret_with(roster, secret, place, peer, sent[min(place, peer)]))
    assert (left != played.elements[VICTIM]).any()


def test_sharer_equivocation() -> None:
    """Told that others shared with it, a client has masks that nobody else has: the sum does not open, nothing leaks.

    The server's gain, were the set not bound into the masks: it could leave single pairs out and still open the sum.
    """
    played = new_round(7, "curious").advertise().share()
    edge = len(played.roster.encode_set([]))
    for name, peer in itertools.permutations(names(2)):
        at = edge + SEALED_BYTES * played.roster.neighbours_of(played.roster.index(name)).index(
            played.roster.index(peer)
        )
        claimed = played.roster.encode_set(n for n in played.members if n != peer)
        inbox = claimed + played.inboxes[name][edge:]
        played.inboxes[name] = inbox[:at] + bytes(SEALED_BYTES) + inbox[at + SEALED_BYTES :]
    played.contribute().unmask(without=names(2))
    assert (played.opened() != played.expected()).any()


def again(first: Round) -> Round:
    """Round 2 of the same clients."""
    second = Round(round_context(complete_plan(), 5, 2), names(5))
    second.identities = first.identities
    return second.advertise()


def test_replayed_messages() -> None:
    """An advertisement of round 1, whose mask key the server may know by now, in round 2; and its confirmations."""
    first = new_round(5).advertise().share().contribute().confirm()
    second = again(first)
    second.entries["c_001"] = first.entries["c_001"]
    second.roster = make_roster(second.context, second.entries.values())
    with pytest.raises(RefusalError):
        client.share(second.advertised[VICTIM], second.roster.handout(VICTIM), second.is_member)
    second = again(first).share().contribute().confirm()
    with pytest.raises(ThresholdError) as failed:
        client.unmask(second.confirmed[VICTIM], server.confirmations(first.roster, first.confirmations))
    assert (failed.value.stage, failed.value.needed, failed.value.present) == ("confirming", 3, 0)


def test_lies_about_the_sharers() -> None:
    played = new_round(9).advertise().share(without=["c_008"])
    edge = len(played.roster.encode_set([]))
    for name, sharers, text in (
        (VICTIM, names(8)[1:], "this client sent its shares"),
        ("c_001", names(7), "sent shares of member 7"),
    ):
        inbox = played.roster.encode_set(sharers) + played.inboxes[name][edge:]
        with pytest.raises(RefusalError, match=text):
            client.open_inbox(played.shared[name], inbox)


@pytest.mark.parametrize("mode", ["curious", "semi-malicious"])
def test_lies_about_the_survivors(mode: Any) -> None:
    """Without this client, or with one that did not share ("dead twice"): refused, in both modes.

    A semi-malicious task is not unmasked as if it were of mode `curious`, where the server's word is enough.
    """
    played = new_round(9, mode).advertise().share(without=["c_008"]).contribute()
    step = client.unmask_unconfirmed if mode == "curious" else client.confirm
    lies = [(VICTIM, names(8)[1:], "this client contributed"), ("c_001", names(9), "not in its list of sharers")]
    for name, survivors, text in lies:
        with pytest.raises(RefusalError, match=text):
            step(played.contributed[name], played.roster.encode_set(survivors))
    if mode == "semi-malicious":
        with pytest.raises(RefusalError, match="confirmed survivors"):
            client.unmask_unconfirmed(played.contributed["c_002"], played.survivors)
