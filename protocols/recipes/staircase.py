"""Products Y = P Q of which some rows have fewer columns than others: which there are, and the spectrum from them.

Row i of Y has its first `widths[i]` columns only. Columns that equally many rows have are a *tier*, and its columns of
Q are 0 outside its rows S: so its part of Y is P_SS Q_S, and Q^T Y is known for all columns. The rows of a tier are
among those of the tier before it.

The model is Nystroem's approximation, one tier after the other: with F the factor of the tiers before,

    P_SS - F_S F_S^T ~ Z (Q^T Z)^+ Z^T,    Z = Y_S - F_S (F^T Q)    in the tier's columns of all iterations,

where the left side has no negative eigenvalue, because each approximation is below what it approximates,

and each iteration after the first asks for directions of what the tiers before do not explain. Where all rows have all
columns there is one tier, and this is the block Krylov method of `protocols.recipes.privirec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError
from protocols.layout import Floats
from protocols.recipes.spectrum import (
    Spectrum,
    gaussian,
    iterate,
    nystroem_factor,
    of_factor,
    orthonormal,
    outside,
)

Ints = NDArray[np.int64]
_ROUNDED: Final = 0.02
"""Share of Q^T Y that may be off: many equal lists have equal errors, which deviations leave out."""
_DEVIATIONS: Final = 3.0
"""Of what independent errors add up to; honest sums of four data sets were off by half of what both allow, or less."""


@dataclass(frozen=True, eq=False)
class Tier:
    """Columns `first` to `last` - 1 of each iteration, and the rows that have them, int64 (any,), ascending."""

    rows: Ints
    first: int
    last: int

    def of_all(self, columns: int, iterations: int) -> Ints:
        """Return its columns among those of so many iterations of `columns` each, side by side, int64 (any,)."""
        return np.concatenate([np.arange(self.first, self.last) + columns * each for each in range(iterations)])


def tiers_of(widths: Ints) -> list[Tier]:
    """Return the tiers, those of most rows first. widths: of each row, int64 (m,)."""
    edges = [0, *np.unique(widths[widths > 0]).tolist()]
    return [
        Tier(np.flatnonzero(widths >= last), first, last) for first, last in zip(edges[:-1], edges[1:], strict=True)
    ]


def places_of(widths: Ints, starts: Ints | None = None) -> tuple[NDArray[np.bool_], Ints]:
    """Return which entries the rows have, bool (m, K), and where in a vector of all of them each is, int64 (any,).

    K is the largest width. starts: of each row, int64 (m,); None: one row after the other.
    """
    starts = np.cumsum(widths) - widths if starts is None else starts
    columns = np.arange(widths.max(initial=0))
    has = columns < widths[:, None]
    return has, (starts[:, None] + columns)[has]


def require_of_rows(tiers: list[Tier], basis: Floats, product: Floats, deviations: Floats) -> None:
    """Raise `CodecError` unless the sum Y of an iteration can be P Q for a P = sum_u r_u^T r_u.

    basis, product: Q and Y, float64 (m, K). deviations: of what noise and encoding add to each value of a row of Y,
    float64 (m,). In the rows of a tier Q^T Y is Q^T P Q: symmetric, and without negative eigenvalues, whoever is
    absent. What one member adds without regard to Q is neither, where a tier has more than a few columns: a Gaussian of
    its own is as far from symmetric as it is large. (A single column has only its sign.)
    """
    for number, tier in enumerate(tiers):
        own = slice(tier.first, tier.last)
        columns = basis[tier.rows, own]
        small = columns.T @ product[tier.rows, own]
        values, vectors = np.linalg.eigh((small + small.T) / 2)
        nearest = (vectors * np.maximum(values, 0.0)) @ vectors.T
        # the errors of a column are independent, and each of Q^T Y's is a sum of them with the entries of Q
        expected = float(np.sqrt(len(small) * (np.square(columns).sum(1) @ np.square(deviations[tier.rows]))))
        allowed = _ROUNDED * float(np.linalg.norm(small)) + _DEVIATIONS * (1.0 + 1.0 / len(small)) * expected
        if float(np.linalg.norm(small - nearest)) > allowed:
            raise CodecError(
                f"a sum of an iteration is no product with a matrix that clients' rows give: Q^T Y of tier {number} is "
                "not symmetric without negative eigenvalues"
            )


def first_basis(seed: bytes, tiers: list[Tier], items: int, columns: int, lengths: Floats | None) -> Floats:
    """Return Q_0, float64 (items, columns), with orthonormal columns within each tier, 0 outside its rows.

    seed, lengths: see `gaussian`.
    """
    drawn, basis = gaussian(seed, items, columns, lengths), np.zeros((items, columns))
    for tier in tiers:
        basis[tier.rows, tier.first : tier.last] = orthonormal(drawn[tier.rows, tier.first : tier.last])
    return basis


def next_basis(tiers: list[Tier], asked: Floats, products: Floats, columns: int) -> tuple[Spectrum, Floats]:
    """Return the spectrum of each tier's last answers, float64 (m, K) and (K,), and the next Q, float64 (m, K).

    asked, products: all Q and all Y so far, side by side, float64 (m, t K); K is `columns`.
    """
    vectors, basis, values = np.zeros((len(asked), columns)), np.zeros((len(asked), columns)), np.zeros(columns)
    for tier, (own, rest, _) in zip(tiers, _explained(tiers, asked, products, columns), strict=True):
        found = iterate(rest[:, tier.first - tier.last :])
        vectors[tier.rows, tier.first : tier.last] = found.vectors
        values[tier.first : tier.last] = found.eigenvalues
        basis[tier.rows, tier.first : tier.last] = outside(own, found.vectors)
    return Spectrum(vectors, values), basis


def whole_spectrum(tiers: list[Tier], asked: Floats, products: Floats, columns: int) -> Spectrum:
    """Return the spectrum of the model, largest first; arguments as in `next_basis`. Missing vectors are 0."""
    factors = []
    for tier, (_, _, factor) in zip(tiers, _explained(tiers, asked, products, columns), strict=True):
        factors.append(np.zeros((len(asked), factor.shape[1])))
        factors[-1][tier.rows] = factor
    return of_factor(np.hstack(factors), asked.shape[1])


def _explained(tiers: list[Tier], asked: Floats, products: Floats, columns: int) -> list[tuple[Floats, Floats, Floats]]:
    """Return for each tier, in its rows, its Q, its Z, and the factor of what they explain."""
    found, before = list[tuple[Floats, Floats, Floats]](), np.zeros((len(asked), 0))
    for tier in tiers:
        places = tier.of_all(columns, asked.shape[1] // columns)
        whole = asked[:, places]
        rest = products[np.ix_(tier.rows, places)] - before[tier.rows] @ (before.T @ whole)
        factor = nystroem_factor(whole[tier.rows], rest)
        found.append((whole[tier.rows], rest, factor))
        more = np.zeros((len(asked), factor.shape[1]))
        more[tier.rows] = factor
        before = np.hstack([before, more])
    return found
