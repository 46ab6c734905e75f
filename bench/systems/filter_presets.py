"""Settings of the graph filters from their authors' code, for the data sets of their papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from client_sdk.training.graph_filters import BSPM, FILTERS, GFCF, Filter, TurboCF
from protocols.errors import ParameterError

__all__ = ["PRESETS", "preset"]


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
on gowalla (docs/results.md)."""

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
