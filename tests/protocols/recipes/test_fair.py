"""FAIR: a turn of sums gives the paper's weighted mean of recovered device models; the hashed subspaces of tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import ParameterError
from protocols.recipes.base import Local, ModelState
from protocols.recipes.fair import Fair, FairChange, spaces_of
from protocols.recipes.registry import recipe
from protocols.recipes.subspaces import Subspace, bucket_counts, fold, unfold
from tests.support.measured import peak_of

TASK_SEED = bytes(range(32))
ITEMS, DIM, MOST = 50, 4, 100


def make(capacities: tuple[int, ...], **changes: Any) -> Fair:
    return recipe(
        "fair",
        {"items": ITEMS, "dim": DIM, "capacities": list(capacities), "max_interactions": MOST, "reveal_weights": True}
        | changes,
    )


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


@pytest.mark.parametrize("capacities", [(0,), (1, 2), (0, 1, 4)])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_a_turn_is_the_papers_weighted_mean_of_recovered_models(capacities: tuple[int, ...], seed: int) -> None:
    chosen = make(capacities)
    state: ModelState = chosen.initial_state(TASK_SEED)
    for turn in range(2):
        state, tables, dense = run_turn(chosen, state, seed + turn)
        np.testing.assert_allclose(state.tables, tables, atol=2e-6)
        np.testing.assert_allclose(state.dense, dense, atol=2e-6)
    assert state.sum_index == state.round_number == 2 * chosen.device_groups


@pytest.mark.parametrize("capacities", [(2,), (0, 1, 2)])
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


def test_the_first_view_is_made_in_the_memory_of_a_view() -> None:
    chosen = make((0, 6), items=250_000)
    _, peak = peak_of(lambda: chosen.initial_view(TASK_SEED, 1))
    assert peak < 2 * 4 * chosen.parameters.elements / 1.5, "chunks and buckets, not the tables"


def test_a_turn_without_weight_and_diverged_training_are_refused() -> None:
    chosen = make((2,))
    change = FairChange(np.array([1]), np.array([np.nan], np.float32), np.zeros(chosen.dense_values, np.float32))
    with pytest.raises(ParameterError, match="diverged"):
        chosen.contribute(chosen.initial_view(TASK_SEED, 0), chosen.round_spec(TASK_SEED, 1), Local(change, examples=3))
    with pytest.raises(ParameterError, match="positive weight"):
        chosen.absorb(
            chosen.initial_state(TASK_SEED), chosen.round_spec(TASK_SEED, 1), np.zeros(chosen.layout(1).length), 0
        )


# --- hashed subspaces: nested, consistent, adjoint, and computed in little memory -------------------------------------


KEYS = st.integers(0, 2**64 - 1)
SIZES = st.tuples(st.integers(64, 2000), st.sets(st.integers(0, 6), min_size=2).map(sorted).map(tuple))


def whole(space: Subspace, psi: np.ndarray) -> np.ndarray:
    return space.recover(psi, slice(0, space.elements))


@given(SIZES)
def test_bucket_counts_divide_each_other_and_fit_the_memory(sizes: tuple[int, tuple[int, ...]]) -> None:
    elements, capacities = sizes
    counts = bucket_counts(elements, capacities)
    for p, buckets in zip(capacities, counts, strict=True):
        assert 0 < buckets <= elements / 2**p
        assert buckets > elements / 2**p - 2 ** (max(capacities) - p)
    hashed = [buckets for p, buckets in zip(capacities, counts, strict=True) if p]
    assert all(larger % smaller == 0 for larger, smaller in zip(hashed, hashed[1:], strict=False))


@given(SIZES, KEYS)
def test_a_smaller_space_is_a_larger_one_folded(sizes: tuple[int, tuple[int, ...]], key: int) -> None:
    elements, capacities = sizes
    counts = [buckets for p, buckets in zip(capacities, bucket_counts(elements, capacities), strict=True) if p]
    spaces = [Subspace(elements, buckets, key) for buckets in counts]
    theta = np.random.default_rng(key % 1000).standard_normal(elements)
    for space in spaces:
        np.testing.assert_allclose(fold(spaces[0].sums(theta), space.buckets), space.sums(theta), atol=1e-4)
        np.testing.assert_array_equal(fold(spaces[0].counts(), space.buckets), space.counts())
    # the column space of a smaller one lies within the larger ones' (definition 4.1)
    psi = np.random.default_rng(1).standard_normal(counts[-1])
    expected = whole(spaces[-1], psi)
    for space in spaces:
        np.testing.assert_array_equal(whole(space, unfold(psi, space.buckets)), expected)


@given(st.integers(50, 3000), st.integers(1, 5), KEYS)
def test_projection_is_the_nearest_and_recovery_its_adjoint(elements: int, p: int, key: int) -> None:
    space = Subspace(elements, *bucket_counts(elements, (p,)), key)
    rng = np.random.default_rng(key % 1000)
    theta, psi = rng.standard_normal(elements).astype(np.float32), rng.standard_normal(space.buckets)
    totals, counts = space.sums(theta), space.counts()
    np.testing.assert_allclose(totals @ psi, theta.astype(np.float64) @ whole(space, psi), rtol=1e-4, atol=1e-3)
    assert counts.sum() == elements
    # what is in the space stays as it is, but for buckets that no element falls into
    np.testing.assert_allclose(space.project(whole(space, psi)), np.where(counts > 0, psi, 0), atol=1e-6)
    # what is left over has nothing in the space: S psi is the nearest there is (eq. 3)
    np.testing.assert_allclose(space.sums(theta - whole(space, space.project(theta))), 0, atol=1e-4)
