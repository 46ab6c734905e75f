"""Which groups of a cohort a sum is made of, where each group has a sum of its own: those that are near the others.

A cohort is split into groups, so that a client that lies reaches the mean of its own group only. With x_g the mean of
the contributions of group g, c the coordinate-wise median of all x_g and d_g = ||x_g - c||, the groups with
d_g <= tau m are kept, m the median of the d_g. At least half of the groups are.

**What that promises.** Each kept mean is within tau m of c. So if f of the kept groups hold a client that lies, the
mean of the kept groups differs from that of the kept groups that hold none by at most (f / kept) 2 tau m:

    mean(all kept) - mean(honest kept) = (f / kept) (mean(lying kept) - mean(honest kept))

It says nothing of f liars that stay within tau m, each in another group, and nothing of groups that honest data put far
away: they are dropped, too.

Trimmed means of each coordinate are no alternative for sums of matrices: the rare cells of a Gram matrix become zero,
and the matrix of what is left need not be definite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.layout import CLIP_SLACK, Floats

LEAST_GROUPS: Final = 3
"""Groups without which a median has no meaning: of two, neither is nearer."""
_PIECE: Final = 2**16
"""Coordinates of which the median is taken at a time."""


@dataclass(frozen=True)
class KeptGroups:
    """The result of the rule. distances: d_g, by group. median: m. kept: indices of the kept groups, ascending."""

    distances: tuple[float, ...]
    median: float
    kept: tuple[int, ...]

    def deviation(self, lying: int, tau: float) -> float:
        """Return how far the mean of the kept groups can be from that of those without a liar, if `lying` hold one."""
        return min(lying, len(self.kept)) / len(self.kept) * 2.0 * tau * self.median


def keep_groups(means: Sequence[NDArray[np.floating]], tau: float) -> KeptGroups:
    """Return the groups whose means are near the others.

    means: of each group, all of one length. tau: at least 1, how many times the median distance a group may be away.
    Raises `ParameterError` for fewer than `LEAST_GROUPS` groups, other lengths, values that are not finite, and other
    tau.
    """
    if len(means) < LEAST_GROUPS:
        raise ParameterError(f"groups are compared from {LEAST_GROUPS} on, got {len(means)}")
    if not (isfinite(tau) and tau >= 1):
        raise ParameterError(f"tau must be finite and at least 1, or the rule keeps less than half, got {tau}")
    if means[0].ndim != 1 or any(mean.shape != means[0].shape for mean in means):
        raise ParameterError("the means of all groups must be vectors of one length")
    squares = np.zeros(len(means))
    for start in range(0, means[0].size, _PIECE):
        piece = np.array([mean[start : start + _PIECE] for mean in means], np.float64)
        if not np.isfinite(piece).all():
            raise ParameterError("the mean of a group holds a value that is not finite")
        off = piece - np.median(piece, axis=0)
        squares += np.einsum("gi,gi->g", off, off)
    distances = np.sqrt(squares)
    median = float(np.median(distances))
    kept = np.flatnonzero(distances <= tau * median * CLIP_SLACK)
    return KeptGroups(tuple(distances.tolist()), median, tuple(kept.tolist()))


def mean_of_kept(sums: Sequence[NDArray[np.floating]], clients: Sequence[int], kept: Sequence[int]) -> Floats:
    """Return the mean of the clients' contributions over the `kept` groups, each group with equal weight.

    sums: of each group. clients: in each group, at least 1. With groups of equal size it is that of the clients.
    """
    total = np.zeros(sums[0].size)
    for group in kept:
        total += sums[group] / clients[group]
    return np.asarray(total / len(kept))
