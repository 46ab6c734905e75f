"""FAIR: a turn of sums gives the paper's weighted mean of recovered device models."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import CodecError, ParameterError
from protocols.recipes.base import Local, ModelState
from protocols.recipes.fair import Fair, FairChange, FairState, FairView, dense_length, spaces_of
from protocols.recipes.registry import recipe

TASK_SEED = bytes(range(32))
ITEMS, DIM, MOST = 50, 4, 100
SCHEMES = [(0,), (2,), (0, 1), (0, 3), (1, 2), (0, 1, 4)]


def make(capacities: tuple[int, ...], **changes: Any) -> Fair:
    made = recipe(
        "fair",
        {"items": ITEMS, "dim": DIM, "capacities": list(capacities), "max_interactions": MOST, "reveal_weights": True}
        | changes,
    )
    assert isinstance(made, Fair)
    return made


def run_turn(chosen: Fair, state: ModelState, seed: int) -> tuple[ModelState, np.ndarray, np.ndarray]:
    """Return the state after a turn, and sum_i p_i S_i psi_i' of tables and layers, from the devices' models."""
    rng = np.random.default_rng(seed)
    elements = chosen.parameters.elements
    tables, dense, weights = np.zeros((2, elements)), np.zeros(chosen.dense_values), 0.0
    for _ in range(chosen.device_groups):
        spec = chosen.round_spec(TASK_SEED, state.round_number + 1)
        device_group = chosen.device_group_of(spec.sum_index)
        view = chosen.view(state, device_group)
        total = np.zeros(chosen.layout(spec.sum_index).length)
        for _ in range(rng.integers(1, 4)):
            size = int(rng.integers(1, 2 * MOST))
            places = rng.permutation(view.tables.size)[: rng.integers(0, view.tables.size + 1)]
            changes = rng.uniform(-0.5, 0.5, places.size).astype(np.float32)
            layers = rng.uniform(-0.5, 0.5, chosen.dense_values).astype(np.float32)
            made = chosen.contribute(view, spec, Local(FairChange(places, changes, layers), examples=size))
            assert made.clipped == 0
            total += made.vector
            trained = view.tables.astype(np.float64).ravel()
            trained[places] += changes
            for number, space in enumerate(spaces_of(view.seed, elements, chosen.buckets[device_group])):
                psi = trained.reshape(2, -1)[number]
                tables[number] += min(size, MOST) * space.recover(psi, slice(0, elements)).astype(np.float64)
            dense += min(size, MOST) * (view.dense + layers)
            weights += min(size, MOST)
        state = chosen.absorb(state, spec, total, 3)
    return state, tables / weights, dense / weights


@pytest.mark.parametrize("capacities", SCHEMES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_a_turn_is_the_papers_weighted_mean_of_recovered_models(capacities: tuple[int, ...], seed: int) -> None:
    chosen = make(capacities)
    state: ModelState = chosen.initial_state(TASK_SEED)
    for turn in range(2):
        state, tables, dense = run_turn(chosen, state, seed + turn)
        assert isinstance(state, FairState)
        np.testing.assert_allclose(state.tables, tables, atol=2e-6)
        np.testing.assert_allclose(state.dense, dense, atol=2e-6)
    assert state.sum_index == state.round_number == 2 * chosen.device_groups


@pytest.mark.parametrize("capacities", SCHEMES)
def test_adding_moves_by_the_mean_of_recovered_changes(capacities: tuple[int, ...]) -> None:
    """The tables move by the recovered changes alone; the old model stays."""
    replacing, adding = make(capacities), make(capacities, mixing="add")
    old = replacing.initial_state(TASK_SEED)
    expected = np.zeros_like(old.tables, dtype=np.float64)
    states, rng, weights = [old, old], np.random.default_rng(3), np.arange(1.0, len(capacities) + 1)
    for device_group, weight in enumerate(weights):
        spec = replacing.round_spec(TASK_SEED, device_group + 1)
        total = rng.uniform(-0.3, 0.3, replacing.layout(spec.sum_index).length)
        total[-1] = weight
        states = [made.absorb(state, spec, total, 2) for made, state in zip((replacing, adding), states, strict=True)]
        buckets = replacing.buckets[device_group]
        for t, space in enumerate(spaces_of(old.seed, 200, buckets)):
            expected[t] += space.recover(total[t * buckets : (t + 1) * buckets], slice(0, 200)) / weights.sum()
    np.testing.assert_allclose(states[1].tables, old.tables + expected, atol=1e-6)
    np.testing.assert_array_equal(states[1].dense, states[0].dense)
    assert (np.abs(states[0].tables - states[1].tables).max() > 1e-3) == (capacities != (0,))


def test_groups_take_turns_and_upload_no_more_than_they_hold() -> None:
    chosen = make((0, 1, 4))
    assert [chosen.device_group_of(sum_index) for sum_index in range(1, 8)] == [0, 1, 2, 0, 1, 2, 0]
    lengths = [chosen.layout(sum_index).length for sum_index in (1, 2, 3)]
    others = dense_length(DIM) + 1
    assert lengths == [2 * 200 + others, 2 * 96 + others, 2 * 12 + others]
    for device_group in range(3):
        assert chosen.view(chosen.initial_state(TASK_SEED), device_group).tables.size == lengths[device_group] - others


def test_the_model_rests_until_the_last_group_was_asked() -> None:
    chosen = make((0, 2))
    state = chosen.initial_state(TASK_SEED)
    total = np.full(chosen.layout(1).length, 0.5)
    later = chosen.absorb(state, chosen.round_spec(TASK_SEED, 1), total, 2)
    np.testing.assert_array_equal(later.tables, state.tables)
    np.testing.assert_array_equal(chosen.view(later, 1).tables, chosen.view(state, 1).tables)
    moved = chosen.absorb(later, chosen.round_spec(TASK_SEED, 2), np.full(chosen.layout(2).length, 0.5), 2)
    assert np.abs(moved.tables - state.tables).min() > 0


def test_a_round_that_failed_is_followed_by_one_of_the_same_sum() -> None:
    chosen = make((0, 2))
    state = chosen.initial_state(TASK_SEED)
    spec = chosen.round_spec(TASK_SEED, 3, 1)
    later = chosen.absorb(state, spec, np.full(chosen.layout(1).length, 0.5), 2)
    assert (later.round_number, later.sum_index) == (3, 1)
    with pytest.raises(ParameterError, match="does not follow"):
        chosen.absorb(later, chosen.round_spec(TASK_SEED, 4, 1), np.zeros(chosen.layout(1).length), 2)


@pytest.mark.parametrize("capacities", [(2,), (0, 2), (0, 1, 2)])
def test_an_abandoned_sum_counts_as_zeros(capacities: tuple[int, ...]) -> None:
    """Whether one sum of a turn or all of them were abandoned, the model and the turns of later sums stay right."""
    chosen = make(capacities)
    groups = chosen.device_groups
    state, given, last = chosen.initial_state(TASK_SEED), {1, groups + 1, 3 * groups + 2}, 0
    for number, sum_index in enumerate(sorted(given), start=1):
        state = chosen.absorb(
            state, chosen.round_spec(TASK_SEED, 10 * number, sum_index), np.ones(chosen.layout(sum_index).length), 2
        )
        last = sum_index
    with_zeros = chosen.initial_state(TASK_SEED)
    for sum_index in range(1, last + 1):
        if (sum_index - 1) // groups == 2 or (groups == 1 and sum_index not in given):
            with_zeros = replace(with_zeros, sum_index=sum_index)  # a whole turn
            continue
        total = np.full(chosen.layout(sum_index).length, float(sum_index in given))
        with_zeros = chosen.absorb(with_zeros, chosen.round_spec(TASK_SEED, 10 + sum_index, sum_index), total, 2)
    np.testing.assert_array_equal(state.tables, with_zeros.tables)
    np.testing.assert_array_equal(state.dense, with_zeros.dense)
    assert (state.sum_index, len(state.given)) == (last, last % groups)


@pytest.mark.parametrize("capacities", SCHEMES)
def test_states_and_views_have_the_stated_lengths_and_come_back(capacities: tuple[int, ...]) -> None:
    chosen = make(capacities)
    state: ModelState = chosen.initial_state(TASK_SEED)
    for sum_index in range(2 * chosen.device_groups + 1):
        if sum_index:
            total = np.full(chosen.layout(sum_index).length, 0.25)
            state = chosen.absorb(state, chosen.round_spec(TASK_SEED, sum_index), total, 2)
        body = chosen.encode_state(state)
        assert len(body) == chosen.state_bytes(sum_index)
        assert len(body) <= chosen.longest_state_bytes()
        again = chosen.decode_state(sum_index, body)
        assert chosen.encode_state(again) == body
        assert len(again.given) == sum_index % chosen.device_groups
        for device_group in range(chosen.device_groups):
            view = chosen.view(state, device_group)
            seen = chosen.encode_view(view, device_group)
            assert len(seen) == chosen.view_bytes(sum_index, device_group)
            decoded = chosen.decode_view(sum_index, seen, device_group)
            assert isinstance(decoded, FairView)
            np.testing.assert_array_equal(decoded.tables, view.tables)
            np.testing.assert_array_equal(decoded.dense, view.dense)
            assert (decoded.sum_index, decoded.seed) == (sum_index, view.seed)


@pytest.mark.parametrize("capacities", SCHEMES)
def test_the_first_view_needs_no_model(capacities: tuple[int, ...]) -> None:
    chosen = make(capacities)
    for device_group in range(chosen.device_groups):
        ours, theirs = (
            chosen.initial_view(TASK_SEED, device_group),
            chosen.view(chosen.initial_state(TASK_SEED), device_group),
        )
        assert chosen.encode_view(ours, device_group) == chosen.encode_view(theirs, device_group)


def test_the_first_view_is_made_in_the_memory_of_a_view() -> None:
    chosen = make((0, 6), items=250_000)
    tracemalloc.start()
    chosen.initial_view(TASK_SEED, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 4 * chosen.parameters.elements / 1.5, "chunks and buckets, not the tables"


def test_fresh_values_have_their_spread() -> None:
    state = make((0, 1), items=5000, dim=8).initial_state(TASK_SEED)
    assert state.tables.std() == pytest.approx(0.01, rel=0.02)
    assert abs(state.tables.mean()) < 1e-4
    assert abs(np.corrcoef(state.tables)[0, 1]) < 0.02
    assert np.abs(state.dense[:128]).max() <= np.sqrt(6 / 24)
    assert not state.dense[128:136].any()


def test_what_exceeds_the_clip_is_clipped_and_counted() -> None:
    chosen = make((1,), clip=0.5)
    spec = chosen.round_spec(TASK_SEED, 1)
    changes, dense = np.array([0.75, -2.0, 0.25], dtype=np.float32), np.zeros(chosen.dense_values, dtype=np.float32)
    dense[3] = 0.51
    change = FairChange(np.array([5, 0, 9]), changes, dense)
    made = chosen.contribute(chosen.initial_view(TASK_SEED, 0), spec, Local(change, examples=MOST // 2))
    vector = made.vector
    assert made.clipped == 3
    np.testing.assert_allclose(vector[[5, 0, 9]], [0.25, -0.25, 0.125])
    assert np.count_nonzero(vector) == 5
    assert vector[-1] == 0.5
    assert (np.abs(vector) <= chosen.layout(1).blocks[0].bounds()).all()


def test_diverged_training_is_refused() -> None:
    chosen = make((1,))
    dense = np.zeros(chosen.dense_values, dtype=np.float32)
    with pytest.raises(ParameterError, match="diverged"):
        change = FairChange(np.array([1]), np.array([np.nan], dtype=np.float32), dense)
        view = chosen.initial_view(TASK_SEED, 0)
        chosen.contribute(view, chosen.round_spec(TASK_SEED, 1), Local(change, examples=3))


@pytest.mark.parametrize(
    ("capacities", "fault"),
    [((), "capacities"), ((1, 0), "ascending"), ((1, 1), "distinct"), ((0, 21), "0..20"), ((0, 9), "cannot be held")],
)
def test_wrong_capacities_are_refused(capacities: tuple[int, ...], fault: str) -> None:
    with pytest.raises(ParameterError, match=fault):
        make(capacities)


def test_tables_beyond_32_bits_are_refused() -> None:
    with pytest.raises(ParameterError, match="32 bits"):
        make((0, 1), items=5_000_000, dim=256)


def test_bodies_that_do_not_fit_are_refused() -> None:
    chosen = make((0, 1))
    body = chosen.encode_state(chosen.initial_state(TASK_SEED))
    with pytest.raises(CodecError, match="exactly"):
        chosen.decode_state(0, body + b"\0")
    with pytest.raises(CodecError, match="claims"):
        chosen.decode_state(0, b"\1" + body[1:])
    with pytest.raises(CodecError, match="at least"):
        chosen.decode_view(0, b"\0", 0)
    with pytest.raises(CodecError, match="finite"):
        chosen.decode_state(0, body[:-4] + np.array(np.inf, dtype="<f4").tobytes())
    with pytest.raises(ParameterError, match="FairState is needed, got FairView"):
        chosen.encode_state(chosen.initial_view(TASK_SEED, 0))
    with pytest.raises(ParameterError, match="FairView is needed, got FairState"):
        chosen.encode_view(chosen.initial_state(TASK_SEED), 0)


def test_a_turn_without_weight_is_refused() -> None:
    chosen = make((2,))
    with pytest.raises(ParameterError, match="positive weight"):
        chosen.absorb(
            chosen.initial_state(TASK_SEED), chosen.round_spec(TASK_SEED, 1), np.zeros(chosen.layout(1).length), 0
        )


def test_everyone_is_told_that_sizes_are_known() -> None:
    assert "memory sizes" in make((0, 1)).warnings()[0]
    assert make((2,)).warnings() == ()
