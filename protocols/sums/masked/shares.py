"""Shares of a client's two secrets, encrypted from the client to each neighbour.

A client shares its self-mask seed and its mask key (32 bytes each) among its k neighbours and keeps no share itself. A
pair of shares is encrypted with AES-256-GCM under a key for this one message: X25519 between the two sealing keys of
the round, then HKDF bound to round, roster, sender and receiver. The nonce can therefore be fixed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocols.crypto.domain import derive_key, domain_tag
from protocols.sums.masked.key_agreement import agree
from protocols.sums.masked.roster import Roster
from protocols.sums.masked.shamir import SHARE_BYTES, Randomness, split

__all__ = ["SharePair", "open_pair", "point", "seal_pair", "split_secrets"]

_NONCE: Final = bytes(12)


@dataclass(frozen=True, repr=False)
class SharePair:
    """One neighbour's shares of a client's self-mask seed and mask key, 33 bytes each. At most one may be revealed."""

    of_seed: bytes
    of_mask_key: bytes


def point(index: int) -> int:
    """Return the point at which the polynomials are evaluated for the member at place `index`: index + 1."""
    return index + 1


def split_secrets(
    seed: bytes, mask_secret: bytes, threshold: int, neighbours: Sequence[int], random: Randomness = os.urandom
) -> list[SharePair]:
    """Return a pair of shares for each of `neighbours` (places in the roster), any `threshold` of which reconstruct."""
    points = [point(index) for index in neighbours]
    of_seed = split(seed, threshold, points, random)
    of_mask_key = split(mask_secret, threshold, points, random)
    return [SharePair(*pair) for pair in zip(of_seed, of_mask_key, strict=True)]


def _cipher(shared: bytes, roster: Roster, sender: int, receiver: int) -> tuple[AESGCM, bytes]:
    """Return the cipher of the one message from `sender` to `receiver`, and its associated data."""
    bound = (roster.digest, sender, receiver)
    return AESGCM(derive_key(shared, "masked share", *bound)), domain_tag("masked share", *bound)


def seal_pair(pair: SharePair, secret: X25519PrivateKey, roster: Roster, sender: int, receiver: int) -> bytes:
    """Return the pair encrypted for `receiver`, 82 bytes; `secret` is the sender's sealing key."""
    shared = agree(secret, roster.entries[receiver].advertised.sealing_key)
    cipher, associated = _cipher(shared, roster, sender, receiver)
    return cipher.encrypt(_NONCE, pair.of_seed + pair.of_mask_key, associated)


def open_pair(sealed: bytes, secret: X25519PrivateKey, roster: Roster, sender: int, receiver: int) -> SharePair | None:
    """Return the pair that `sender` encrypted for `receiver`, or None if decryption fails.

    secret: the receiver's sealing key.
    """
    shared = agree(secret, roster.entries[sender].advertised.sealing_key)
    cipher, associated = _cipher(shared, roster, sender, receiver)
    try:
        plain = cipher.decrypt(_NONCE, sealed, associated)
    except InvalidTag:
        return None
    return SharePair(plain[:SHARE_BYTES], plain[SHARE_BYTES:])
