"""Recommended parameters of new tasks, chosen on validation rows (bench/quality.py), and those of the papers.

A stored task means what its parameters say, and a parameter that it leaves out keeps the paper's value. Recommended
values are therefore written into a task's parameters when the task is made, where clients read and check them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, Final, Literal, NamedTuple

from protocols.errors import ParameterError

__all__ = [
    "PAPER",
    "RECOMMENDED",
    "STARTED",
    "Advice",
    "StartSizes",
    "Variant",
    "advise",
    "advise_start",
    "parameters_for",
]

Variant = Literal["recommended", "paper"]
"""Which values a new task has where its maker names none: the recommended ones, or those of the paper."""

_FACTORS: Final[Mapping[str, Any]] = {"item_bias": "counts", "count_sums": 1, "batch_size": 32, "weight_decay": 0.005}

RECOMMENDED: Final[Mapping[str, Mapping[str, Any]]] = {
    "colr": _FACTORS,
    "fedmf": {**_FACTORS, "server_rate": 4.0},
    "privirec-k": {"components": 64, "rayleigh_ritz": True},
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

STARTED: Final[Mapping[str, Mapping[str, Any]]] = {
    "colr": {"item_bias": "counts", "learning_rate": 0.0001},
    "fedmf": {"item_bias": "counts", "learning_rate": 0.0001, "server_rate": 1.0},
    "pfedclr": {
        "item_bias": "counts",
        "dim": 64,
        "start_weight": 8.0,
        "learning_rate": 0.001,
        "buffer_learning_rate": 0.0005,
        "epochs": 2,
    },
    "scolr": {"item_bias": "counts", "learning_rate": 0.0001},
}
"""Recipe -> what a task has besides, or instead, if it starts from a spectrum.

The steps are small because user factors are long (`start_weight`): docs/evaluation.md has what was measured.
"""


def parameters_for(
    recipe: str, given: Mapping[str, Any], variant: Variant = "recommended", *, started: bool = False
) -> dict[str, Any]:
    """Return the parameters of a new task: those `given`, and the recommended or the paper's for what is not given.

    started: whether the task starts from a spectrum.

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
    if "components" in chosen and isinstance(items, int):
        chosen["components"] = min(chosen["components"], items)  # so many items have at most so many vectors
    return {**chosen, **given}


_VISITS: Final = 300
"""Positives per item that the advised rounds train on: with fewer, curves on validation rows were still rising."""


class Advice(NamedTuple):
    """Sizes for a task of a factor recipe. rounds: sums in total, the first one, of item counts, included."""

    rounds: int
    cohort_size: int


def advise(items: int, clients: int, interactions: int) -> Advice:
    """Return the sizes for data of so many items, clients and interactions in total.

    A cohort is 100 clients, or all. Counts are summed once: a second sum would hold the items of the clients that are
    not in the first, which may be few. Then each item should be trained as a positive about 300 times: at least 100
    sums, at most 1,000. Raises `ParameterError` for fewer than 3 clients, no item, or fewer interactions than clients.
    """
    if items < 1 or clients < 3 or interactions < clients:
        raise ParameterError(
            f"advice needs an item, 3 clients and an interaction of each, got {items} items, {clients} clients and "
            f"{interactions} interactions"
        )
    cohort = min(100, clients)
    training = ceil(_VISITS * items * clients / (cohort * interactions))
    return Advice(1 + min(1000, max(100, training)), cohort)


_DENSE: Final = 100
"""Interactions per item from which more factors are better: ML-1M has 267, ML-100K 58, the Gowalla sample 13."""
_OF_ANY_WIDTH: Final = ("colr", "scolr")


class StartSizes(NamedTuple):
    """Sizes of a spectral start. components: of the `privirec-k` task. dim: factors of the task that starts from it."""

    components: int
    dim: int


def advise_start(recipe: str, items: int, interactions: int) -> StartSizes:
    """Return the sizes for a recipe and data of so many items and interactions in total; chosen on validation rows.

    On dense data `colr` and `scolr`, whose messages do not grow with `dim`, have more factors. Raises `ParameterError`
    for less than one item or interaction.
    """
    if items < 1 or interactions < 1:
        raise ParameterError(f"advice needs an item and an interaction, got {items} and {interactions}")
    is_wide = recipe in _OF_ANY_WIDTH and interactions >= _DENSE * items
    sizes = StartSizes(256, 192) if is_wide else StartSizes(128, 64)
    return StartSizes(min(sizes.components, items), sizes.dim)
