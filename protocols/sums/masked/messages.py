"""The messages of a masked round: fixed layouts, every length a function of n (members) and k (neighbours).

advertisement   mask key (32), sealing key (32), commitment of the self-mask seed (32), Ed25519 signature (64)
shares          k slots of 82 bytes: what one client sealed for each of its neighbours
inbox           the set of clients that shared, then k slots of 82 bytes: what its neighbours sealed for one client
set             one bit a member of the roster, lowest first; padding is zero
confirmation    Ed25519 signature (64) over round, roster, sharers and survivors
confirmations   k slots of 64 bytes: the confirmations of a client's neighbours
reply           k slots of 33 bytes: one share, or none, for each neighbour

Slots stand in the order of a client's neighbours, which ascends. A slot of zeros is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from protocols.codec import exact
from protocols.errors import CodecError
from protocols.sums.base import Buffer
from protocols.sums.masked.shamir import SHARE_BYTES

__all__ = [
    "ADVERTISEMENT_BYTES",
    "CONFIRMATION_BYTES",
    "KEY_BYTES",
    "SEALED_BYTES",
    "Advertisement",
    "confirmations_bytes",
    "decode_advertisement",
    "decode_set",
    "encode_set",
    "inbox_bytes",
    "join_slots",
    "reply_bytes",
    "set_bytes",
    "share_bytes",
    "split_inbox",
    "split_slots",
]

KEY_BYTES: Final = 32
CONFIRMATION_BYTES: Final = 64
ADVERTISEMENT_BYTES: Final = 3 * KEY_BYTES + 64
SEALED_BYTES: Final = 2 * SHARE_BYTES + 16
"""Two shares and the tag of AES-256-GCM."""


@dataclass(frozen=True)
class Advertisement:
    """The public half of what a client made up for one round, signed with its identity key."""

    mask_key: bytes
    sealing_key: bytes
    commitment: bytes
    signature: bytes

    def encode(self) -> bytes:
        """160 bytes."""
        return self.mask_key + self.sealing_key + self.commitment + self.signature


def decode_advertisement(body: Buffer) -> Advertisement:
    """The parts; `CodecError` for any other length."""
    view = bytes(exact(body, ADVERTISEMENT_BYTES, "an advertisement"))
    return Advertisement(view[:32], view[32:64], view[64:96], view[96:])


def share_bytes(degree: int) -> int:
    """Length of the shares that a client sends."""
    return SEALED_BYTES * degree


def set_bytes(members: int) -> int:
    """Length of a set of members of the roster."""
    return (members + 7) // 8


def inbox_bytes(members: int, degree: int) -> int:
    """Length of what a client is given of the shares."""
    return set_bytes(members) + SEALED_BYTES * degree


def confirmations_bytes(degree: int) -> int:
    """Length of the confirmations that a client is given."""
    return CONFIRMATION_BYTES * degree


def reply_bytes(degree: int) -> int:
    """Length of a reply to an unmask request."""
    return SHARE_BYTES * degree


def encode_set(indices: Iterable[int], members: int) -> bytes:
    """Members by their place in the roster, each below `members`, as bits."""
    bits = np.zeros(members, np.bool_)
    bits[list(indices)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def decode_set(body: Buffer, members: int) -> frozenset[int]:
    """The inverse of `encode_set`; `CodecError` for another length or padding that is not zero."""
    packed = np.frombuffer(exact(body, set_bytes(members), f"a set of {members} members"), np.uint8)
    bits = np.unpackbits(packed, bitorder="little")
    if bits[members:].any():
        raise CodecError("the padding of a set must be zero")
    return frozenset(np.flatnonzero(bits).tolist())


def join_slots(slots: Sequence[bytes | None], length: int) -> bytes:
    """Slots of `length` bytes one after the other, zeros where there is None."""
    return b"".join(bytes(length) if slot is None else slot for slot in slots)


def split_slots(body: Buffer, degree: int, length: int, what: str) -> tuple[bytes | None, ...]:
    """The inverse of `join_slots`; `CodecError` for another length."""
    view = exact(body, degree * length, what)
    slots = (bytes(view[start : start + length]) for start in range(0, degree * length, length))
    return tuple(slot if any(slot) else None for slot in slots)


def split_inbox(body: Buffer, members: int, degree: int) -> tuple[bytes, tuple[bytes | None, ...]]:
    """The set of sharers, still encoded, and a sealed pair of shares, or None, for each neighbour."""
    view = exact(body, inbox_bytes(members, degree), "an inbox")
    edge = set_bytes(members)
    return bytes(view[:edge]), split_slots(view[edge:], degree, SEALED_BYTES, "the shares of an inbox")
