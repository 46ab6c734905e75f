"""Shares of a client's two secrets, sealed from one neighbour to another, and the secrets put together again.

A client shares its self-mask seed and its mask key (32 bytes each) among its k neighbours; it holds no share of its
own. A pair of shares travels under AES-256-GCM with a key that serves for this one message: X25519 between the two
sealing keys of the round, HKDF bound to round, roster, sender and receiver. So the nonce can be fixed.
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
    """One neighbour's shares of another's self-mask seed and mask key, 33 bytes each. At most one is ever shown."""

    of_seed: bytes
    of_mask_key: bytes


def point(index: int) -> int:
    """Where the polynomials are evaluated for a member of the roster."""
    return index + 1


def split_secrets(
    seed: bytes, mask_secret: bytes, threshold: int, neighbours: Sequence[int], random: Randomness = os.urandom
) -> list[SharePair]:
    """A pair of shares for each neighbour (places in the roster)."""
    points = [point(index) for index in neighbours]
    of_seed = split(seed, threshold, points, random)
    of_mask_key = split(mask_secret, threshold, points, random)
    return [SharePair(*pair) for pair in zip(of_seed, of_mask_key, strict=True)]


def _cipher(shared: bytes, roster: Roster, sender: int, receiver: int) -> tuple[AESGCM, bytes]:
    """The cipher of one message from `sender` to `receiver`, and the data that it authenticates."""
    bound = (roster.digest, sender, receiver)
    return AESGCM(derive_key(shared, "masked share", *bound)), domain_tag("masked share", *bound)


def seal_pair(pair: SharePair, secret: X25519PrivateKey, roster: Roster, sender: int, receiver: int) -> bytes:
    """82 bytes that `receiver` alone can open; `secret` is the sender's sealing key."""
    shared = agree(secret, roster.entries[receiver].advertised.sealing_key)
    cipher, associated = _cipher(shared, roster, sender, receiver)
    return cipher.encrypt(_NONCE, pair.of_seed + pair.of_mask_key, associated)


def open_pair(sealed: bytes, secret: X25519PrivateKey, roster: Roster, sender: int, receiver: int) -> SharePair | None:
    """What `sender` sealed for `receiver`, whose sealing key is `secret`; None when it does not open."""
    shared = agree(secret, roster.entries[sender].advertised.sealing_key)
    cipher, associated = _cipher(shared, roster, sender, receiver)
    try:
        plain = cipher.decrypt(_NONCE, sealed, associated)
    except InvalidTag:
        return None
    return SharePair(plain[:SHARE_BYTES], plain[SHARE_BYTES:])
