"""Several BSPM filters over one sequence R P, R P^2, ..., because products with P take most of the time.

By linearity, sharpening(y + beta L) = sharpening(y) + beta sharpening(L), and the ideal part L = A (V^T D_i^1/2) has
low rank: it is sharpened once, on K rows instead of on every user. The scores equal those of `BSPM.scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from client_sdk.training.graph_filters import BSPM

__all__ = ["BspmPass"]


@dataclass(eq=False)
class BspmPass:
    """`filters` by name, each with its V. smooth: multiplies (m, n) by P and sets the dtype of the computation."""

    filters: Mapping[str, tuple[BSPM, np.ndarray]]
    smooth: Callable[[np.ndarray], np.ndarray]
    linear: Callable[[csr_array], np.ndarray]
    """Maps rows (users, m) to R P, dense."""
    item_degrees: np.ndarray

    def __post_init__(self) -> None:
        assert all(f.sharpening_steps == 1 and not f.average_points for f, _ in self.filters.values())
        self._roots = np.sqrt(self.item_degrees)
        self._ideals = {name: self._ideal(*chosen) for name, chosen in self.filters.items()}

    def _ideal(self, bspm: BSPM, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(m, K) and (K, m), whose product maps R to its ideal part, sharpened if the filter merges early."""
        kept = vectors[:, : bspm.ideal_dims]
        inverse = np.divide(1, self._roots, out=np.zeros_like(self._roots), where=self._roots > 0)
        left, right = inverse[:, None] * kept, (kept * self._roots[:, None]).astype(vectors.dtype)
        if bspm.early_merge:
            right = self._combined(bspm, self._sequence(right, len(bspm.step_coefficients)))
        return left.astype(vectors.dtype), np.ascontiguousarray(right.T, dtype=vectors.dtype)

    def _sequence(self, signals: np.ndarray, length: int) -> Iterator[np.ndarray]:
        """Y, P Y, P^2 Y, ... of columns (m, n)."""
        for power in range(length):
            if power:
                signals = self.smooth(signals)
            yield signals

    @staticmethod
    def _combined(bspm: BSPM, sequence: Iterator[np.ndarray]) -> np.ndarray:
        return sum(
            np.asarray(c, signals.dtype) * signals for c, signals in zip(bspm.step_coefficients, sequence, strict=False)
        )

    def scores(self, rows: csr_array) -> Iterator[tuple[str, np.ndarray]]:
        """(name, scores (users, m)) of every filter for `rows`."""
        length = max(len(bspm.step_coefficients) for bspm, _ in self.filters.values())
        sequence = list(self._sequence(np.ascontiguousarray(self.linear(rows).T), length))
        for name, (bspm, vectors) in self.filters.items():
            left, right = self._ideals[name]
            sharpened = self._combined(bspm, iter(sequence)).T
            yield name, sharpened + np.asarray(bspm.beta, vectors.dtype) * ((rows.astype(vectors.dtype) @ left) @ right)
