"""The server of a masked round: checks messages, delivers them, and removes the masks from the sum. Pure functions.

Sets of clients are collections of client ids. After each stage a check raises `ThresholdError` if the round can no
longer end with a sum. Contributions are folded like those of every mechanism.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.keys import verifies
from protocols.crypto.sealing import SealingKey, check_sealing_key
from protocols.errors import AtFaultError, CodecError, ContributionError, ThresholdError
from protocols.sums.base import Buffer
from protocols.sums.masked import wire
from protocols.sums.masked.masks import Mask, add_masks, mask_context, pair_secret
from protocols.sums.masked.neighbourhood import corrupt_clients
from protocols.sums.masked.plan import RoundContext
from protocols.sums.masked.roster import Roster, signed_survivors, verify_advertisement
from protocols.sums.masked.shares import (
    commitments_of,
    open_pair_secret,
    pair_commitment,
    point,
    reconstruct,
    sealed_pair_secret,
)


@dataclass(frozen=True)
class BadShare:
    """A share of `owner`'s secret that `holder` sent and that does not match its commitment: the holder is at fault."""

    owner: str
    holder: str


@dataclass(frozen=True)
class Unmasking:
    """The result of unmasking."""

    correction: NDArray[np.unsignedinteger[Any]] = field(repr=False)
    """Ring elements (layout.length,) to add to the sum of the contributions."""
    bad_shares: tuple[BadShare, ...]
    """Shares found wrong."""


def check_advertisement(context: RoundContext, client_id: str, identity_key: bytes, body: Buffer) -> None:
    """Raise `ContributionError` unless the keys are usable, and signed by the client for this round and model."""
    exact(body, wire.ADVERTISEMENT_BYTES, "an advertisement", ContributionError)
    if not verify_advertisement(context, client_id, identity_key, bytes(body)):
        raise ContributionError("the advertisement is not signed by this client for this round and model")
    parts = wire.decode_advertisement(body)
    try:
        for key in parts.keys:
            check_sealing_key(key)
    except CodecError as error:
        raise ContributionError(str(error)) from error


def check_shares(roster: Roster, client_id: str, body: Buffer) -> None:
    """Raise `ContributionError` for another length. Only the neighbours can check the content."""
    exact(body, share_bytes(roster, client_id), "the shares of a client", ContributionError)


def share_bytes(roster: Roster, client_id: str) -> int:
    """Return the length in bytes of what a member of the roster sends for its neighbours."""
    return wire.share_bytes(roster.degree, len(roster.later(roster.index(client_id))))


def check_sharers(roster: Roster, sharers: Collection[str]) -> None:
    """Raise `ThresholdError` unless every sharer has t neighbours that shared; a client checks the same."""
    places = roster.indices(sharers)
    _require_any(roster, "sharing", places)
    roster.require_neighbours("sharing", places, places)


def _require_any(roster: Roster, stage: str, present: Collection[int]) -> None:
    """Raise `ThresholdError` if t or fewer clients are present: then no client has t neighbours."""
    if len(present) <= roster.threshold:
        raise ThresholdError(stage, roster.threshold + 1, len(present))


def short_of_shares(roster: Roster, sharers: Collection[str], disputes: Collection[tuple[str, str]]) -> tuple[str, ...]:
    """Return the sharers of whom fewer than t neighbours hold shares that opened.

    disputes: (owner, reporter) for each sealed pair of shares that a neighbour reported not to open.
    """
    reported = Counter(owner for owner, _ in set(disputes))
    sharing = roster.indices(sharers)
    return tuple(
        owner
        for owner in sorted(reported)
        if sum(place in sharing for place in roster.neighbours_of(roster.index(owner))) - reported[owner]
        < roster.threshold
    )


def at_fault(roster: Roster, disputes: Collection[tuple[str, str]]) -> frozenset[str]:
    """Return the clients that are in dispute with more others than may collude, as owners or as reporters.

    One of the two in a dispute is at fault, if the server delivers what clients send. So an honest client is in dispute
    with clients at fault only, of which a roster has at most A (at least 1).
    """
    pairs = {frozenset(pair) for pair in disputes}
    others = Counter(client for pair in pairs for client in pair)
    most = max(1, corrupt_clients(roster.context.plan.parameters.corrupt, len(roster)))
    return frozenset(client for client, count in others.items() if count > most)


