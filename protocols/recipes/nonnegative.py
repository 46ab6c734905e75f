"""The model of `staircase`, corrected by what else is known of P: it is symmetric, and none of its entries is negative.

Nystroem's approximation has entries below 0, most of them of items that occur together in no list. With those set to 0
its sums are no longer those that were released. So these steps are made in turn, `_CORRECTIONS` times (projections on
convex sets: Youla and Webb, IEEE Transactions on Medical Imaging 1982):

1. each row gets the smallest change with which its released sums are right: for row i with columns c,
   C_i = E_i (Q_c^T Q_c)^+ Q_c^T of what is missing, E = Y - P Q; and P + w (C + C^T) / 2 is symmetric, w = 1.5;
2. entries below 0 become 0.

The leading vectors of the result are the model (Rayleigh-Ritz in a block Krylov space of the vectors before:
Halko et al. 2011, section 5.5). Nothing new leaves a device: it is another use of the same sums.

P is held as one matrix of items x items, so this is for as many items and columns as `fits` says.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from protocols.layout import Floats
from protocols.recipes.spectrum import Spectrum, ritz
from protocols.recipes.staircase import Ints, Tier

_MOST_ITEMS: Final = 5_000
"""Items up to which P is corrected: 200 MB."""
_MOST_WORK: Final = 4 * 10**9
"""Largest m^2 M, items and columns of all iterations: a core makes about 40 times as many multiplications in 10 s."""
_CORRECTIONS: Final = 4
_WEIGHT: Final = 1.5  # w; such projections converge for 0 < w < 2
_ROUNDING: Final = 1e-6
_TOGETHER: Final = 512  # rows that are corrected at the same time


def fits(items: int, columns: int) -> bool:
    """Whether the model of so many items and columns, of all iterations, is corrected."""
    return items <= _MOST_ITEMS and items**2 * columns <= _MOST_WORK


def corrected(tiers: list[Tier], asked: Floats, products: Floats, columns: int, model: Spectrum) -> Spectrum:
    """Return the spectrum of the corrected P, largest first, with zeros for missing vectors.

    asked, products, columns: as in `staircase.next_basis`. model: what `staircase.whole_spectrum` returns for them.
    """
    if not model.eigenvalues.any():
        return model
    whole = np.maximum((model.vectors * model.eigenvalues) @ model.vectors.T, 0.0)
    shares, solved = np.zeros_like(asked), _solved(tiers, asked, columns)
    for _ in range(_CORRECTIONS):
        missing = products - whole @ asked
        for rows, own, inverse in solved:
            shares[np.ix_(rows, own)] = _WEIGHT / 2 * missing[np.ix_(rows, own)] @ inverse
        for first in range(0, len(whole), _TOGETHER):
            some = slice(first, first + _TOGETHER)
            whole[some] += shares[some] @ asked.T + asked[some] @ shares.T
            np.maximum(whole[some], 0.0, out=whole[some])
    return _leading(whole, model.vectors[:, model.eigenvalues > 0], asked.shape[1])


def _solved(tiers: list[Tier], asked: Floats, columns: int) -> list[tuple[Ints, Ints, Floats]]:
    """Return which rows have the same columns of all iterations, which these are, and (Q_c^T Q_c)^+ of them."""
    found, own = list[tuple[Ints, Ints, Floats]](), np.zeros(0, np.int64)
    ends = [*(tier.rows for tier in tiers), np.zeros(0, np.int64)]
    for tier, (rows, following) in zip(tiers, pairwise(ends), strict=True):
        own = np.concatenate([own, tier.of_all(columns, asked.shape[1] // columns)])
        gram = asked[:, own].T @ asked[:, own]
        inverse = np.asarray(np.linalg.pinv(gram, rcond=_ROUNDING, hermitian=True), np.float64)
        found.append((np.setdiff1d(rows, following), own, inverse))
    return found


def _leading(whole: Floats, vectors: Floats, count: int) -> Spectrum:
    """Return the leading eigenvectors of P within the span of V, P V and P^2 V for `vectors` V, without directions that
    rounding decides about."""
    blocks = [vectors]
    for _ in range(2):
        product = whole @ blocks[-1]
        blocks.append(product / np.maximum(np.linalg.norm(product, axis=0), np.finfo(float).tiny))
    span, lengths, _ = np.linalg.svd(np.hstack(blocks), full_matrices=False)
    span = span[:, lengths > _ROUNDING * lengths.max(initial=0.0)]
    found = ritz(span, whole @ span)
    kept = min(count, int(np.count_nonzero(found.eigenvalues > _ROUNDING * found.eigenvalues.max(initial=0.0))))
    best, missing = found.vectors[:, :kept], count - kept
    peaks = best[np.abs(best).argmax(axis=0), np.arange(kept)]
    return Spectrum(
        np.pad(best * np.where(peaks < 0, -1.0, 1.0), ((0, 0), (0, missing))),
        np.pad(found.eigenvalues[:kept], (0, missing)),
    )
