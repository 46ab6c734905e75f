"""The roster of a masked round: its members, the neighbour graph, and what they sign; the same bytes for every client.

members (uint32), then for each, in ascending order of ids: length of the id (1 byte), the id (UTF-8), identity key
(Ed25519, 32), mailbox key (32), membership certificate (81, zeros for none) and the name of its advertisement (32), a
digest. Behind it a client is handed out the advertisements of its neighbours (2,528 bytes each), which must have the
names in the roster: it seals for nobody else. So the digest of the roster stands for the keys of all.

The neighbour graph is regular, in random order, determined by a public seed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Final, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from protocols.codec import LONGEST_ID, Reader, join_named, split_named
from protocols.crypto.certificates import shares_subject
from protocols.crypto.keys import digest, domain_tag, verifies
from protocols.crypto.random import permutation
from protocols.crypto.sealing import agreement_key
from protocols.errors import CodecError, ParameterError, RefusalError, ThresholdError
from protocols.sums.base import Buffer
from protocols.sums.groups import MIN_CLIENTS, split_clients
from protocols.sums.masked import wire
from protocols.sums.masked.masks import seed_commitment
from protocols.sums.masked.neighbourhood import Neighbourhood
from protocols.sums.masked.plan import RoundContext
from protocols.sums.masked.wire import ADVERTISEMENT_BYTES, ENTRY_LENGTHS, Advertisement, decode_advertisement

_PURPOSE = "masked sum graph"
V = TypeVar("V")


def neighbours(clients: int, degree: int, seed: bytes) -> NDArray[np.int32]:
    """Return the neighbour graph, int32 (clients, degree): row i holds the neighbours of client i, ascending.

    The clients form a circle in an order drawn from `seed`, and each is linked with the degree/2 nearest on either
    side: a Harary graph, which stays connected unless `degree` of its clients leave it (Harary, PNAS 1962). degree:
    even, or clients-1 for the complete graph. Raises `ParameterError` otherwise.
    """
    if degree == clients - 1 and clients >= 2:
        rows = np.broadcast_to(np.arange(degree, dtype=np.int32), (clients, degree))
        return rows + (rows >= np.arange(clients)[:, None]).astype(np.int32)
    if not 2 <= degree < clients or degree % 2:
        raise ParameterError(f"{clients} clients need an even degree below {clients}, or {clients - 1}; got {degree}")
    circle = permutation(seed, _PURPOSE, clients).astype(np.int32)
    steps = np.arange(1, degree // 2 + 1)
    beside = np.add.outer(np.arange(clients), np.concatenate([-steps, steps])) % clients
    graph = np.empty((clients, degree), np.int32)
    graph[circle] = np.sort(circle[beside], axis=1)
    return graph


_COUNT: Final = struct.Struct("<I")


def advertisement_name(advertisement: Buffer) -> bytes:
    """Return the digest (32 bytes) that stands for an advertisement in the roster."""
    return digest("masked advertisement name", bytes(advertisement))


@dataclass(frozen=True)
class RosterEntry:
    """A member of the roster."""

    client_id: str
    identity_key: bytes
    """Ed25519, 32 bytes."""
    mailbox_key: bytes
    """Name of a sealing key, 32 bytes."""
    certificate: bytes
    """The organiser's membership certificate, 81 bytes, zeros for none (`protocols.crypto.certificates`)."""
    advertisement: bytes
    """The signed keys of this round, 2,528 bytes; empty at a client that is not its neighbour."""
    stated_name: bytes = b""
    """The name of the advertisement where that is empty."""

    @cached_property
    def name(self) -> bytes:
        """The name of the advertisement, 32 bytes."""
        return advertisement_name(self.advertisement) if self.advertisement else self.stated_name

    def encode(self) -> bytes:
        """Return the bytes of this member in the roster; `ParameterError` unless every field has its length."""
        if len(self.advertisement) not in (0, ADVERTISEMENT_BYTES):
            raise ParameterError(f"an advertisement has {ADVERTISEMENT_BYTES} bytes, got {len(self.advertisement)}")
        return join_named(
            self.client_id, (self.identity_key, self.mailbox_key, self.certificate, self.name), ENTRY_LENGTHS
        )

    @property
    def advertised(self) -> Advertisement:
        """The decoded advertisement; `CodecError` for another length, and where this party has not got it.

        Decoded each time: kept, it would double the memory of a roster.
        """
        return decode_advertisement(self.advertisement)