def inboxes(roster: Roster, shares: Mapping[str, Buffer]) -> Iterator[tuple[str, bytes]]:
    """Yield the id and the inbox of every client that shared: the sharers and what was sealed for it.

    shares: client id -> its shares, which have passed `check_shares`; each is read once. Clients that have neighbours
    in common follow each other, so the shares of about two neighbourhoods are in memory, and one inbox.
    """
    sharers, size, rest = roster.encode_set(shares), wire.SEALED_BYTES, wire.SEALED_BYTES * roster.degree
    present, bodies = roster.indices(shares), dict[int, memoryview]()
    unserved, slot_of = roster.count_neighbours(present), roster.other_ends[1]
    first_later = (roster.adjacency < np.arange(len(roster))[:, None]).sum(axis=1).tolist()
    for receiver in _along_the_graph(roster, present):
        slots, secrets = list[Buffer](), list[Buffer]()
        for sender, at in zip(roster.neighbours_of(receiver), slot_of[receiver].tolist(), strict=True):
            if sender in present and sender not in bodies:
                bodies[sender] = memoryview(shares[roster.entries[sender].client_id])
            body = bodies.get(sender)
            slots.append(bytes(size) if body is None else body[size * at : size * (at + 1)])
            if sender < receiver:
                start = rest + wire.PAIR_BYTES * (at - first_later[sender])
                secrets.append(bytes(wire.PAIR_BYTES) if body is None else body[start : start + wire.PAIR_BYTES])
            unserved[sender] -= 1
            if not unserved[sender]:
                bodies.pop(sender, None)
        yield roster.entries[receiver].client_id, b"".join([sharers, *slots, *secrets])


def _along_the_graph(roster: Roster, places: Collection[int]) -> Iterator[int]:
    """Yield these places, each soon after those of its neighbours."""
    left = dict.fromkeys(sorted(places))
    while left:
        near = deque([next(iter(left))])
        del left[near[0]]
        while near:
            yield near[0]
            for peer in roster.neighbours_of(near.popleft()):
                if peer in left:
                    del left[peer]
                    near.append(peer)


def check_survivors(roster: Roster, sharers: Collection[str], survivors: Collection[str]) -> None:
    """Raise `ThresholdError` unless every secret that unmasking needs has t surviving share holders."""
    alive = roster.indices(survivors)
    _require_any(roster, "collecting", alive)
    roster.require_neighbours("collecting", _needed_places(roster, sharers, survivors), alive)


def _needed_places(roster: Roster, sharers: Collection[str], survivors: Collection[str]) -> frozenset[int]:
    """Return the places whose secrets unmasking needs: survivors (seed) and their dropped-out neighbours (mask key)."""
    alive = roster.indices(survivors)
    masked = roster.adjacency[sorted(alive)]
    return alive | (roster.indices(sharers) & frozenset(masked.ravel().tolist()))


@dataclass(frozen=True)
class SurvivorSet:
    """The survivors that are to be confirmed, and what each of them signs."""

    roster: Roster
    survivors: frozenset[str]
    signed: bytes = field(repr=False)

    @classmethod
    def of(cls, roster: Roster, sharers: Iterable[str], survivors: Iterable[str]) -> SurvivorSet:
        """Return these survivors among these sharers."""
        alive = frozenset(survivors)
        return cls(roster, alive, signed_survivors(roster, roster.encode_set(sharers), roster.encode_set(alive)))

    def check_confirmation(self, client_id: str, body: Buffer) -> None:
        """Raise `ContributionError` unless the client, a survivor, signed exactly these survivors."""
        exact(body, wire.CONFIRMATION_BYTES, "a confirmation", ContributionError)
        if client_id not in self.survivors:
            raise ContributionError("only survivors confirm: this client is not a survivor")
        if not verifies(self.roster.entries[self.roster.index(client_id)].identity_key, bytes(body), self.signed):
            raise ContributionError("the confirmation is not this client's signature of these survivors")


def check_confirmed(
    roster: Roster, sharers: Collection[str], survivors: Collection[str], confirmed: Collection[str]
) -> None:
    """Raise `ThresholdError` unless enough clients will reply: each needs t neighbours and a quorum that confirmed."""
    places = roster.indices(confirmed)
    plan = roster.context.plan
    quorum = plan.quorum(len(roster))
    fewest = len(places) if plan.signing_groups == 1 else roster.smallest_group(places)
    if fewest < quorum:
        raise ThresholdError("confirming", quorum, fewest)
    counts = roster.count_neighbours(places)
    answering = [place for place in places if counts[place] >= roster.threshold]
    roster.require_neighbours("confirming", _needed_places(roster, sharers, survivors), answering)


def confirmations(roster: Roster, confirmed: Mapping[str, bytes]) -> bytes:
    """Return the signatures in the order of the roster, `confirmations_bytes(n)` bytes, for every client."""
    by_place = {roster.index(client_id): signature for client_id, signature in confirmed.items()}
    slots = [by_place.get(place) for place in range(len(roster))]
    return wire.join_slots(slots, wire.CONFIRMATION_BYTES)


