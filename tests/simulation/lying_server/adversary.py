"""What the server and its helpers can compute from everything that they got: all secrets, then all sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

import numpy as np

from protocols.crypto.sealing import SealingKey
from protocols.sums.masked import client
from protocols.sums.masked.masks import add_masks, is_mask_secret, pair_secret, seed_commitment
from protocols.sums.masked.roster import Roster
from protocols.sums.masked.shamir import SHARE_BYTES, combine
from protocols.sums.masked.shares import open_pair, open_pair_secret, point, sealed_pair_secret
from protocols.sums.masked.wire import SEALED_BYTES, Advertisement, split_slots
from tests.simulation.lying_server.parties import Elements, Puppet

_PRIME: Final = 2**61 - 1
Row = dict[Hashable, int]


def eliminate(
    rows: Sequence[Mapping[Hashable, int]], columns: frozenset[Hashable] | None = None
) -> list[tuple[Row, list[int]]]:
    """Return a basis of the combinations of the rows that are zero in `columns` (None: in all).

    Each with its coefficients, one per row. All numbers are between -p/2 and p/2: small integers stay what they are.
    """
    pivots: list[tuple[Hashable, Row, list[int]]] = []
    left: list[tuple[Row, list[int]]] = []
    for number, given in enumerate(rows):
        row: Row = {column: value % _PRIME for column, value in given.items() if value % _PRIME}
        own = [int(place == number) for place in range(len(rows))]
        for column, pivot, coefficients in pivots:
            factor = row.get(column, 0)
            if factor:
                changed = {one: (row.get(one, 0) - factor * value) % _PRIME for one, value in pivot.items()}
                row = {one: value for one, value in (row | changed).items() if value}
                own = [(mine - factor * other) % _PRIME for mine, other in zip(own, coefficients, strict=True)]
        column = next((one for one in row if columns is None or one in columns), None)
        if column is None:
            left.append(({one: _centre(value) for one, value in row.items()}, [_centre(value) for value in own]))
            continue
        inverse = pow(row[column], -1, _PRIME)
        scaled = {one: value * inverse % _PRIME for one, value in row.items()}
        pivots.append((column, scaled, [value * inverse % _PRIME for value in own]))
    return left


def _centre(value: int) -> int:
    return value - _PRIME if value > _PRIME // 2 else value


Data = tuple[int, int]
"""A vector: (member, which data)."""


@dataclass(frozen=True)
class SentShares:
    """The sealed shares of a member, for the neighbours that it has in its roster."""

    roster: Roster
    place: int
    body: bytes


@dataclass(frozen=True)
class Reply(SentShares):
    """A member's shares of its neighbours' secrets, after it was told these survivors."""

    survivors: frozenset[int]


@dataclass(frozen=True)
class Contribution:
    """A masked vector."""

    roster: Roster
    place: int
    sharers: frozenset[int]
    """As the member was told."""
    sharers_body: bytes
    data: Data | None
    """None when the server knows the vector: zero."""
    elements: Elements

    @property
    def own(self) -> Advertisement:
        return self.roster.entries[self.place].advertised

    @property
    def told(self) -> tuple[bytes, bytes, bytes]:
        """What the member was told: the roster, the sharers and the model."""
        return self.roster.body, self.sharers_body, self.roster.context.model_digest

    @property
    def stream(self) -> bytes:
        """The context of the member's masks."""
        return client.mask_context(self.roster.context, self.roster.digest, self.sharers_body)


@dataclass(frozen=True)
class Opened:
    coefficients: Mapping[Data, int]
    value: Elements


