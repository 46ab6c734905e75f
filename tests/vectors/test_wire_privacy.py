"""Kinds of sums, layouts and clips of tasks with a privacy block, by the rules of docs/wire/privacy.md.

It shares no code with `protocols.recipes.private`; the accountant and the noise are computed again in JavaScript:
tests/web/vectors_privacy.mjs.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, sqrt
from typing import Any

import pytest

from protocols.messages.privacy import Privacy
from protocols.messages.rounds import Evaluation
from protocols.privacy.noise import largest_skellam, smallest_multiplier
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.private import with_privacy
from protocols.recipes.registry import recipe

BLOCK = Privacy(epsilon=3.0, delta=1e-6, clip=0.5, quantile=0.6, most_items=8, rounds=5, corrupt=0.15)

Kind = tuple[str, int, int]
"""What is summed (counts, training, measurement or other), v, and e."""


def sensitivities(kind: Kind, p: Privacy) -> tuple[float, float]:
    what, v, e = kind
    if what == "counts":
        most = min(p.most_items, v)
        return most, sqrt(most)
    b = max(64, ceil(3 * sqrt(min(v, p.most_items * e) if e else v)))
    d1 = min(sqrt(v) * b, b**2)
    if what != "training" or p.quantile is None:
        return d1, b
    w = ceil(b / 10)
    return d1 + w, sqrt(b**2 + w**2)


def multiplier(kinds: Iterable[Kind], sums: int, p: Privacy) -> float:
    return smallest_multiplier(tuple(sensitivities(kind, p) for kind in kinds), sums, p.epsilon, p.delta)


ITEMS, DIM = 12, 4
COUNTED = {"items": ITEMS, "dim": DIM, "item_bias": "counts"}
CASES: dict[str, tuple[str, dict[str, Any], dict[int, Kind]]] = {
    "colr": ("colr", {**COUNTED, "rank": 2}, {1: ("counts", 12, 0), 2: ("training", 24, 10)}),
    "privirec": (
        "privirec",
        {"items": 40, "components": 3, "iterations": 4},
        {1: ("counts", 40, 0), 2: ("other", 120, 3), 6: ("other", 820, 0)},
    ),
    "privirec-k": (
        "privirec-k",
        {"items": 40, "components": 3, "iterations": 4, "validation": 0.1},
        {1: ("counts", 40, 0), 2: ("other", 120, 3), 6: ("other", 33, 0)},
    ),
}


@pytest.mark.parametrize("quantile", [0.6, None])
@pytest.mark.parametrize("name", list(CASES))
def test_layouts_follow_from_the_page(name: str, quantile: float | None) -> None:
    p = BLOCK.model_copy(update={"quantile": quantile})
    of, parameters, kinds = CASES[name]
    made = with_privacy(recipe(of, parameters, noisy=True), p, 20, 60, 50)
    honest = 50 - floor(0.15 * 60)
    assert made.multiplier == pytest.approx(multiplier(kinds.values(), 5, p), rel=2e-6)
    for sum_index, kind in kinds.items():
        _, d2 = sensitivities(kind, p)
        layout = made.layout(sum_index)
        segments = [segment for block in layout.blocks for segment in block.segments]
        clip = ceil(d2) + largest_skellam((made.multiplier * d2) ** 2 / honest)
        assert {(s.clip, s.integral, s.signed, s.sum_bound) for s in segments} == {(float(clip), True, True, None)}
        adapts = kind[0] == "training" and quantile is not None
        assert layout.length == kind[1] + adapts
        inner = made.inner.layout(sum_index)
        assert [block.name for block in layout.blocks] == [b.name for b in inner.blocks] + ["within"] * adapts
        assert layout.sum_class == inner.sum_class


def test_measurements_of_a_task_have_kinds_of_their_own() -> None:
    measured = with_evaluation(recipe("colr", CASES["colr"][1], noisy=True), Evaluation(every=5), 20)
    made = with_privacy(measured, BLOCK, 20, 60, 50)
    kinds = CASES["colr"][2] | {2: ("measurement", 5, 0), 3: ("training", 24, 10), 8: ("measurement", 3, 0)}
    assert made.multiplier == pytest.approx(multiplier(kinds.values(), 5, BLOCK), rel=2e-6)
    for sum_index, kind in kinds.items():
        assert made.noise(sum_index).bound == pytest.approx(sensitivities(kind, BLOCK)[1])
        assert made.layout(sum_index).length == kind[1] + (kind[0] == "training")
