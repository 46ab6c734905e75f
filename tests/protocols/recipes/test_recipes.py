"""Recipes: what one round of contributions does to the item factors, against the sums written out by hand.

What every recipe must do is in `client_sdk.testing.RecipeConformance`, which tests/client_sdk runs for each of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import ParameterError
from protocols.layout import VectorLayout
from protocols.recipes.base import Contribution, Local, Recipe, RoundSpec, Update
from protocols.recipes.colr import client_level, shared_projection
from protocols.recipes.registry import recipe

TASK_SEED = bytes(range(32))
ITEMS, DIM, RANK = 30, 8, 4
CLIENTS = [f"c_{n}" for n in range(7)]
CHOICES: dict[str, dict[str, Any]] = {"fedmf": {}, "colr": {"rank": RANK}, "scolr": {"rank": RANK}}


def make(name: str, **changes: Any) -> Recipe:
    return recipe(name, {"items": ITEMS, "dim": DIM, "clip": 2.0, **CHOICES[name], **changes})


def width(chosen: Recipe, spec: RoundSpec, client: str) -> int:
    projection = chosen.projection(spec, client)
    return DIM if projection is None else projection.shape[0]


def updates(chosen: Recipe, spec: RoundSpec, seed: int) -> dict[str, Update]:
    rng = np.random.default_rng(seed)
    made = {}
    for client in CLIENTS:
        items = rng.permutation(ITEMS)[: rng.integers(1, ITEMS)].astype(np.int32)
        values = rng.uniform(-1, 1, (items.size, width(chosen, spec, client))).astype(np.float32)
        made[client] = Update(items, values)
    return made


def contribute(chosen: Recipe, spec: RoundSpec, client: str, update: Update) -> Contribution:
    return chosen.contribute(chosen.initial_state(TASK_SEED), spec, Local(update, client))


def plain_sum(chosen: Recipe, spec: RoundSpec, made: dict[str, Update]) -> np.ndarray:
    layout: VectorLayout = chosen.layout()
    total = np.zeros(layout.length)
    for client, update in made.items():
        sent = contribute(chosen, spec, client, update)
        assert sent.clipped == 0
        for targets, block in zip(chosen.route(spec, client), sent.blocks, strict=True):
            for target in targets:
                layout.split(total)[target][:] += block
    return total


def expected_change(chosen: Recipe, spec: RoundSpec, made: dict[str, Update], *, by_touched: bool) -> np.ndarray:
    """Every (item, column) divided by the number of clients that trained it, or its column."""
    if chosen.name == "fedmf":
        full, projection = np.zeros((ITEMS, DIM)), np.eye(DIM)
    else:
        full, projection = np.zeros((ITEMS, RANK)), shared_projection(spec.seed, RANK, DIM).astype(np.float64)
    counts = np.zeros_like(full)
    for update in made.values():
        columns = np.arange(update.values.shape[1])
        full[np.ix_(update.items, columns)] += update.values
        counts[np.ix_(update.items if by_touched else np.arange(ITEMS), columns)] += 1
    return full / np.maximum(counts, 1) @ projection


@pytest.mark.parametrize("by_touched", [False, True])
@pytest.mark.parametrize("name", sorted(CHOICES))
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_absorb_divides_each_row_by_all_clients_or_those_who_touched_it(name: str, by_touched: bool, seed: int) -> None:
    chosen = make(name, **({"normalise": "touched", "reveal_touched": True} if by_touched else {}))
    spec = chosen.round_spec(TASK_SEED, 3)
    made = updates(chosen, spec, seed)
    before = chosen.initial_state(TASK_SEED)
    after = chosen.absorb(before, spec, plain_sum(chosen, spec, made), len(made))
    assert after.round_number == 3
    expected = expected_change(chosen, spec, made, by_touched=by_touched)
    np.testing.assert_allclose(after.item_factors - before.item_factors, expected, atol=1e-5)


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_updates_that_cannot_be_are_refused(name: str) -> None:
    chosen = make(name)
    spec = chosen.round_spec(TASK_SEED, 1)
    for items, value, problem in (
        ([0, 0], 0, "twice"),
        ([-1, 2], 0, "outside"),
        ([0, ITEMS], 0, "outside"),
        ([1], 0, "rows"),
        ([1, 2], np.nan, "diverged"),
    ):
        values = np.full((2, width(chosen, spec, "c_0")), value, dtype=np.float32)
        with pytest.raises(ParameterError, match=problem):
            contribute(chosen, spec, "c_0", Update(np.array(items, dtype=np.int32), values))


def test_scolr_levels_are_uniform_and_their_ranks_nested() -> None:
    spec = make("scolr").round_spec(TASK_SEED, 1)
    levels = np.bincount([client_level(spec, f"c_{n}", RANK) for n in range(4000)])[1:] / 4000
    np.testing.assert_allclose(levels, 1 / RANK, atol=0.03)
    for count, edges in ((None, (0, 1, 2, 3, 4)), (3, (0, 2, 3, 4)), (1, (0, 4))):
        chosen = make("scolr", levels=count)
        assert chosen.parameters.edges == edges
        for client in CLIENTS:
            route = chosen.route(spec, client)
            assert route == tuple((block,) for block in range(len(route)))
            assert width(chosen, spec, client) == edges[len(route)]
    with pytest.raises(ParameterError, match="levels 5 is greater than rank 4"):
        make("scolr", levels=5)


def test_unknown_recipes_and_wrong_numbers_are_refused() -> None:
    with pytest.raises(ParameterError, match="unknown recipe"):
        recipe("nosuch", {})
    for number, sum_index in ((0, 1), (2, 3), (2, 0)):
        with pytest.raises(ParameterError, match="numbered from 1"):
            make("colr").round_spec(TASK_SEED, number, sum_index)
