"""Graph filters by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from client_sdk.filters.bspm import BSPM, BSPM_EM_PRESETS, BSPM_LM_PRESETS
from client_sdk.filters.components import Components
from client_sdk.filters.gf_cf import GF_CF_PRESETS, GFCF
from client_sdk.filters.turbo_cf import TURBO_CF_PRESETS, TurboCF
from protocols.errors import ParameterError

__all__ = ["FILTERS", "Filter", "preset"]


class Filter(Protocol):
    """Aggregated components and a user's own row in, that user's scores out; nothing is trained."""

    @property
    def needs_gram(self) -> bool:
        """Whether PriviRec-k's factors cannot stand in for the Gram matrix."""
        ...

    @property
    def user_exponent(self) -> float:
        """a of the components that it takes."""
        ...

    def scores(self, components: Components, rows: csr_array[Any, Any]) -> NDArray[np.float32]:
        """Scores of all items, float32 (users, m), for binary `rows` (users, m)."""
        ...


FILTERS: Final[Mapping[str, Filter]] = {
    "bspm-em": BSPM(early_merge=True),
    "bspm-lm": BSPM(early_merge=False),
    "gf-cf": GFCF(),
    "turbo-cf": TurboCF(),
}
"""Every filter by name, with the released code's defaults."""

_PRESETS: Final[Mapping[str, Mapping[str, Filter]]] = {
    "bspm-em": BSPM_EM_PRESETS,
    "bspm-lm": BSPM_LM_PRESETS,
    "gf-cf": GF_CF_PRESETS,
    "turbo-cf": TURBO_CF_PRESETS,
}


def preset(name: str, dataset: str) -> Filter:
    """The filter `name` as tuned for `dataset`, or with its defaults. Raises `ParameterError` for an unknown name."""
    if name not in FILTERS:
        raise ParameterError(f"no graph filter is called {name!r}: there are {', '.join(sorted(FILTERS))}")
    return _PRESETS[name].get(dataset, FILTERS[name])
