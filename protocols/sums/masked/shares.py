"""Shares of a client's two secrets, encrypted from the client to each neighbour.

A client shares its self-mask seed and its mask key (32 bytes each) among its k neighbours and keeps no share itself. A
pair of shares is encrypted with AES-256-GCM under a key for this one message: X25519 between the two sealing keys of
the round, then HKDF bound to round, roster, sender and receiver. The nonce can therefore be fixed.

A commitment to each share is sent beside it, in clear: a hash of the share, which is a random field element unless t
shares are known. A neighbour ignores a pair that does not match. So a share that it reveals later and that does not
match is its own fault, and when t shares that match give another secret than the advertised one, their owner is at
fault. Neither can be blamed for what the other did.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocols.crypto.domain import derive_key, digest, domain_tag
from protocols.sums.base import Buffer
from protocols.sums.masked.key_agreement import agree
from protocols.sums.masked.messages import COMMITMENT_BYTES, SEALED_BYTES
from protocols.sums.masked.roster import Roster
from protocols.sums.masked.shamir import SHARE_BYTES, Randomness, split

__all__ = ["SharePair", "commitment", "commitments", "open_pair", "point", "seal_pair", "split_secrets"]

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
    """Return the pair encrypted for `receiver`, and commitments to its shares: 114 bytes.

    secret: the sender's sealing key.
    """
    shared = agree(secret, roster.entries[receiver].advertised.sealing_key)
    cipher, associated = _cipher(shared, roster, sender, receiver)
    sealed = cipher.encrypt(_NONCE, pair.of_seed + pair.of_mask_key, associated)
    return sealed + _committed(pair, roster, sender, receiver)


def _committed(pair: SharePair, roster: Roster, sender: int, receiver: int) -> bytes:
    pair_in_order = (pair.of_seed, pair.of_mask_key)
    return b"".join(commitment(roster, sender, receiver, kind, share) for kind, share in enumerate(pair_in_order))


def commitment(roster: Roster, owner: int, holder: int, kind: int, share: bytes) -> bytes:
    """Return the commitment (16 bytes) to a share of the secret of `owner` (place in the roster) held by `holder`.

    kind: 0 for a share of the self-mask seed, 1 of the mask key. To find another share with the same commitment takes
    2^128 steps.
    """
    return digest("masked share commitment", roster.digest, owner, holder, kind, share)[:COMMITMENT_BYTES]


def commitments(body: Buffer, degree: int) -> bytes:
    """Return the commitments in the shares of a client, `share_bytes(degree)` bytes: 32 bytes for each neighbour."""
    slots = np.frombuffer(body, np.uint8).reshape(degree, SEALED_BYTES)
    return slots[:, -2 * COMMITMENT_BYTES :].tobytes()


def open_pair(sealed: bytes, secret: X25519PrivateKey, roster: Roster, sender: int, receiver: int) -> SharePair | None:
    """Return the pair that `sender` encrypted for `receiver`; None if decryption fails or a commitment does not match.

    secret: the receiver's sealing key.
    """
    shared = agree(secret, roster.entries[sender].advertised.sealing_key)
    cipher, associated = _cipher(shared, roster, sender, receiver)
    try:
        plain = cipher.decrypt(_NONCE, sealed[: -2 * COMMITMENT_BYTES], associated)
    except InvalidTag:
        return None
    pair = SharePair(plain[:SHARE_BYTES], plain[SHARE_BYTES:])
    matches = compare_digest(sealed[-2 * COMMITMENT_BYTES :], _committed(pair, roster, sender, receiver))
    return pair if matches else None