def check_reply(roster: Roster, body: Buffer) -> None:
    """Raise `ContributionError` for another length. Wrong shares are found by `unmask`."""
    exact(body, wire.reply_bytes(roster.degree), "the shares of a reply", ContributionError)


def check_replies(
    roster: Roster, sharers: Collection[str], survivors: Collection[str], replied: Collection[str]
) -> None:
    """Raise `ThresholdError` unless every secret that unmasking needs has t share holders that replied."""
    roster.require_neighbours("unmasking", _needed_places(roster, sharers, survivors), roster.indices(replied))


def unmask(
    roster: Roster,
    shares: Mapping[str, Buffer],
    survivors: Collection[str],
    replies: Mapping[str, Buffer],
    threads: int = 1,
    onto: NDArray[np.unsignedinteger[Any]] | None = None,
    group: int = 0,
) -> Unmasking:
    """Return the negated sum of the masks that remain in the sum of the survivors' contributions. Memory is O(vector).

    group: of which. shares: what each sharer sent for its neighbours. Every survivor's seed and every needed dropout's
    mask key is reconstructed from t shares and checked against its owner's advertisement. If they do not fit, the
    shares of this secret are compared with their commitments and those that match are used: two interpolations from t
    shares and m hashes for a secret, whatever the shares are.

    Raises `ThresholdError` if too few holders sent a share of a secret, and `AtFaultError` if an owner's commitments
    and secret disagree, or wrong shares leave fewer than t: with these owners, and the holders whose shares are wrong.

    With several workers: `collect_shares`, `split_shares`, then `unmask_shares` of each part; add the corrections.

    onto: ring elements (layout.length,) to which the correction is added in place; they are the correction then. None:
    zeros.
    """
    held = collect_shares(roster, shares, shares.items(), survivors, replies)
    return unmask_shares(roster, shares, survivors, roster.of_group(held, group), threads, onto)


@dataclass(frozen=True, eq=False)
class Held:
    """What the server has to make the masks of one owner."""

    shares: NDArray[np.uint8] = field(repr=False)
    """(k, 33), shares of the owner's seed or mask key (secret), by its neighbours; zeros of one that sent none."""
    commitments: NDArray[np.uint8] = field(repr=False)
    """(k, 16), the owner's commitments to them."""
    secrets: Mapping[int, bytes] = field(repr=False)
    """Of an owner that dropped out, each surviving neighbour's place -> the sealed secret of their mask."""


HeldShares = Mapping[int, Held]
"""Owner's place in the roster -> what the server has of it."""


def unmask_shares(
    roster: Roster,
    sharers: Collection[str],
    survivors: Collection[str],
    held: HeldShares,
    threads: int = 1,
    onto: NDArray[np.unsignedinteger[Any]] | None = None,
) -> Unmasking:
    """Return what `unmask` returns, for the masks of only those owners whose shares are in `held`."""
    secrets, bad_shares = _secrets(roster, survivors, held)
    plan = roster.context.plan
    masks = _masks(roster, sharers, survivors, secrets, held)
    correction = np.zeros(plan.layout.length, plan.dtype) if onto is None else onto
    add_masks(correction, masks, threads)
    return Unmasking(correction, bad_shares)


def _secrets(
    roster: Roster, survivors: Collection[str], held: HeldShares
) -> tuple[dict[int, bytes], tuple[BadShare, ...]]:
    """Return the seeds of survivors and mask keys of dropouts by place, and the wrong shares. Raises as `unmask`."""
    alive = roster.indices(survivors)
    secrets, bad, dealers, short = dict[int, bytes](), list[BadShare](), list[str](), False
    liars = set[int]()
    for place in sorted(held):
        owner, shares = roster.entries[place], shares_by_point(roster, place, held[place])
        if len(shares) < roster.threshold:
            raise ThresholdError("unmasking", roster.threshold, len(shares), owner.client_id)
        found = reconstruct(roster, place, shares, place in alive, liars)
        liars |= found.wrong
        bad += [BadShare(owner.client_id, roster.entries[at - 1].client_id) for at in sorted(found.wrong)]
        if found.secret is not None:
            secrets[place] = found.secret
        elif found.owner_lied:
            dealers.append(owner.client_id)
        else:
            short = True
    if dealers or short:
        raise AtFaultError((*dealers, *(roster.entries[at - 1].client_id for at in sorted(liars))))
    return secrets, tuple(bad)


def shares_by_point(roster: Roster, place: int, held: Held) -> dict[int, tuple[bytes, bytes]]:
    """Return by Shamir point of a holder its share of the secret of `place` and the commitment, of those that came."""
    came, holders = np.flatnonzero(held.shares.any(axis=1)).tolist(), roster.neighbours_of(place)
    return {point(holders[at]): (held.shares[at].tobytes(), held.commitments[at].tobytes()) for at in came}


