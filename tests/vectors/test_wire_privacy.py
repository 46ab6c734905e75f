"""Kinds of sums, layouts, clips and states of tasks with a privacy block, by the rules of docs/wire/privacy.md.

It shares no code with `protocols.recipes.private`; the accountant and the noise are computed again in JavaScript:
tests/web/vectors_privacy.mjs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from math import ceil, exp, floor, sqrt
from typing import Any

import numpy as np
import pytest

from protocols.messages import Schedule
from protocols.messages.privacy import Privacy
from protocols.messages.rounds import Evaluation
from protocols.privacy.noise import largest_skellam
from protocols.privacy.renyi import smallest_multiplier
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.private import Private, with_privacy
from protocols.recipes.registry import recipe

BLOCK = Privacy(epsilon=3.0, delta=1e-6, clip=0.5, quantile=0.6, most_items=8, rounds=5, corrupt=0.15)
SCHEDULE = Schedule(rounds=20, cohort_size=60, min_clients=50)
SEED = bytes(32)

Kind = tuple[str, int, int]
"""What is summed (counts, training, measurement or other), v, and e."""


def bound(kind: Kind, p: Privacy) -> int:
    _, v, e = kind
    n = min(v, p.most_items * e) if e else v
    return max(64, ceil(6 * sqrt(n) / 2))


def sensitivities(kind: Kind, p: Privacy) -> tuple[float, float]:
    what, v, _ = kind
    if what == "counts":
        most = min(p.most_items, v)
        return most, sqrt(most)
    b = bound(kind, p)
    d1 = min(sqrt(v) * b, b**2)
    if what != "training" or p.quantile is None:
        return d1, b
    w = ceil(b / 10)
    return d1 + w, sqrt(b**2 + w**2)


def multiplier(kinds: Iterable[Kind], sums: int, p: Privacy) -> float:
    return smallest_multiplier([sensitivities(kind, p) for kind in kinds], sums, p.epsilon, p.delta)


ITEMS, DIM = 12, 4
COUNTED = {"items": ITEMS, "dim": DIM, "item_bias": "counts"}
CASES: dict[str, tuple[str, dict[str, Any], dict[int, Kind]]] = {
    "colr": ("colr", {**COUNTED, "rank": 2}, {1: ("counts", 12, 0), 2: ("training", 24, 10)}),
    "fedmf": ("fedmf", {**COUNTED, "negatives": 2}, {1: ("counts", 12, 0), 2: ("training", 48, 12)}),
    "arrays": ("arrays", {"shapes": {"a": [30, 40], "b": [7]}}, {1: ("training", 1207, 0)}),
    "privirec-k": (
        "privirec-k",
        {"items": ITEMS, "components": 3, "iterations": 4, "item_exponent": 0.0},
        {1: ("counts", 12, 0), 2: ("other", 36, 3), 5: ("other", 36, 3)},
    ),
    "privirec": (
        "privirec",
        {"items": 40, "components": 3, "iterations": 4},
        {1: ("counts", 40, 0), 2: ("other", 120, 3), 6: ("other", 820, 0)},
    ),
}


def wrapped(name: str, p: Privacy = BLOCK) -> Private:
    of, parameters, _ = CASES[name]
    made = with_privacy(
        recipe(of, parameters, noisy=True), p, SCHEDULE.rounds, SCHEDULE.cohort_size, SCHEDULE.min_clients
    )
    assert isinstance(made, Private)
    return made


@pytest.mark.parametrize("quantile", [0.6, None])
@pytest.mark.parametrize("name", list(CASES))
def test_layouts_follow_from_the_page(name: str, quantile: float | None) -> None:
    p = BLOCK.model_copy(update={"quantile": quantile})
    made, kinds = wrapped(name, p), CASES[name][2]
    honest = 50 - floor(0.15 * 60)
    z = multiplier(kinds.values(), min(20, 5), p)
    assert made.multiplier == pytest.approx(z, rel=2e-6)
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
    inner = recipe("colr", CASES["colr"][1], noisy=True)
    measured = with_evaluation(inner, Evaluation(every=5), 20)
    made = with_privacy(measured, BLOCK, 20, 60, 50)
    assert isinstance(made, Private)
    kinds: dict[int, Kind] = {
        1: ("counts", 12, 0),
        2: ("measurement", 1 + 4, 0),
        3: ("training", 24, 10),
        8: ("measurement", 1 + 2, 0),
    }
    assert made.multiplier == pytest.approx(multiplier(kinds.values(), 5, BLOCK), rel=2e-6)
    for sum_index, kind in kinds.items():
        assert made.noise(sum_index).bound == pytest.approx(sensitivities(kind, BLOCK)[1])
        assert made.layout(sum_index).length == kind[1] + (kind[0] == "training")


def test_the_opened_sum_and_the_state_follow_from_the_page() -> None:
    made, n = wrapped("arrays"), 55
    kind = CASES["arrays"][2][1]
    b = bound(kind, BLOCK)
    w = ceil(b / 10)
    state = replace(made.initial_state(SEED), l2_clip=0.75)
    spec = made.round_spec(SEED, 1)
    total = np.random.default_rng(1).integers(-40, 40, 1208).astype(float)
    total[-1] = 0.8 * w * n
    after = made.absorb(state, spec, total, n)
    u = 0.75 / b
    plain = made.inner.absorb(state, spec, total[:-1] * u, n)
    expected = float(np.float32(0.75 * exp(-0.2 * (0.8 - 0.6))))
    assert after.l2_clip == pytest.approx(expected, rel=1e-7)
    body = made.encode_state(after)
    assert body == made.inner.encode_state(plain) + struct.pack("<d", after.l2_clip)
    assert made.decode_state(1, body).l2_clip == after.l2_clip
    assert made.encode_state(made.initial_state(SEED)) == made.inner.encode_state(made.inner.initial_state(SEED))
    assert made.initial_state(SEED).l2_clip == BLOCK.clip
