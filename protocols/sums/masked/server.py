"""The server of a masked round: checks what arrives, hands it on, and takes the masks off the sum. All functions pure.

Sets of clients are collections of client ids. After each stage a check says whether the round can still end with a sum
(`ThresholdError` when it cannot); contributions are folded as those of every mechanism, block by block.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import CodecError, ContributionError, ThresholdError
from protocols.sums.base import Buffer
from protocols.sums.masked import messages
from protocols.sums.masked.context import RoundContext
from protocols.sums.masked.key_agreement import (
    check_public_key,
    is_mask_secret,
    mask_context,
    pair_mask_key,
    seed_commitment,
    verify_advertisement,
    verify_survivors,
)
from protocols.sums.masked.masks import Mask, add_masks
from protocols.sums.masked.roster import Roster
from protocols.sums.masked.shamir import combine_checked
from protocols.sums.masked.shares import point

__all__ = [
    "BadShare",
    "HeldShares",
    "Unmasking",
    "check_advertisement",
    "check_confirmation",
    "check_confirmed",
    "check_replies",
    "check_reply",
    "check_sharers",
    "check_shares",
    "check_survivors",
    "collect_shares",
    "confirmations",
    "count_masks",
    "inboxes",
    "split_shares",
    "unmask",
    "unmask_shares",
]


@dataclass(frozen=True)
class BadShare:
    """A share of `owner`'s secret, as `holder` sent it, that does not fit the others. Either may have made it so."""

    owner: str
    holder: str


@dataclass(frozen=True)
class Unmasking:
    """What to add to the sum of the contributions, ring elements (layout.length,), and the shares that were wrong."""

    correction: NDArray[np.unsignedinteger[Any]] = field(repr=False)
    bad_shares: tuple[BadShare, ...]


def check_advertisement(context: RoundContext, client_id: str, identity_key: bytes, body: Buffer) -> None:
    """Raise `ContributionError` unless the client signed these keys for this round and model, and they can be used."""
    _check_length(body, messages.ADVERTISEMENT_BYTES, "an advertisement")
    if not verify_advertisement(context, client_id, identity_key, bytes(body)):
        raise ContributionError("the advertisement is not signed by this client for this round and model")
    parts = messages.decode_advertisement(body)
    try:
        check_public_key(parts.mask_key)
        check_public_key(parts.sealing_key)
    except CodecError as error:
        raise ContributionError(str(error)) from error


def _check_length(body: Buffer, length: int, what: str) -> None:
    try:
        exact(body, length, what)
    except CodecError as error:
        raise ContributionError(str(error)) from error


def check_shares(roster: Roster, body: Buffer) -> None:
    """Raise `ContributionError` for another length. What is inside, the neighbours alone can tell."""
    _check_length(body, messages.share_bytes(roster.degree), "the shares of a client")


def check_sharers(roster: Roster, sharers: Collection[str]) -> None:
    """Raise `ThresholdError` unless every sharer has t neighbours that shared: it would refuse to contribute."""
    places = roster.indices(sharers)
    _require_any(roster, "sharing", places)
    roster.require_neighbours("sharing", places, places)


def _require_any(roster: Roster, stage: str, present: Collection[int]) -> None:
    """No client can have t neighbours where t or fewer are left."""
    if len(present) <= roster.threshold:
        raise ThresholdError(stage, roster.threshold + 1, len(present))


def inboxes(roster: Roster, shares: Mapping[str, Buffer]) -> dict[str, bytes]:
    """For every client that shared (the keys of `shares`), `inbox_bytes(n, k)` bytes: who did, and what for this one.

    Memory is O(n k); each body has passed `check_shares`.
    """
    members, degree = roster.adjacency.shape
    sealed = np.zeros((members * degree, messages.SEALED_BYTES), np.uint8)
    for client_id, body in shares.items():
        start = roster.index(client_id) * degree
        sealed[start : start + degree] = np.frombuffer(body, np.uint8).reshape(degree, -1)
    # Who sends to whom, as sender * members + receiver, ascends along the slots: the place of a pair can be searched.
    receivers = np.arange(members)[:, None]
    outgoing = receivers * members + roster.adjacency
    places = np.searchsorted(outgoing.ravel(), roster.adjacency.astype(np.int64) * members + receivers)
    sharers = roster.encode_set(shares)
    return {client_id: sharers + sealed[places[roster.index(client_id)]].tobytes() for client_id in shares}


