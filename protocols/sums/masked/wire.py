"""The messages of a masked round: fixed layouts whose lengths are functions of n (members) and k (neighbours).

advertisement   mask key (32), sealing key (32), commitment of the self-mask seed (32), Ed25519 signature (64)
shares          k slots of 114 bytes: what one client sealed for each of its neighbours, and commitments to it
inbox           the set of clients that shared, then k slots of 114 bytes: what the neighbours sent for one client
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
from protocols.crypto.keys import KEY_BYTES, SIGNATURE_BYTES
from protocols.errors import CodecError
from protocols.sums.base import Buffer
from protocols.sums.masked.shamir import SHARE_BYTES

CONFIRMATION_BYTES: Final = SIGNATURE_BYTES
ADVERTISEMENT_BYTES: Final = 3 * KEY_BYTES + SIGNATURE_BYTES
COMMITMENT_BYTES: Final = 16
SEALED_BYTES: Final = 2 * SHARE_BYTES + 16 + 2 * COMMITMENT_BYTES
"""Two shares and the tag of AES-256-GCM, encrypted; then a commitment to each share, in clear."""


@dataclass(frozen=True)
class Advertisement:
    """A client's public keys for one round and the commitment to its self-mask seed, signed with its identity key."""

    mask_key: bytes
    sealing_key: bytes
    commitment: bytes
    signature: bytes

    def encode(self) -> bytes:
        """Return the advertisement as 160 bytes."""
        return self.mask_key + self.sealing_key + self.commitment + self.signature


def decode_advertisement(body: Buffer) -> Advertisement:
    """Return the advertisement that `body` encodes; `CodecError` for another length than 160 bytes."""
    view = bytes(exact(body, ADVERTISEMENT_BYTES, "an advertisement"))
    return Advertisement(view[:32], view[32:64], view[64:96], view[96:])


def share_bytes(degree: int) -> int:
    """Return the length in bytes of the shares that a client with `degree` neighbours sends."""
    return SEALED_BYTES * degree


def set_bytes(members: int) -> int:
    """Return the length in bytes of a set of members of a roster."""
    return (members + 7) // 8


def inbox_bytes(members: int, degree: int) -> int:
    """Return the length in bytes of the inbox of a client with `degree` neighbours."""
    return set_bytes(members) + SEALED_BYTES * degree


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
    view = exact(body, degree * length, what)
    slots = (bytes(view[start : start + length]) for start in range(0, degree * length, length))
    return tuple(slot if any(slot) else None for slot in slots)


def split_inbox(body: Buffer, members: int, degree: int) -> tuple[bytes, tuple[bytes | None, ...]]:
    """Return the encoded set of sharers and, for each neighbour, a sealed pair of shares or None.

    Raises `CodecError` for another length.
    """
    view = exact(body, inbox_bytes(members, degree), "an inbox")
    edge = set_bytes(members)
    return bytes(view[:edge]), split_slots(view[edge:], degree, SEALED_BYTES, "the shares of an inbox")
