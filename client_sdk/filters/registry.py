"""The graph filters by name, with settings for data sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from client_sdk.filters.bspm import BSPM, BSPM_EM_PRESETS, BSPM_LM_PRESETS
from client_sdk.filters.components import Components
from client_sdk.filters.ease import Ease
from client_sdk.filters.gf_cf import GF_CF_PRESETS, GFCF
from client_sdk.filters.turbo_cf import TURBO_CF_PRESETS, TurboCF
from protocols.errors import ParameterError

__all__ = ["FILTERS", "PRESETS", "Filter", "preset"]


class Filter(Protocol):
    """Computes the scores of users from aggregated components and the users' rows, without training."""

    @property
    def needs_gram(self) -> bool:
        """Whether the filter needs the Gram matrix, and not just the factors of PriviRec-k."""
        ...

    @property
    def user_exponent(self) -> float | None:
        """The exponent a that the components must have, with b = 1 - a; None for any exponents."""
        ...

    def scores(self, components: Components, rows: csr_array[Any, Any]) -> NDArray[np.float32]:
        """Return the scores of all items for binary `rows` (users, m), float32 (users, m).

        Raises `ParameterError` if rows or components do not match the filter.
        """
        ...


FILTERS: Final[Mapping[str, Filter]] = {
    "bspm-em": BSPM(early_merge=True),
    "bspm-lm": BSPM(early_merge=False),
    "ease": Ease(),
    "gf-cf": GFCF(),
    "turbo-cf": TurboCF(),
}
"""All filters by name, with the defaults of the released code; `ease` with `chosen_weight`."""

_PRESETS: Final[Mapping[str, Mapping[str, Filter]]] = {
    "bspm-em": BSPM_EM_PRESETS,
    "bspm-lm": BSPM_LM_PRESETS,
    "gf-cf": GF_CF_PRESETS,
    "turbo-cf": TURBO_CF_PRESETS,
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