def collect_shares(
    roster: Roster,
    sharers: Collection[str],
    shares: Iterable[tuple[str, Buffer]],
    survivors: Collection[str],
    replies: Mapping[str, Buffer],
) -> dict[int, Held]:
    """Return the replies' shares of every secret that unmasking needs: survivors' seeds and dropouts' mask keys.

    shares: of each of `sharers`, its id and what it sent for its neighbours, in any order. One is needed at a time:
    what stays of it is 16 bytes for each share, and of dropouts' masks the sealed secrets. Raises `ThresholdError` if a
    secret has fewer than t share holders that replied, or what its owner sent is missing, `CodecError` for a reply of
    another length.
    """
    check_survivors(roster, sharers, survivors)
    check_replies(roster, sharers, survivors, replies)
    alive, needed = roster.indices(survivors), _needed_places(roster, sharers, survivors)
    dropouts, commitments = needed - alive, dict[int, NDArray[np.uint8]]()
    sealed: dict[int, dict[int, bytes]] = {place: {} for place in needed}
    for client_id, body in shares:
        place = roster.index(client_id)
        commitments[place] = commitments_of(roster, body, place in alive)
        for peer in roster.later(place):
            for owner, other in ((place, peer), (peer, place)):
                if owner in dropouts and other in alive:
                    sealed[owner][other] = sealed_pair_secret(roster, body, place, peer)
    if needed - commitments.keys():
        raise ThresholdError("sharing", len(needed), len(commitments))
    sent = np.zeros((*roster.adjacency.shape, wire.reply_bytes(1)), np.uint8)
    for client_id, body in replies.items():
        slots = exact(body, wire.reply_bytes(roster.degree), "the shares of a reply")
        sent[roster.index(client_id)] = np.frombuffer(slots, np.uint8).reshape(sent.shape[1:])
    found = sent[roster.other_ends]
    return {place: Held(found[place], commitments[place], sealed[place]) for place in needed}


def count_masks(roster: Roster, survivors: Collection[str], held: HeldShares) -> int:
    """Return the number of masks to remove."""
    return sum(_mask_counts(roster, survivors, held).values())


def _mask_counts(roster: Roster, survivors: Collection[str], held: HeldShares) -> dict[int, int]:
    """Return the number of masks to remove by owner: one for a survivor, one per surviving neighbour for a dropout."""
    alive = roster.indices(survivors)
    shared = roster.count_neighbours(alive)
    return {place: 1 if place in alive else int(shared[place]) for place in held}


def split_shares(roster: Roster, survivors: Collection[str], held: HeldShares, parts: int) -> list[dict[int, Held]]:
    """Return the owners in at most `parts` groups with about equally many masks; no group is empty."""
    weights = _mask_counts(roster, survivors, held)
    lightest = [(0, number) for number in range(parts)]
    groups: list[dict[int, Held]] = [{} for _ in range(parts)]
    for place in sorted(held, key=lambda place: (-weights[place], place)):
        weight, number = lightest[0]
        heapq.heapreplace(lightest, (weight + weights[place], number))
        groups[number][place] = held[place]
    return [group for group in groups if group]


def _masks(
    roster: Roster,
    sharers: Collection[str],
    survivors: Collection[str],
    secrets: Mapping[int, bytes],
    held: HeldShares,
) -> list[Mask]:
    """Return the survivors' self masks and the masks they share with dropouts, with the sign that removes each.

    Raises `AtFaultError` for the members that sealed another pair secret than they committed to.
    """
    context = mask_context(roster.context, roster.digest, roster.encode_set(sharers))
    alive = roster.indices(survivors)
    masks, liars = list[Mask](), list[int]()
    for place, secret in secrets.items():
        if place in alive:
            masks.append((secret, context, -1))
            continue
        own = SealingKey(secret)
        for peer, sealed in held[place].secrets.items():
            found = _secret_of_pair(roster, own, place, peer, sealed)
            if found is None:
                liars.append(min(place, peer))
            else:
                masks.append((found, context, -1 if peer < place else 1))
    if liars:
        raise AtFaultError(tuple(roster.entries[place].client_id for place in sorted(set(liars))))
    return masks


def _secret_of_pair(roster: Roster, own: SealingKey, place: int, peer: int, sealed: bytes) -> bytes | None:
    """Return the secret of the mask of a dropout at `place` and a peer; None if the earlier one of the two lied.

    own: the dropout's mask key. sealed: what the earlier one sealed for the later one.
    """
    if peer < place:
        return open_pair_secret(sealed, own, roster, peer, place)
    secret = pair_secret(own.seed, roster.digest, place, peer)
    return secret if sealed.endswith(pair_commitment(roster, place, peer, secret)) else None