def check_survivors(roster: Roster, sharers: Collection[str], survivors: Collection[str]) -> None:
    """Raise `ThresholdError` unless every secret that will be needed has t surviving holders."""
    alive = roster.indices(survivors)
    _require_any(roster, "collecting", alive)
    roster.require_neighbours("collecting", _needed(roster, sharers, survivors), alive)


def _needed(roster: Roster, sharers: Collection[str], survivors: Collection[str]) -> frozenset[int]:
    """Whose secrets the sum hangs on: survivors (the seed), and dropouts that share a mask with one (the mask key)."""
    alive = roster.indices(survivors)
    masked = roster.adjacency[sorted(alive)]
    return alive | (roster.indices(sharers) & frozenset(masked.ravel().tolist()))


def check_confirmation(
    roster: Roster, sharers: Collection[str], survivors: Collection[str], client_id: str, body: Buffer
) -> None:
    """Raise `ContributionError` unless the client, a survivor, signed exactly these survivors."""
    _check_length(body, messages.CONFIRMATION_BYTES, "a confirmation")
    if client_id not in survivors:
        raise ContributionError("only survivors confirm, and this client is none")
    sets = (roster.encode_set(sharers), roster.encode_set(survivors))
    key = roster.entries[roster.index(client_id)].identity_key
    if not verify_survivors(key, bytes(body), roster.context, roster.digest, *sets):
        raise ContributionError("the confirmation is not this client's signature of these survivors")


def check_confirmed(
    roster: Roster, sharers: Collection[str], survivors: Collection[str], confirmed: Collection[str]
) -> None:
    """Raise `ThresholdError` unless enough clients will answer: each one asks for t neighbours that confirmed."""
    places = roster.indices(confirmed)
    here = np.zeros(len(roster), np.bool_)
    here[list(places)] = True
    counts = here[roster.adjacency].sum(axis=1)
    answering = [place for place in places if counts[place] >= roster.threshold]
    roster.require_neighbours("confirming", _needed(roster, sharers, survivors), answering)


def confirmations(roster: Roster, confirmed: Mapping[str, bytes]) -> dict[str, bytes]:
    """For every client that confirmed, `confirmations_bytes(k)` bytes: the signatures of its neighbours."""
    by_place = {roster.index(client_id): signature for client_id, signature in confirmed.items()}
    return {
        client_id: messages.join_slots(
            [by_place.get(place) for place in roster.neighbours_of(roster.index(client_id))],
            messages.CONFIRMATION_BYTES,
        )
        for client_id in confirmed
    }


def check_reply(roster: Roster, body: Buffer) -> None:
    """Raise `ContributionError` for another length. Wrong shares are found, and named, by `unmask`."""
    _check_length(body, messages.reply_bytes(roster.degree), "the shares of a reply")


def check_replies(
    roster: Roster, sharers: Collection[str], survivors: Collection[str], replied: Collection[str]
) -> None:
    """Raise `ThresholdError` unless every secret that is needed has t holders that replied."""
    roster.require_neighbours("unmasking", _needed(roster, sharers, survivors), roster.indices(replied))


def unmask(
    roster: Roster,
    sharers: Collection[str],
    survivors: Collection[str],
    replies: Mapping[str, Buffer],
    threads: int = 1,
) -> Unmasking:
    """The masks that are left in the sum of the survivors' contributions, negated. Memory is O(vector).

    Every survivor's seed and every needed dropout's mask key is put together from t shares and checked against what its
    owner advertised. `ThresholdError` when a secret has fewer than t good shares.

    For several workers: `collect_shares`, `split_shares`, then `unmask_shares` of each part, whose corrections add up.
    """
    return unmask_shares(roster, sharers, survivors, collect_shares(roster, sharers, survivors, replies), threads)


HeldShares = Mapping[int, Mapping[int, bytes]]
"""Shares of one secret of each owner: by the owner's place in the roster, then by the holder's Shamir point. Secret."""


def unmask_shares(
    roster: Roster, sharers: Collection[str], survivors: Collection[str], held: HeldShares, threads: int = 1
) -> Unmasking:
    """The masks of those owners alone whose shares are in `held`; otherwise as `unmask`."""
    secrets, bad_shares = _secrets(roster, survivors, held)
    plan = roster.context.plan
    masks = _masks(roster, sharers, survivors, secrets)
    correction = np.zeros(plan.layout.length, plan.dtype)
    add_masks(correction, masks, threads)
    return Unmasking(correction, bad_shares)


