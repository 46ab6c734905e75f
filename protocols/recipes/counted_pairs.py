"""P of counted pairs: how many clients have both of two items, scaled, without what lists cannot give.

P = D_i^-b G D_i^-b, G the counts R^T R, none above the smaller of its items' degrees, each divided by the share of the
clients of the degrees that were in its sum, with the degrees on the diagonal. Of the same clients' lists P has no
negative eigenvalue. Clients that are absent from a sum give it some, and so do lies:

- **What is negative is 0.** That adds to the diagonal, so rows are shrunk until it has the degrees again
  (`spectrum.shrunk_rows`), and no entry is above the root of the product of two such.
- **Too much of it is refused**: the sizes of the negative eigenvalues may be `_NEGATIVE`, and the largest share of the
  clients that were absent from a sum, of those of all. And `_ABOVE` of the counts, with all of two items, may be above
  a degree, as those of lists that grow between the sums are: counts without regard to the degrees are nearly all.

Why so much: with 5, 10, 20, 30 and 50 % absent, others in each of two to five sums, the negative eigenvalues had at
most 0.15, 0.14, 0.18, 0.24 and 0.28 of 12 clients of three data sets, and less of more; where all lists had grown by 11
and 25 % since the degrees 0.07 and 0.12, with 0.5 and 1.8 % of the counts above a degree. What one client adds without
regard to the others' lists, and what passes: docs/security.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError
from protocols.layout import Floats
from protocols.recipes.spectrum import Spectrum, shrunk_rows

MOST_CHECKED: Final = 5_000
"""Items up to which eigenvalues are computed with the last sum: 400 MB and 20 s of a core. Members' devices compute
them before they use the model, however many there are."""
_NEGATIVE: Final = 0.15
_ABOVE: Final = 0.05
_ROUNDING: Final = 1e-6  # share of the largest eigenvalue below which one is 0


@dataclass(frozen=True, eq=False)
class Decomposed:
    """P without negative eigenvalues."""

    matrix: Floats
    """float64 (m, m)."""
    values: Floats
    """float64 (m,), ascending; those that were negative may be 0 or what rounding makes of it."""
    vectors: Floats
    """float64 (m, m)."""

    def leading(self, columns: int) -> Spectrum:
        """Return so many of the leading vectors, at most, largest first."""
        values, vectors = self.values[::-1][:columns], self.vectors[:, ::-1][:, :columns]
        return Spectrum(vectors, np.where(values > _ROUNDING * values.max(initial=0.0), values, 0.0))


def scaled(counts: Floats, degrees: Floats, scales: Floats) -> Floats:
    """Return P as it was summed, float64 (m, m).

    counts: the upper triangle of G, float64 (m (m+1) / 2,). degrees, scales: of its items, and D_i^-b, float64 (m,).
    """
    whole = np.zeros((degrees.size, degrees.size))
    whole[np.triu_indices(degrees.size)] = counts
    whole = np.maximum(whole, whole.T)
    whole[np.diag_indices(degrees.size)] = degrees
    whole *= scales[:, None] * scales
    return whole


def require_few_above(pairs: NDArray[np.uint32], within: NDArray[np.uint32]) -> None:
    """Raise `CodecError` if more of the counts than those of lists that grow are above what degrees allow, `within`."""
    above, items = int(np.count_nonzero(pairs > within)), isqrt(2 * pairs.size)
    if above > _ABOVE * pairs.size + 2 * items:
        raise CodecError(
            f"{above:,} of {pairs.size:,} counted pairs are above the degree of an item of theirs: more than those of "
            "lists that grow"
        )


def require_of_lists(values: Floats, absent: float) -> None:
    """Raise `CodecError` for eigenvalues of P, float64 (m,), of which more is negative than clients' lists give.

    absent: the largest share of the clients of the degrees that a sum of counts does not have.
    """
    sizes = float(np.abs(values).sum())
    negative = float(-values[values < 0.0].sum()) / sizes if sizes else 0.0
    if negative > _NEGATIVE + absent:
        raise CodecError(
            f"no lists give the counted pairs: {negative:.0%} of the matrix's eigenvalues is negative, and "
            f"{_NEGATIVE + absent:.0%} at most with {absent:.0%} of the clients absent"
        )


def decomposed(whole: Floats, absent: float) -> Decomposed:
    """Return P without negative eigenvalues from P as it was summed, (m, m); `CodecError`: see `require_of_lists`."""
    values, vectors = np.linalg.eigh(whole)
    require_of_lists(values, absent)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    shrink = shrunk_rows(np.square(factor).sum(axis=1), np.diag(whole))
    if shrink is None:
        return Decomposed(whole, values, vectors)
    factor *= shrink[:, None]
    matrix = factor @ factor.T
    return Decomposed(matrix, *np.linalg.eigh(matrix))