@dataclass(frozen=True)
class Roster:
    """The members in order of their ids, and the neighbour graph derived from them and the round's seed.

    A member's index is its place in the roster, from 0; its Shamir point is index + 1.
    """

    context: RoundContext
    entries: tuple[RosterEntry, ...]
    body: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    neighbourhood: Neighbourhood
    adjacency: NDArray[np.int32] = field(repr=False, compare=False)
    """int32 (members, degree), row i the neighbours of member i, ascending."""
    groups: NDArray[np.int32] = field(repr=False, compare=False)
    """int32 (members,), the group of each member, of which its neighbours are; 0 without groups. Create it with
    `make_roster` or `open_roster`."""

    @property
    def degree(self) -> int:
        """k: neighbours of each member."""
        return self.neighbourhood.degree

    @property
    def threshold(self) -> int:
        """t: number of shares that reconstruct a secret."""
        return self.neighbourhood.threshold

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {entry.client_id: index for index, entry in enumerate(self.entries)}

    def index(self, client_id: str) -> int:
        """Return the place of a member; `ParameterError` if the client is not in the roster."""
        try:
            return self._places[client_id]
        except KeyError:
            raise ParameterError("this client is not in the roster of the round") from None

    def indices(self, client_ids: Iterable[str]) -> frozenset[int]:
        """Return the places of several members; `ParameterError` if one is not in the roster."""
        return frozenset(map(self.index, client_ids))

    def earlier(self, index: int) -> tuple[int, ...]:
        """Return the places of the neighbours that are before a member in the roster, ascending."""
        return tuple(place for place in self.neighbours_of(index) if place < index)

    def later(self, index: int) -> tuple[int, ...]:
        """Return the places of the neighbours that are after a member in the roster, ascending."""
        return tuple(place for place in self.neighbours_of(index) if place > index)

    @cached_property
    def other_ends(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Two arrays (members, degree): of each member's slots the neighbour, and the place of that slot in its slots.

        `by_sender[roster.other_ends]` holds by receiver what `by_sender`, (members, degree, ...), holds by sender.
        """
        order = np.argsort(self.adjacency, axis=None, kind="stable")  # by receiver, then by sender
        places, slots = np.divmod(order.reshape(self.adjacency.shape), self.degree)
        return places, slots

    def neighbours_of(self, index: int) -> tuple[int, ...]:
        """Return the places of a member's neighbours, ascending: the order of its slots in every message."""
        return tuple(self.adjacency[index].tolist())

    @property
    def whole(self) -> bytes:
        """The roster, then the advertisements of all members in its order: what the server keeps."""
        return self.body + b"".join(entry.advertisement for entry in self.entries)

    def handout(self, client_id: str) -> bytes:
        """Return what the server hands out to a member: the roster, then the advertisements of its neighbours.

        Raises `ParameterError` if the client is not in the roster.
        """
        peers = self.neighbours_of(self.index(client_id))
        return self.body + b"".join(self.entries[place].advertisement for place in peers)

    def with_advertisements(self, found: Mapping[int, bytes]) -> Roster:
        """Return the roster with these advertisements by place.

        Raises `RefusalError` for one that has not the name in the roster, and if a key occurs twice.
        """
        entries = list(self.entries)
        for place, body in found.items():
            if advertisement_name(body) != entries[place].name:
                raise RefusalError(f"the keys of member {place} are not those that the roster names")
            entries[place] = replace(entries[place], advertisement=body, stated_name=b"")
        repeated = _repeated(entries)
        if repeated:
            raise RefusalError(f"{repeated} occurs twice in the roster")
        return replace(self, entries=tuple(entries))

    def encode_set(self, client_ids: Iterable[str]) -> bytes:
        """Return the encoded set of these members; `ParameterError` if one is not in the roster."""
        return wire.encode_set(self.indices(client_ids), len(self))

    def count_neighbours(self, present: Collection[int]) -> NDArray[np.int64]:
        """Return how many neighbours of each member are in `present` (places), int64 (members,)."""
        here = np.zeros(len(self), np.bool_)
        here[list(present)] = True
        counts: NDArray[np.int64] = here[self.adjacency].sum(axis=1)
        return counts

    def group_of(self, client_id: str) -> int:
        """Return the index of a member's group; `ParameterError` if the client is not in the roster."""
        return int(self.groups[self.index(client_id)])

    def same_group(self, index: int) -> frozenset[int]:
        """Return the places of all members of a member's group, its own included."""
        return frozenset(np.flatnonzero(self.groups == self.groups[index]).tolist())

    def smallest_group(self, present: Collection[int]) -> int:
        """Return how many of `present` (places) are in the group that has the fewest of them."""
        return int(
            np.bincount(self.groups[np.array(list(present), np.int64)], minlength=self.context.plan.groups).min()
        )

    def of_group(self, by_place: Mapping[int, V], group: int) -> dict[int, V]:
        """Return what is of the members of one group."""
        return {place: value for place, value in by_place.items() if self.groups[place] == group}

    def require_neighbours(self, stage: str, needed_by: Collection[int], present: Collection[int]) -> None:
        """Raise `ThresholdError` unless each place in `needed_by` has `threshold` neighbours in `present` (places)."""
        rows = np.array(sorted(needed_by), np.int64)
        counts = self.count_neighbours(present)[rows]
        if counts.size and counts.min() < self.threshold:
            worst = int(rows[counts.argmin()])
            raise ThresholdError(stage, self.threshold, int(counts.min()), self.entries[worst].client_id)


def longest_roster(cohort: int) -> int:
    """Return the length in bytes of the longest handout of a roster, in a round that asked `cohort` clients."""
    return wire.roster_bytes(cohort, LONGEST_ID, cohort)


def make_roster(context: RoundContext, entries: Iterable[RosterEntry]) -> Roster:
    """Return the roster of `entries` (in any order), whose advertisements must have been checked.

    Raises `ThresholdError` for fewer than `MIN_CLIENTS` members, `ParameterError` if an id, a key or a subject occurs
    twice or the plan has no neighbourhood for this number of members.
    """
    ordered = tuple(sorted(entries, key=lambda entry: entry.client_id))
    if len(ordered) < MIN_CLIENTS:
        raise ThresholdError("advertising", MIN_CLIENTS, len(ordered))
    if len(ordered) > context.cohort:
        raise ParameterError(f"{context.cohort} clients were asked, {len(ordered)} are in the roster")
    repeated = _repeated(ordered)
    if repeated:
        raise ParameterError(f"{repeated} occurs twice in the roster")
    body = _COUNT.pack(len(ordered)) + b"".join(entry.encode() for entry in ordered)
    return _roster(context, ordered, body)


def open_roster(context: RoundContext, body: Buffer) -> Roster:
    """Return the roster of which `body` is `Roster.whole`; `CodecError` if `make_roster` cannot have made it."""
    return _read_whole(context, bytes(body))


@lru_cache(maxsize=2)  # of the server's rounds
def _read_whole(context: RoundContext, body: bytes) -> Roster:
    names, advertisements = _split(context, body, lambda count: count)
    roster = _read_roster(context, names)
    try:
        return roster.with_advertisements(dict(enumerate(advertisements)))
    except RefusalError as error:
        raise CodecError(str(error)) from error


def open_handout(context: RoundContext, body: Buffer, client_id: str, own: bytes) -> Roster:
    """Return the roster that a client was handed out, with its neighbours' advertisements and its `own`.

    Raises `CodecError` for a wrong length or order and a roster that cannot be one of this round, `RefusalError` if the
    client is not in it with these keys, and for keys of a neighbour that are not those that the roster names.
    """
    names, advertisements = _split(context, bytes(body), lambda count: context.plan.neighbourhood(count).degree)
    roster = _read_roster(context, names)
    try:
        index = roster.index(client_id)
    except ParameterError as error:
        raise RefusalError("this client is not in the roster that the server sent") from error
    if roster.entries[index].name != advertisement_name(own):
        raise RefusalError("this client is in the roster with keys that are not its own")
    return roster.with_advertisements(
        {index: own, **dict(zip(roster.neighbours_of(index), advertisements, strict=True))}
    )


def _split(context: RoundContext, body: bytes, number: Callable[[int], int]) -> tuple[bytes, list[bytes]]:
    """Return a roster and the advertisements behind it; number: how many these are, of the number of members."""
    (count,) = _COUNT.unpack(Reader(body).fixed(_COUNT.size))
    if not MIN_CLIENTS <= count <= context.cohort:
        raise CodecError(f"a roster of this round has {MIN_CLIENTS} to {context.cohort} members, got {count}")
    edge = len(body) - number(count) * ADVERTISEMENT_BYTES
    if edge < 0:
        raise CodecError("a roster is shorter than the advertisements behind it")
    starts = range(edge, len(body), ADVERTISEMENT_BYTES)
    return body[:edge], [body[start : start + ADVERTISEMENT_BYTES] for start in starts]


@lru_cache(maxsize=2)  # a process that simulates many clients decodes the roster of a round once
def _read_roster(context: RoundContext, body: bytes) -> Roster:
    reader = Reader(body)
    (count,) = _COUNT.unpack(reader.fixed(_COUNT.size))
    named = [split_named(reader, ENTRY_LENGTHS) for _ in range(count)]
    reader.finish()
    entries = tuple(
        RosterEntry(client_id, identity, mailbox, certificate, b"", stated)
        for client_id, (identity, mailbox, certificate, stated) in named
    )
    names = [entry.client_id for entry in entries]
    if names != sorted(names):
        raise CodecError("the members of a roster must be in ascending order of their ids")
    repeated = _repeated(entries)
    if repeated:
        raise CodecError(f"{repeated} occurs twice in the roster")
    return _roster(context, entries, body)


def _repeated(entries: Sequence[RosterEntry]) -> str | None:
    """Return what occurs twice, or None.

    Keys of all kinds are compared with each other, of sealing keys the half for X25519: a client with another's key
    could read its messages. A client compares those of its neighbours, for which it seals. A subject of the organiser
    with two identities would be one of the honest clients twice.
    """
    if len({entry.client_id for entry in entries}) < len(entries):
        return "a client id"
    keys = {entry.identity_key for entry in entries}
    if len(keys) < len(entries):
        return "an identity key"
    known = [entry.advertised.keys for entry in entries if entry.advertisement]
    keys |= {agreement_key(key) for pair in known for key in pair}
    if len(keys) < len(entries) + 2 * len(known) or len({entry.name for entry in entries}) < len(entries):
        return "a round key"
    return "a subject" if shares_subject(entry.certificate for entry in entries) else None


def _roster(context: RoundContext, entries: tuple[RosterEntry, ...], body: bytes) -> Roster:
    neighbourhood = context.plan.neighbourhood(len(entries))
    facts = (neighbourhood.degree, neighbourhood.threshold, context.plan.mode)
    summary = digest("masked roster", context.binding, *facts, body)
    seed = digest("masked graph", context.round_seed, summary)
    members = np.stack(split_clients(context.task_id, [entry.client_id for entry in entries], context.plan.groups))
    within = neighbours(members.shape[1], neighbourhood.degree, seed)
    adjacency, groups = np.empty((len(entries), neighbourhood.degree), np.int32), np.empty(len(entries), np.int32)
    for group, places in enumerate(members):
        adjacency[places], groups[places] = places[within], group
    for shared in (adjacency, groups):
        shared.setflags(write=False)  # the roster is shared
    return Roster(context, entries, body, summary, neighbourhood, adjacency, groups)


def _advertised(context: RoundContext, client_id: str, mask_key: bytes, sealing_key: bytes, commitment: bytes) -> bytes:
    return domain_tag("masked advertisement", context.binding, client_id, mask_key, sealing_key, commitment)


def sign_advertisement(
    identity: Ed25519PrivateKey, context: RoundContext, client_id: str, mask_key: bytes, sealing_key: bytes, seed: bytes
) -> Advertisement:
    """Return the advertisement of two public keys and the commitment to `seed`, signed for this round and client."""
    commitment = seed_commitment(seed)
    signature = identity.sign(_advertised(context, client_id, mask_key, sealing_key, commitment))
    return Advertisement(mask_key, sealing_key, commitment, signature)


def verify_advertisement(context: RoundContext, client_id: str, identity_key: bytes, body: bytes) -> bool:
    """Return whether the owner of `identity_key` (Ed25519, 32 bytes) signed the advertisement `body` for this round."""
    parts = decode_advertisement(body)
    message = _advertised(context, client_id, parts.mask_key, parts.sealing_key, parts.commitment)
    return verifies(identity_key, parts.signature, message)


def signed_survivors(roster: Roster, sharers: bytes, survivors: bytes) -> bytes:
    """Return the bytes that a client signs to confirm one encoded set of survivors."""
    return domain_tag("masked survivors", roster.context.binding, roster.digest, sharers, survivors)
