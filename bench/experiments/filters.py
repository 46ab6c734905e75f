"""Several BSPM filters over one sequence R P, R P^2, ..., because products with P take most of the time.

By linearity, sharpening(y + beta L) = sharpening(y) + beta sharpening(L), and the ideal part L = A (V^T D_i^1/2) has
low rank: it is sharpened once, on K rows instead of on every user. The scores equal those of `BSPM.scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from client_sdk.training.graph_filters import BSPM, FILTERS, GFCF, Filter, TurboCF
from protocols.errors import ParameterError

__all__ = ["PRESETS", "BspmPass", "preset"]


# --- Settings of the graph filters from their authors' code, for the data sets of their papers


_GF_CF_PRESETS: Final[Mapping[str, GFCF]] = {"amazon-book": GFCF(alpha=0.0)}
"""Settings of the released code for data sets that differ from the defaults."""

_TURBO_CF_PRESETS: Final[Mapping[str, TurboCF]] = {
    "gowalla": TurboCF(user_exponent=0.6, power=0.7, filter=1),
    "yelp2018": TurboCF(user_exponent=0.6, power=1.0, filter=2),
    "amazon-book": TurboCF(user_exponent=0.5, power=1.4, filter=1),
}
"""Settings of the released code, by data set."""

_GOWALLA: Final = BSPM(early_merge=True, solver="rk4", sharpening_time=2.5, beta=0.2, ideal_dims=448)
_YELP: Final = BSPM(early_merge=True, sharpening_time=1.2, beta=0.3, ideal_dims=384, average_points=True)
_AMAZON: Final = BSPM(early_merge=False, solver="rk4", sharpening_time=2.2, sharpening_steps=2, beta=0.0)

_BSPM_EM_PRESETS: Final[Mapping[str, BSPM]] = {
    "amazon-book": replace(_AMAZON, early_merge=True),
    "gowalla": _GOWALLA,
    "yelp2018": _YELP,
}
"""Settings of the released code, by data set. On amazon-book both variants are the same, because beta is 0."""

_BSPM_LM_PRESETS: Final[Mapping[str, BSPM]] = {
    "amazon-book": _AMAZON,
    "gowalla": replace(_GOWALLA, early_merge=False),
    "yelp2018": replace(_YELP, early_merge=False),
}
"""amazon-book: of the released code. gowalla and yelp2018: not published; those of early merge give the paper's figure
on gowalla (docs/fidelity.md)."""

_PRESETS: Final[Mapping[str, Mapping[str, Filter]]] = {
    "bspm-em": _BSPM_EM_PRESETS,
    "bspm-lm": _BSPM_LM_PRESETS,
    "gf-cf": _GF_CF_PRESETS,
    "turbo-cf": _TURBO_CF_PRESETS,
}


PRESETS: Final = ("amazon-book", "gowalla", "yelp2018")
"""Data sets for which there are published settings."""


def preset(name: str, dataset: str) -> Filter:
    """Return the filter `name` with its settings for `dataset`, or with its defaults if there are none.

    Raises `ParameterError` for an unknown filter.
    """
    if name not in FILTERS:
        raise ParameterError(f"unknown graph filter {name!r}: choose one of {', '.join(sorted(FILTERS))}")
    return _PRESETS.get(name, {}).get(dataset, FILTERS[name])


# ---


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