def _secrets(
    roster: Roster, survivors: Collection[str], held: HeldShares
) -> tuple[dict[int, bytes], tuple[BadShare, ...]]:
    """Seeds of survivors and mask keys of dropouts by place, and the shares that did not fit."""
    alive = roster.indices(survivors)
    secrets, bad = {}, []
    for place, shares in sorted(held.items()):
        secrets[place], wrong = _secret(roster, place, shares, place in alive)
        bad += [BadShare(roster.entries[place].client_id, roster.entries[at - 1].client_id) for at in sorted(wrong)]
    return secrets, tuple(bad)


def collect_shares(
    roster: Roster, sharers: Collection[str], survivors: Collection[str], replies: Mapping[str, Buffer]
) -> dict[int, dict[int, bytes]]:
    """What the replies hold of every secret that is needed, a survivor's seed or a dropout's mask key: `HeldShares`.

    `ThresholdError` when a secret has fewer than t holders that replied.
    """
    check_survivors(roster, sharers, survivors)
    check_replies(roster, sharers, survivors, replies)
    held: dict[int, dict[int, bytes]] = {place: {} for place in _needed(roster, sharers, survivors)}
    for client_id, body in replies.items():
        holder = roster.index(client_id)
        slots = messages.split_slots(body, roster.degree, messages.reply_bytes(1), "the shares of a reply")
        for place, slot in zip(roster.neighbours_of(holder), slots, strict=True):
            if slot is not None and place in held:
                held[place][point(holder)] = slot
    return held


def count_masks(roster: Roster, survivors: Collection[str], held: HeldShares) -> int:
    """How many masks there are to take off."""
    return sum(_mask_counts(roster, survivors, held).values())


def _mask_counts(roster: Roster, survivors: Collection[str], held: HeldShares) -> dict[int, int]:
    """A survivor has one mask to take off, a dropout one for each neighbour that survived."""
    alive = np.zeros(len(roster), np.bool_)
    alive[list(roster.indices(survivors))] = True
    shared = alive[roster.adjacency].sum(axis=1)
    return {place: 1 if alive[place] else int(shared[place]) for place in held}


def split_shares(
    roster: Roster, survivors: Collection[str], held: HeldShares, parts: int
) -> list[dict[int, Mapping[int, bytes]]]:
    """The owners in at most `parts` groups of about equally many masks; none is empty."""
    weights = _mask_counts(roster, survivors, held)
    lightest = [(0, number) for number in range(parts)]
    groups: list[dict[int, Mapping[int, bytes]]] = [{} for _ in range(parts)]
    for place in sorted(held, key=lambda place: (-weights[place], place)):
        weight, number = lightest[0]
        heapq.heapreplace(lightest, (weight + weights[place], number))
        groups[number][place] = held[place]
    return [group for group in groups if group]


def _secret(roster: Roster, place: int, shares: Mapping[int, bytes], survived: bool) -> tuple[bytes, frozenset[int]]:
    entry = roster.entries[place]

    def fits(secret: bytes) -> bool:
        if survived:
            return seed_commitment(secret) == entry.advertised.commitment
        return is_mask_secret(secret, entry.advertised.mask_key)

    if len(shares) < roster.threshold:
        raise ThresholdError("unmasking", roster.threshold, len(shares), entry.client_id)
    try:
        return combine_checked(shares, roster.threshold, fits)
    except CodecError as error:  # so many are wrong that the good ones cannot be told: one more may settle it
        raise ThresholdError("unmasking, wrong shares", len(shares) + 1, len(shares), entry.client_id) from error


def _masks(
    roster: Roster, sharers: Collection[str], survivors: Collection[str], secrets: Mapping[int, bytes]
) -> list[Mask]:
    """The survivors' self masks, and what they had in common with dropouts, each with the sign that takes it off."""
    context = mask_context(roster.context, roster.digest, roster.encode_set(sharers))
    alive = roster.indices(survivors)
    masks: list[Mask] = []
    for place, secret in secrets.items():
        if place in alive:
            masks.append((secret, context, -1))
            continue
        own, mask_secret = roster.entries[place].advertised.mask_key, X25519PrivateKey.from_private_bytes(secret)
        for peer in roster.neighbours_of(place):
            if peer in alive:
                key = pair_mask_key(mask_secret, own, roster.entries[peer].advertised.mask_key)
                masks.append((key, context, -1 if peer < place else 1))
    return masks
