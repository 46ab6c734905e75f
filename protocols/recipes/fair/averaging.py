"""The server's averaging step for one item table, once every device group's sum is in.

Desai et al. (2023), Algorithm 1, the server's update. Group c holds psi_c = projection of theta onto its space (eq. 4),
sends D_c = sum of w_i delta_i with W_c = sum of w_i, and S_c is recovery from its space (eq. 5). With W = sum of W_c:

    replace (paper)    theta <- sum_c S_c (W_c psi_c + D_c) / W
    add                theta <- theta + sum_c S_c D_c / W

Spaces are nested (eq. 7): the vectors of all hashed groups are added up in the largest hashed space and recovered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protocols.recipes.fair.subspaces import Subspace, chunks, fold, means, unfold

__all__ = ["GroupSum", "Mixing", "average_table"]

Mixing = Literal["replace", "add"]


@dataclass(frozen=True, eq=False)
class GroupSum:
    """The sum of one device group's contributions to one item table.

    weight: W_c. change: D_c, float64 (m_c,), m_c the buckets of the group's space; m_c = n where nothing is hashed.
    """

    weight: float
    change: NDArray[np.float64]


def average_table(
    theta: NDArray[np.float32], key: int, groups: Sequence[GroupSum], mixing: Mixing, out: NDArray[np.float32]
) -> None:
    """Write the table that follows `theta` (n,) into `out`, float32 (n,).

    key: of the table's hash, see `protocols.recipes.fair.subspaces.hash_key`. groups: one per device group, largest
    space first, with a positive total weight.
    """
    total_weight = sum(group.weight for group in groups)  # W
    whole = next((group for group in groups if group.change.size == theta.size), None)  # S_c is the identity
    hashed = [group for group in groups if group is not whole]
    replaced_weight = whole.weight if whole else 0.0  # a whole group's psi_c is theta; see _hashed_sum for the others
    theta_weight = total_weight if mixing == "add" else replaced_weight
    hashed_sum = _hashed_sum(theta, key, hashed, mixing) if hashed else None
    for part in chunks(theta.size):
        numerator = theta_weight * theta[part].astype(np.float64)
        if whole:
            numerator += whole.change[part]
        if hashed_sum:
            numerator += hashed_sum.space.recover(hashed_sum.values, part)  # eq. 5
        out[part] = numerator / total_weight


@dataclass(frozen=True, eq=False)
class _HashedSum:
    """A vector in a hashed space: values float64 (space.buckets,)."""

    space: Subspace
    values: NDArray[np.float64]


def _hashed_sum(theta: NDArray[np.float32], key: int, hashed: Sequence[GroupSum], mixing: Mixing) -> _HashedSum:
    """The sum over the hashed groups of W_c psi_c + D_c (mixing "add": of D_c), in the largest of their spaces."""
    space = Subspace(theta.size, hashed[0].change.size, key)
    values = np.zeros(space.buckets)
    for group in hashed:
        values += unfold(group.change, space.buckets)
    if mixing == "replace":
        signed_sums, counts = space.sums(theta), space.counts()
        for group in hashed:
            buckets = group.change.size
            psi = means(fold(signed_sums, buckets), fold(counts, buckets))  # eq. 4, by eq. 7 from the largest space
            values += unfold(group.weight * psi.astype(np.float64), space.buckets)
    return _HashedSum(space, values)
