"""Recipes of rows: the levels of SCoLR, which entries Top-K sends, and the mechanisms that carry them.

What a round does to the item factors is in absorbed.json and state_*.json of tests/vectors. What every recipe must do
is in `client_sdk.testing.RecipeConformance`, which tests/client_sdk runs for each of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import CombinationError, ParameterError
from protocols.recipes.base import Contribution, Local, ModelState, Recipe, Update
from protocols.recipes.colr import client_level
from protocols.recipes.registry import recipe
from protocols.recipes.topk import TopKRecipe, first_units, renewed_units, strongest_first
from protocols.task_terms import check_combination

TASK_SEED = bytes(range(32))
ITEMS, DIM, RANK = 30, 8, 4
TOUCHED: dict[str, Any] = {"normalise": "touched", "reveal_touched": True}


def test_scolr_levels_are_uniform_and_their_ranks_nested() -> None:
    def make(levels: int | None = None) -> Recipe:
        return recipe("scolr", {"items": ITEMS, "dim": DIM, "rank": RANK, "levels": levels})

    spec = make().round_spec(TASK_SEED, 1)
    levels = np.bincount([client_level(spec, f"c_{n}", RANK) for n in range(4000)])[1:] / 4000
    np.testing.assert_allclose(levels, 1 / RANK, atol=0.03)
    for count, edges in ((None, (0, 1, 2, 3, 4)), (3, (0, 2, 3, 4)), (1, (0, 4))):
        chosen = make(count)
        assert chosen.parameters.edges == edges
        for client in ("c_0", "c_1", "c_2", "c_3"):
            assert chosen.projection(spec, client).shape == (edges[chosen.route(spec, client)], DIM)
    for number, sum_index in ((0, 1), (2, 3), (2, 0)):
        with pytest.raises(ParameterError, match="numbered from 1"):
            make().round_spec(TASK_SEED, number, sum_index)


OWN: dict[str, Any] = {"support": "own", "reveal_indices": True}
MODES: dict[str, dict[str, Any]] = {
    "aggregate": TOUCHED,
    "clients": {},
    "feedback": {"error_feedback": True, **TOUCHED},
    "vote": {"support_from": "vote", **TOUCHED},
    "own": OWN,
}


@pytest.mark.parametrize(
    ("name", "width", "parameters"),
    [
        ("fedmf", DIM, {}),
        ("svd", DIM, {"rank": RANK}),
        ("colr", RANK, {"rank": RANK}),
        ("scolr", RANK, {"rank": RANK, "levels": 1}),
        ("topk", DIM, {"share": 1.0}),
        ("pfedclr", DIM, {}),
    ],
)
def test_an_update_with_long_rows_is_scaled_as_a_whole(name: str, width: int, parameters: dict[str, Any]) -> None:
    """One row that a made-up model makes long counts no more than honest rows; counts keep their values."""
    made = recipe(name, {"items": ITEMS, "dim": DIM, "clip": 4.0, "row_clip": 1.0, **parameters})
    items, state = np.arange(4, dtype=np.int32), made.initial_state(TASK_SEED)
    honest, long = np.full((4, width), 0.9 / np.sqrt(width), np.float32), np.zeros((4, width), np.float32)
    long[0] = 4.0
    for rows, norm, scaled in ((honest, 1.8, 1.0), (long, 2.0, 2.0 / np.sqrt(16 * width))):
        made_of_it = made.contribute(state, made.round_spec(TASK_SEED, 1), Local(Update(items, rows), "c_1", 5))
        assert made_of_it.clipped == 0 and made_of_it.scaled == pytest.approx(scaled)
        spans = made.layout(1).blocks[0].spans()
        update = next(slice(*span) for segment, span in spans.items() if segment == "update")
        assert np.linalg.norm(made_of_it.blocks[0][update]) == pytest.approx(norm, rel=1e-5)
        if "clients" in spans:
            assert made_of_it.blocks[0][slice(*spans["clients"])] == 1.0


def make_topk(mode: str) -> TopKRecipe:
    return recipe("topk", {"items": ITEMS, "dim": DIM, "clip": 2.0, "row_clip": 3.0, "share": 1 / 6, **MODES[mode]})


def sent_by(chosen: TopKRecipe, state: ModelState, update: Update, rng: np.random.Generator) -> Contribution:
    return chosen.contribute(state, chosen.round_spec(TASK_SEED, 1), Local(update, rng=rng))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_own_support_takes_the_largest_entries_and_fills_up_with_others(seed: int) -> None:
    chosen, rng = make_topk("own"), np.random.default_rng(seed)
    items = np.sort(rng.permutation(ITEMS)[: rng.integers(1, ITEMS)]).astype(np.int32)
    update = Update(items, rng.uniform(-1, 1, (items.size, DIM)).astype(np.float32))
    sending = sent_by(chosen, chosen.initial_state(TASK_SEED), update, rng)
    places = sending.blocks[0]
    assert places.size == chosen.kept == 40
    assert (np.diff(places) > 0).all()
    assert 0 <= places[0] < places[-1] < ITEMS * DIM
    left = np.abs(update.values[sending.sent == 0]).max(initial=0.0)
    assert np.abs(sending.sent[sending.sent != 0]).min() >= left


def test_what_fills_an_own_support_is_drawn_anew_and_counts_for_nothing() -> None:
    chosen = make_topk("own")
    state, update = chosen.initial_state(TASK_SEED), Update(np.array([3], np.int32), np.ones((1, DIM), np.float32))
    first, second = (sent_by(chosen, state, update, np.random.default_rng(seed)) for seed in (1, 2))
    trained = set(range(3 * DIM, 4 * DIM))
    assert set(first.blocks[0].tolist()) & set(second.blocks[0].tolist()) >= trained
    assert set(first.blocks[0].tolist()) != set(second.blocks[0].tolist())
    assert first.blocks[1].reshape(-1, 2).sum(axis=0).tolist() == [DIM, DIM]


@pytest.mark.parametrize("mode", ["aggregate", "clients", "feedback", "vote"])
def test_a_shared_support_says_nothing_about_a_client(mode: str) -> None:
    """The positions follow from the state alone: clients with different data send the same positions and lengths."""
    chosen, rng = make_topk(mode), np.random.default_rng(5)
    state = chosen.initial_state(TASK_SEED)
    few = Update(np.array([0], np.int32), rng.uniform(-1, 1, (1, DIM)).astype(np.float32))
    many = Update(np.arange(5, 29, dtype=np.int32), rng.uniform(-1, 1, (24, DIM)).astype(np.float32))
    one, other = sent_by(chosen, state, few, rng), sent_by(chosen, state, many, rng)
    assert one.blocks[0].shape == other.blocks[0].shape == (chosen.layout().length,)
    routes = [chosen.route(chosen.round_spec(TASK_SEED, number), f"c_{number}") for number in (1, 9)]
    assert routes == [1, 1]


@settings(max_examples=40)
@given(units=st.integers(1, 200), data=st.data())
def test_supports_hold_as_many_units_as_asked_each_once(units: int, data: st.DataObject) -> None:
    kept = data.draw(st.integers(1, units))
    first = first_units(TASK_SEED, units, kept)
    strength = np.array(data.draw(st.lists(st.floats(0, 9), min_size=kept, max_size=kept)))
    strongest = strongest_first(first, strength)
    assert strongest.size == np.count_nonzero(strength)
    following = renewed_units(strongest, b"\x07" * 32, units, kept)
    for support in (first, following):
        assert support.size == kept
        assert (np.diff(support) > 0).all()
        assert 0 <= support[0] <= support[-1] < units
    assert set(strongest[: kept // 2].tolist()) <= set(following.tolist())


def test_every_entry_gets_its_turn() -> None:
    """Drawn entries let every entry be sent eventually, even with sums of zeros."""
    chosen = make_topk("aggregate")
    state, seen = chosen.initial_state(TASK_SEED), set()
    for number in range(1, 120):
        seen |= set(state.support.tolist())
        total = np.zeros(chosen.layout().length)
        total[0] = 1.0
        state = chosen.absorb(state, chosen.round_spec(TASK_SEED, number), total, 7)
    assert len(seen) == ITEMS * DIM


def test_shares_are_of_all_entries() -> None:
    def kept(share: float, **more: Any) -> int:
        return recipe("topk", {"items": 3706, "dim": 64, "share": share, **more}).kept

    assert [kept(n / 64) for n in (1, 2, 16)] == [kept(n / 64, **OWN) for n in (1, 2, 16)] == [3706, 7412, 59296]
    assert kept(1 / 64, support_from="vote", reveal_touched=True) == 58 * 64
    assert kept(1e-9) == 1


def test_combinations_depend_on_support_and_size() -> None:
    def large(name: str, **parameters: Any) -> Recipe:
        return recipe(name, {"items": 3706, "dim": 64, **parameters})

    for made, mechanism, problem in (
        (large("topk", **OWN), "masked", "choose their positions, .* 'shared'"),
        (large("topk"), "ckks", "appendix C"),
        (large("svd", rank=4), "paillier", "open problem"),
        (large("fedmf"), "paillier", "237,184 values; Paillier is for small sums"),
        (large("topk", **OWN), "paillier", "237,184 blocks"),
    ):
        with pytest.raises(CombinationError, match=problem):
            check_combination(made, mechanism)
    for made in (large("topk", share=16 / 64), large("colr", rank=4)):
        check_combination(made, "paillier")
