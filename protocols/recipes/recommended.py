"""Recommended parameters of new tasks, chosen by bench/experiments/quality.py, and those of the papers.

A stored task means what its parameters say, and a parameter that it leaves out keeps the paper's value. Recommended
values are therefore written into a task's parameters when the task is made, where clients read and check them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

__all__ = [
    "MESSAGE_BUDGET",
    "MOST_COMPONENTS",
    "MOST_FACTORS",
    "PAPER",
    "RECOMMENDED",
    "STARTED",
    "Variant",
    "components_within",
    "parameters_for",
]

Variant = Literal["recommended", "paper"]
"""Which values a new task has where its maker names none: the recommended ones, or those of the paper."""

_FACTORS: Final[Mapping[str, Any]] = {"item_bias": "counts", "count_sums": 1, "batch_size": 32, "weight_decay": 0.005}

MESSAGE_BUDGET: Final = 10_000_000
"""Bytes of a client's longest message of a `privirec-k` task, unless its maker says otherwise; 4 bytes a value."""
MOST_COMPONENTS: Final = 256
MOST_FACTORS: Final = 128
"""Factors of a started task at most: 256 were no better on validation rows, 64 worse (docs/evaluation.md)."""

_SPECTRUM: Final[Mapping[str, Any]] = {"rayleigh_ritz": True, "user_exponent": 0.25, "item_exponent": 0.3125}

RECOMMENDED: Final[Mapping[str, Mapping[str, Any]]] = {
    "colr": _FACTORS,
    "fedmf": {**_FACTORS, "server_rate": 4.0},
    "privirec": _SPECTRUM,
    "privirec-k": _SPECTRUM,
    "rfrec": {"item_bias": "means", "learning_rate": 0.03, "penalty": 0.3, "user_penalty": 3.0},
    "scolr": _FACTORS,
}
"""Recipe -> its recommended parameters. A recipe that is not listed has its paper's."""

_TOUCHED: Final[Mapping[str, Any]] = {"normalise": "touched", "reveal_touched": True}

PAPER: Final[Mapping[str, Mapping[str, Any]]] = {
    **dict.fromkeys(("colr", "fedmf", "scolr", "svd", "topk"), _TOUCHED),
    "fair": {"max_interactions": 10_000, "reveal_weights": True},
    "pfedclr": {"max_interactions": 1000, "reveal_weights": True},
}
"""Recipe -> the parameters of its paper or its released code that reveal constants of clients, so are not defaults."""

_STARTED: Final[Mapping[str, Any]] = {"item_bias": "counts", "learning_rate": 0.0001, "start_weight": 32.0}

STARTED: Final[Mapping[str, Mapping[str, Any]]] = {
    "colr": _STARTED,
    "fedmf": {**_STARTED, "server_rate": 1.0},
    "pfedclr": {
        "item_bias": "counts",
        "start_weight": 32.0,
        "learning_rate": 0.001,
        "buffer_learning_rate": 0.0005,
        "epochs": 2,
    },
    "scolr": _STARTED,
}
"""Recipe -> what a task has besides, or instead, if it starts from a spectrum.

The steps are small because user factors are long (`start_weight`): docs/evaluation.md has what was measured.
"""


def components_within(items: int, budget: int = MESSAGE_BUDGET) -> int:
    """Return how many vectors of so many items fit in `budget` bytes, at 4 bytes a value: 1 to 256, at most `items`.

    More than 256 were not better on validation rows of sets with up to 4,000 items (docs/evaluation.md).
    """
    return max(1, min(MOST_COMPONENTS, items, budget // (4 * items)))


def parameters_for(
    recipe: str,
    given: Mapping[str, Any],
    variant: Variant = "recommended",
    *,
    started: bool = False,
    budget: int = MESSAGE_BUDGET,
) -> dict[str, Any]:
    """Return the parameters of a new task: those `given`, and the recommended or the paper's for what is not given.

    started: whether the task starts from a spectrum. budget: see `components_within`.

    A task without item biases gets no recommended value, because the others were chosen for item biases; nor does one
    that names RFRec's variant "paper" or noise.
    """
    if variant == "paper":
        without_weights = given.get("noise_scale") is not None  # noise does not hide a weight
        return dict(given) if without_weights else {**PAPER.get(recipe, {}), **given}
    if given.get("item_bias") == "none" or given.get("variant") == "paper" or given.get("ldp") is not None:
        return dict(given)
    more = STARTED.get(recipe, {}) if started else {}
    chosen = {**RECOMMENDED.get(recipe, {}), **more}
    items = given.get("items")
    if isinstance(items, int) and items > 0:
        within = components_within(items, budget)
        if recipe in ("privirec", "privirec-k"):
            chosen["components"] = within
        elif started:
            chosen["dim"] = min(MOST_FACTORS, within)
    return {**chosen, **given}
