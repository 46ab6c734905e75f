"""Reconstruct a client's secret from the shares that its neighbours sent, and find who is at fault when it is wrong.

An owner commits to every share (`shares.commitment`), and an honest neighbour reveals a share only if it matched. So

- a share that does not match its commitment is its holder's fault;
- if t shares that match give another secret than the advertised one, the owner is at fault, because an honest owner
  commits to values of one polynomial. No number of lying holders can produce this: they would have to find another
  share with the same commitment.

A holder that sends no share, or an owner whose sealed shares do not open, cannot be told apart: nobody is named then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final

from protocols.errors import CodecError
from protocols.sums.base import Buffer
from protocols.sums.masked.key_agreement import is_mask_secret, seed_commitment
from protocols.sums.masked.messages import COMMITMENT_BYTES
from protocols.sums.masked.roster import Roster
from protocols.sums.masked.shamir import combine
from protocols.sums.masked.shares import commitment, commitments

__all__ = ["Reconstruction", "commitments_of", "reconstruct"]

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


def commitments_of(roster: Roster, place: int, body: Buffer, survived: bool) -> dict[int, bytes]:
    """Return the commitments to the shares of a survivor's seed, or a dropout's mask key, by place of the holder.

    body: what the client at `place` sent for its neighbours.
    """
    length, kind = COMMITMENT_BYTES, _OF_SEED if survived else _OF_MASK_KEY
    found = commitments(body, roster.degree)
    return {
        holder: found[start : start + length]
        for holder, start in zip(roster.neighbours_of(place), range(kind * length, len(found), 2 * length), strict=True)
    }


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