@dataclass
class Adversary:
    """Everything that the server and its helpers saw."""

    puppets: dict[bytes, Puppet] = field(default_factory=dict)
    shares: list[SentShares] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    contributions: list[Contribution] = field(default_factory=list)

    def know(self, puppet: Puppet) -> None:
        """Add a member whose keys the server made."""
        self.puppets[puppet.entry.advertised.sealing_key] = puppet

    # --- secrets --------------------------------------------------------------------------------------------------

    def secrets(self) -> tuple[dict[bytes, bytes], dict[bytes, SealingKey]]:
        """Return the known self-mask seeds by commitment, and the known mask keys by public key."""
        keys = {one.entry.advertised.mask_key: one.mask_secret for one in self.puppets.values()}
        seeds: dict[bytes, bytes] = {}
        for sent in self.shares:
            owner = sent.roster.entries[sent.place].advertised
            of_seed, of_key = self._shares_of(sent, owner)
            if len(of_seed) >= sent.roster.threshold:
                seed = combine(of_seed, sent.roster.threshold)
                assert seed_commitment(seed) == owner.commitment
                seeds[owner.commitment] = seed
            if len(of_key) >= sent.roster.threshold:
                secret = combine(of_key, sent.roster.threshold)
                assert is_mask_secret(secret, owner.mask_key)
                keys[owner.mask_key] = SealingKey(secret)
        return seeds, keys

    def _shares_of(self, sent: SentShares, owner: Advertisement) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Return the known shares of one member's seed and of its mask key, by Shamir point."""
        of_seed: dict[int, bytes] = {}
        of_key: dict[int, bytes] = {}
        shares = sent.body[: SEALED_BYTES * sent.roster.degree]
        slots = split_slots(shares, sent.roster.degree, SEALED_BYTES, "shares")
        for place, sealed in zip(sent.roster.neighbours_of(sent.place), slots, strict=True):
            holder = self.puppets.get(sent.roster.entries[place].advertised.sealing_key)
            if holder is not None and sealed is not None:
                pair = open_pair(sealed, holder.sealing_secret, sent.roster, sent.place, place)
                of_seed[point(place)], of_key[point(place)] = pair.of_seed, pair.of_mask_key
        for reply in self.replies:
            slots = split_slots(reply.body, reply.roster.degree, SHARE_BYTES, "a reply")
            name = reply.roster.entries[reply.place].client_id
            for place, share in zip(reply.roster.neighbours_of(reply.place), slots, strict=True):
                if share is not None and reply.roster.entries[place].advertised == owner:
                    (of_seed if place in reply.survivors else of_key)[point(sent.roster.index(name))] = share
        return of_seed, of_key

    # --- sums -----------------------------------------------------------------------------------------------------

    def opened(self) -> list[Opened]:
        seeds, keys = self.secrets()
        sent = {(one.roster.digest, one.place): one.body for one in self.shares}
        split = [_split_masks(one, seeds, keys, sent) for one in self.contributions]
        usable = _without_lone_masks([unknown for unknown, _ in split])
        found = []
        for _, coefficients in eliminate([split[number][0] for number in usable]):
            value = np.zeros_like(self.contributions[0].elements)
            counts: dict[Data, int] = {}
            for number, coefficient in zip(usable, coefficients, strict=True):
                value += split[number][1] * np.uint32(coefficient % (1 << 32))
                data = self.contributions[number].data
                if data is not None:
                    counts[data] = counts.get(data, 0) + coefficient
            found.append(Opened({data: count for data, count in counts.items() if count}, value))
        return found

    def shared_masks(self) -> Iterable[tuple[Contribution, Contribution]]:
        """Yield the pairs of contributions that have a mask in common."""
        for one, other in combinations(self.contributions, 2):
            if one.stream == other.stream and not _pairs(one).isdisjoint(_pairs(other)):
                yield one, other


def _pairs(seen: Contribution) -> set[tuple[bytes, bytes]]:
    return {_pair(seen, place) for place in seen.roster.neighbours_of(seen.place) if place in seen.sharers}


def _pair(seen: Contribution, place: int) -> tuple[bytes, bytes]:
    own, peer = seen.own.mask_key, seen.roster.entries[place].advertised.mask_key
    return (own, peer) if own < peer else (peer, own)


def _split_masks(
    seen: Contribution,
    seeds: Mapping[bytes, bytes],
    keys: Mapping[bytes, SealingKey],
    sent: Mapping[tuple[bytes, int], bytes],
) -> tuple[dict[Hashable, int], Elements]:
    """Return the unknown masks of a contribution, with their signs, and its elements without the known masks."""
    stream, own, elements = seen.stream, seen.own, seen.elements.copy()
    unknown: dict[Hashable, int] = {}
    known: list[Any] = []
    if own.commitment in seeds:
        known.append((seeds[own.commitment], stream, -1))
    else:
        unknown["self", own.commitment, stream] = 1
    for place in seen.roster.neighbours_of(seen.place):
        if place not in seen.sharers:
            continue
        sign = 1 if seen.place < place else -1
        secret = _secret_of_pair(seen.roster, *sorted((seen.place, place)), keys, sent)
        if secret is not None:
            known.append((secret, stream, -sign))
        else:
            unknown["pair", _pair(seen, place), stream] = sign
    add_masks(elements, known)
    return unknown, elements


def _secret_of_pair(
    roster: Roster,
    earlier: int,
    later: int,
    keys: Mapping[bytes, SealingKey],
    sent: Mapping[tuple[bytes, int], bytes],
) -> bytes | None:
    """Return the secret of two members' mask, if the mask key of one is known and what was sealed to it was seen."""
    owner, receiver = (keys.get(roster.entries[place].advertised.mask_key) for place in (earlier, later))
    if owner is not None:
        return pair_secret(owner.seed, roster.digest, earlier, later)
    body = sent.get((roster.digest, earlier))
    if receiver is None or body is None:
        return None
    return open_pair_secret(sealed_pair_secret(roster, body, earlier, later), receiver, roster, earlier, later)


def _without_lone_masks(rows: list[dict[Hashable, int]]) -> list[int]:
    """Return the rows whose unknowns all occur in another such row too: only these can be in a combination."""
    kept, left = list(range(len(rows))), list[int]()
    while left != kept:
        counts = Counter(mask for number in kept for mask in rows[number])
        left, kept = kept, [number for number in kept if all(counts[mask] > 1 for mask in rows[number])]
    return kept


def smallest_group(opened: list[Opened], members: frozenset[int], below: int) -> frozenset[int] | None:
    """Return fewer than `below` members that a combination of opened sums is over; None if there is none.

    Members whose data do not matter because they cancel are not counted.
    """
    rows = [dict[Hashable, int](one.coefficients) for one in opened]
    everything = {data for row in rows for data in row}
    involved = sorted(members & {data[0] for data in everything})
    for size in range(1, below):
        for group in combinations(involved, min(size, len(involved))):
            others = frozenset(data for data in everything if data[0] not in group)
            if any(rest for rest, _ in eliminate(rows, others)):
                return frozenset(group)
    return None
