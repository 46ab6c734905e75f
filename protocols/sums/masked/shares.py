"""What a client seals for its neighbours: shares of its two secrets, and the secrets of pairs; who is at fault.

A client shares its self-mask seed and the seed of its mask key (32 bytes each) among its k neighbours and keeps no
share itself. A pair of shares is sealed to the neighbour's sealing key of the round, bound to round, roster, sender and
receiver. To the mask key of each neighbour that is later in the roster it seals the secret of their common mask.

A commitment to each share is sent beside it, in clear: a hash of the share, which is a random field element unless t
shares are known. A neighbour ignores a pair that does not match, and reveals a share only if it matched. So

- a share that does not match its commitment is its holder's fault;
- if t shares that match give another secret than the advertised one, the owner is at fault, because an honest owner
  commits to values of one polynomial. No number of lying holders can produce this: they would have to find another
  share with the same commitment.

A holder that sends no share, or an owner whose sealed shares do not open, cannot be told apart: nobody is named then.

The secret of a pair has a commitment, too. A neighbour for which it does not open, or does not match, leaves the round:
it cannot add the mask that the sender adds. The server then reconstructs that neighbour's mask key, and sees who lied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keys import KEY_BYTES, digest
from protocols.crypto.random import Randomness
from protocols.crypto.sealing import SealingKey, agreement_key, seal
from protocols.errors import CodecError
from protocols.sums.base import Buffer
from protocols.sums.masked.masks import is_mask_secret, pair_secret, seed_commitment
from protocols.sums.masked.roster import Roster
from protocols.sums.masked.shamir import SHARE_BYTES, combine, split
from protocols.sums.masked.wire import COMMITMENT_BYTES, PAIR_BYTES, SEALED_BYTES

_PURPOSE: Final = "masked share"


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


def seal_pair(pair: SharePair, secret: SealingKey, roster: Roster, sender: int, receiver: int) -> bytes:
    """Return the pair sealed for `receiver`, and commitments to its shares: 1,202 bytes.

    secret: the sender's sealing key.
    """
    key, plain = roster.entries[receiver].advertised.sealing_key, pair.of_seed + pair.of_mask_key
    sealed = seal(secret.agreement, key, plain, _PURPOSE, roster.digest, sender, receiver)
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


def open_pair(sealed: bytes, secret: SealingKey, roster: Roster, sender: int, receiver: int) -> SharePair | None:
    """Return the pair that `sender` sealed for `receiver`; None if it does not open or a commitment does not match.

    secret: the receiver's sealing key.
    """
    key = agreement_key(roster.entries[sender].advertised.sealing_key)
    try:
        plain = secret.open(key, sealed[: -2 * COMMITMENT_BYTES], _PURPOSE, roster.digest, sender, receiver)
    except CodecError:
        return None
    pair = SharePair(plain[:SHARE_BYTES], plain[SHARE_BYTES:])
    matches = compare_digest(sealed[-2 * COMMITMENT_BYTES :], _committed(pair, roster, sender, receiver))
    return pair if matches else None


_OF_PAIR: Final = "masked pair secret"


def seal_pair_secret(mask_secret: SealingKey, roster: Roster, sender: int, receiver: int) -> bytes:
    """Return the secret of two members' mask sealed for `receiver`, the later one, and a commitment: 1,152 bytes.

    mask_secret: the sender's mask key.
    """
    secret = pair_secret(mask_secret.seed, roster.digest, sender, receiver)
    key = roster.entries[receiver].advertised.mask_key
    sealed = seal(mask_secret.agreement, key, secret, _OF_PAIR, roster.digest, sender, receiver)
    return sealed + pair_commitment(roster, sender, receiver, secret)


def open_pair_secret(
    sealed: bytes, mask_secret: SealingKey, roster: Roster, sender: int, receiver: int
) -> bytes | None:
    """Return the secret that `sender` sealed for `receiver`; None if it does not open or match its commitment.

    mask_secret: the receiver's mask key.
    """
    key = agreement_key(roster.entries[sender].advertised.mask_key)
    try:
        secret = mask_secret.open(key, sealed[:-COMMITMENT_BYTES], _OF_PAIR, roster.digest, sender, receiver)
    except CodecError:
        return None
    committed = pair_commitment(roster, sender, receiver, secret)
    is_whole = len(secret) == KEY_BYTES and compare_digest(sealed[-COMMITMENT_BYTES:], committed)
    return secret if is_whole else None


def pair_commitment(roster: Roster, sender: int, receiver: int, secret: bytes) -> bytes:
    """Return the commitment (16 bytes) to the secret of the mask of two members."""
    return digest("masked pair commitment", roster.digest, sender, receiver, secret)[:COMMITMENT_BYTES]


def sealed_pair_secret(roster: Roster, body: Buffer, sender: int, receiver: int) -> bytes:
    """Return the slot of a pair's secret in `body`, what the client at place `sender` sent for its neighbours."""
    start = SEALED_BYTES * roster.degree + PAIR_BYTES * roster.later(sender).index(receiver)
    return bytes(memoryview(body)[start : start + PAIR_BYTES])


