"""The messages of a masked round: fixed layouts whose lengths are functions of n (members) and k (neighbours).

advertisement   mask key and sealing key (1216 each), commitment of the self-mask seed (32), Ed25519 signature (64)
shares          k slots of 1,202 bytes: shares that one client sealed for each of its neighbours, and commitments;
                then a slot of 1,152 bytes for each later neighbour: the secret of their mask, sealed, and a commitment
inbox           the set of clients that shared, then the slots that the neighbours sent for one client: k of 1,202
                bytes, and one of 1,152 bytes of each earlier neighbour
set             one bit per member of the roster, lowest first; padding is zero
confirmation    Ed25519 signature (64) over round, roster, sharers and survivors
confirmations   n slots of 64 bytes: the confirmations of the roster's members, the same bytes for every client
reply           k slots of 33 bytes: one share, or none, of each neighbour

Slots are in the ascending order of a client's neighbours. A slot of zeros is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from protocols.codec import exact
from protocols.crypto.certificates import CERTIFICATE_BYTES
from protocols.crypto.keys import DIGEST_BYTES, KEY_BYTES, SIGNATURE_BYTES
from protocols.crypto.sealing import SEALED_OVERHEAD, SEALING_KEY_BYTES
from protocols.errors import CodecError
from protocols.sums.base import Buffer
from protocols.sums.masked.shamir import SHARE_BYTES

CONFIRMATION_BYTES: Final = SIGNATURE_BYTES
ADVERTISEMENT_BYTES: Final = 2 * SEALING_KEY_BYTES + DIGEST_BYTES + SIGNATURE_BYTES
ENTRY_LENGTHS: Final = (KEY_BYTES, KEY_BYTES, CERTIFICATE_BYTES, DIGEST_BYTES)
"""Lengths of what a roster has of a member after the id: identity key, mailbox key, certificate, and the digest that
stands for its advertisement."""
COMMITMENT_BYTES: Final = 16
SEALED_BYTES: Final = 2 * SHARE_BYTES + SEALED_OVERHEAD + 2 * COMMITMENT_BYTES
"""Two shares, sealed; then a commitment to each share, in clear."""
PAIR_BYTES: Final = KEY_BYTES + SEALED_OVERHEAD + COMMITMENT_BYTES
"""A pair secret, sealed; then a commitment to it, in clear."""


@dataclass(frozen=True)
class Advertisement:
    """A client's public keys for one round and the commitment to its self-mask seed, signed with its identity key."""

    mask_key: bytes
    sealing_key: bytes
    """Public sealing keys, 1,216 bytes each."""
    commitment: bytes
    """32 bytes."""
    signature: bytes
    """64 bytes."""

    @property
    def keys(self) -> tuple[bytes, bytes]:
        """The mask key and the sealing key."""
        return self.mask_key, self.sealing_key

    def encode(self) -> bytes:
        """Return the advertisement as 2,528 bytes."""
        return self.mask_key + self.sealing_key + self.commitment + self.signature


def decode_advertisement(body: Buffer) -> Advertisement:
    """Return the advertisement that `body` encodes; `CodecError` for another length than 2,528 bytes."""
    view = bytes(exact(body, ADVERTISEMENT_BYTES, "an advertisement"))
    keys, rest = view[: 2 * SEALING_KEY_BYTES], view[2 * SEALING_KEY_BYTES :]
    return Advertisement(keys[:SEALING_KEY_BYTES], keys[SEALING_KEY_BYTES:], rest[:DIGEST_BYTES], rest[DIGEST_BYTES:])


def roster_bytes(members: int, id_bytes: int, degree: int) -> int:
    """Return the length in bytes of the roster of a client with `degree` neighbours; id_bytes: of each id."""
    return 4 + members * (1 + id_bytes + sum(ENTRY_LENGTHS)) + degree * ADVERTISEMENT_BYTES


def share_bytes(degree: int, later: int) -> int:
    """Return the length in bytes of what a client with `degree` neighbours sends, `later` of them after it."""
    return SEALED_BYTES * degree + PAIR_BYTES * later


def set_bytes(members: int) -> int:
    """Return the length in bytes of a set of members of a roster."""
    return (members + 7) // 8


def inbox_bytes(members: int, degree: int, earlier: int) -> int:
    """Return the length in bytes of the inbox of a client with `degree` neighbours, `earlier` of them before it."""
    return set_bytes(members) + SEALED_BYTES * degree + PAIR_BYTES * earlier


def confirmations_bytes(members: int) -> int:
    """Return the length in bytes of the confirmations that a client of a roster of `members` receives."""
    return CONFIRMATION_BYTES * members


def reply_bytes(degree: int) -> int:
    """Return the length in bytes of the reply of a client with `degree` neighbours to an unmask request."""
    return SHARE_BYTES * degree


def encode_set(indices: Iterable[int], members: int) -> bytes:
    """Return a set of places in the roster, each below `members`, as bits."""
    bits = np.zeros(members, np.bool_)
    bits[list(indices)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def decode_set(body: Buffer, members: int) -> frozenset[int]:
    """Decode the bytes of `encode_set`; `CodecError` for another length or padding that is not zero."""
    packed = np.frombuffer(exact(body, set_bytes(members), f"a set of {members} members"), np.uint8)
    bits = np.unpackbits(packed, bitorder="little")
    if bits[members:].any():
        raise CodecError("the padding of a set must be zero")
    return frozenset(np.flatnonzero(bits).tolist())


def join_slots(slots: Sequence[bytes | None], length: int) -> bytes:
    """Return the slots, `length` bytes each, concatenated; None becomes zeros."""
    return b"".join(bytes(length) if slot is None else slot for slot in slots)


def split_slots(body: Buffer, degree: int, length: int, what: str) -> tuple[bytes | None, ...]:
    """Return the slots that `join_slots` concatenated, None for zeros; `CodecError` for another length."""
    view, empty = exact(body, degree * length, what), bytes(length)
    slots = (bytes(view[start : start + length]) for start in range(0, degree * length, length))
    return tuple(None if slot == empty else slot for slot in slots)


def split_inbox(
    body: Buffer, members: int, degree: int, earlier: int
) -> tuple[bytes, tuple[bytes | None, ...], tuple[bytes | None, ...]]:
    """Return the encoded set of sharers, and what neighbours sealed: pairs of shares, and secrets of the earlier ones.

    None stands for an empty slot. Raises `CodecError` for another length.
    """
    view = exact(body, inbox_bytes(members, degree, earlier), "an inbox")
    edge = set_bytes(members)
    pairs = edge + SEALED_BYTES * degree
    shares = split_slots(view[edge:pairs], degree, SEALED_BYTES, "the shares of an inbox")
    return bytes(view[:edge]), shares, split_slots(view[pairs:], earlier, PAIR_BYTES, "the pair secrets of an inbox")