_OF_SEED: Final = 0
_OF_MASK_KEY: Final = 1


@dataclass(frozen=True)
class Reconstruction:
    """A secret, or None; the Shamir points whose shares are wrong; whether the owner is at fault.

    Without a secret and an owner at fault, wrong shares left fewer than t.
    """

    secret: bytes | None = field(repr=False)
    wrong: frozenset[int] = frozenset()
    owner_lied: bool = False


def commitments_of(roster: Roster, body: Buffer, survived: bool) -> NDArray[np.uint8]:
    """Return the commitments to the shares of a survivor's seed, or a dropout's mask key: (k, 16), by holder.

    body: what that client sent for its neighbours.
    """
    kind = _OF_SEED if survived else _OF_MASK_KEY
    first = SEALED_BYTES - (2 - kind) * COMMITMENT_BYTES
    slots = np.frombuffer(body, np.uint8, roster.degree * SEALED_BYTES).reshape(roster.degree, SEALED_BYTES)
    return slots[:, first : first + COMMITMENT_BYTES].copy()  # the rest of the message is not kept


def reconstruct(
    roster: Roster, place: int, shares: Mapping[int, tuple[bytes, bytes]], survived: bool, liars: Collection[int]
) -> Reconstruction:
    """Return the seed (survived) or mask key of the client at `place`.

    shares: holder's point -> its share and the commitment to it, at least t. liars: points whose other shares were
    wrong; theirs are
    used last. Costs at most two interpolations from t shares, and one hash for each share.
    """
    threshold, advertised = roster.threshold, roster.entries[place].advertised

    def fits(secret: bytes) -> bool:
        if survived:
            return compare_digest(seed_commitment(secret), advertised.commitment)
        return is_mask_secret(secret, advertised.mask_key)

    honest = sorted(point for point in shares if point not in liars)[:threshold]
    if len(honest) == threshold:
        secret = _fitting({point: shares[point][0] for point in honest}, threshold, fits)
        if secret is not None:
            return Reconstruction(secret)
    kind = _OF_SEED if survived else _OF_MASK_KEY
    matching = {
        point: share
        for point, (share, committed) in shares.items()
        if compare_digest(commitment(roster, place, point - 1, kind, share), committed)
    }
    wrong = frozenset(shares.keys() - matching.keys())
    if len(matching) < threshold:
        return Reconstruction(None, wrong)
    secret = _fitting(matching, threshold, fits)
    return Reconstruction(secret, wrong, owner_lied=secret is None)


def _fitting(shares: Mapping[int, bytes], threshold: int, fits: Callable[[bytes], bool]) -> bytes | None:
    """Return the secret of the `threshold` shares with the lowest points if it is the advertised one."""
    try:
        secret = combine(shares, threshold)
    except CodecError:
        return None
    return secret if fits(secret) else None
