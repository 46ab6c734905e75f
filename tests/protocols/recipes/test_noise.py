"""What recipes say of the norm of a contribution, and what they make of noisy sums: floors, divisors, components."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.training.graph_filters import FILTERS, user_row
from client_sdk.training.privirec import components_of
from protocols.advice import NOISY, parameters_for
from protocols.errors import CodecError, ParameterError
from protocols.messages import Evaluation
from protocols.privacy_advice import noisy_recipes
from protocols.recipes.base import Local, Recipe
from protocols.recipes.bounds import Reach, Sensitivity, noise_level
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.factors import CountedFactors
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import OWN, recipe
from protocols.recipes.spectrum import chosen_weight
from protocols.recipes.state import state_as
from tests.protocols.recipes.test_privirec import play

SEED, ITEMS, CLIENTS = bytes(range(32)), 60, 4000


def clear(scores: np.ndarray) -> bool:
    """Whether items of the group that the user has items of are well above the others."""
    return bool(scores[3:20].mean() > 3 * max(abs(scores[20:40].mean()), abs(scores[40:].mean())))


def played(noise: float, name: str = "privirec-k", noisy: bool = False, **changes: Any) -> tuple[PriviRecK, Any, Any]:
    """A recipe, the states of a task whose sums have this noise, and P; clients have items of one of three groups."""
    rng, rows = np.random.default_rng(3), np.zeros((CLIENTS, ITEMS))
    for row, group in zip(rows, rng.integers(0, 3, CLIENTS), strict=True):
        row[20 * group + rng.permutation(20)[:8]] = 1
    whole = {} if noisy else {"reveal_gram": True}
    made = recipe(name, {"items": ITEMS, "item_exponent": 0.0, **whole, **changes}, noisy=noisy)
    return made, play(made, rows, noise=noise), rows.T @ rows / 8


def test_components_below_the_noise_are_zero_and_the_others_are_those_of_the_data() -> None:
    made, states, _ = played(8.0, components=20, iterations=3, rayleigh_ritz=True)
    state = states[-1]
    kept = state.singular_values > 0
    assert 3 <= kept.sum() < 20
    assert not state.basis[:, ~kept].any()
    assert (state.singular_values[kept] ** 2 >= 8.0 * np.sqrt(ITEMS)).all()
    groups = np.kron(np.eye(3), np.ones((20, 1))) / np.sqrt(20)
    np.testing.assert_allclose(np.linalg.norm(groups.T @ state.basis[:, kept], axis=1), 1, atol=0.02)
    assert made.decode_state(4, made.encode_state(state)).round_number == 4
    basis = states[-2].basis.astype(float)  # that of an iteration that is not the last one spans all columns
    np.testing.assert_allclose(basis.T @ basis, np.eye(20), atol=1e-5)
    assert clear(FILTERS["ease"].scores(components_of(made, state), user_row([0, 1, 2], ITEMS))[0])
    # hidden components do not change the weight to the smallest
    assert [chosen_weight(np.array(one)) for one in ([9.0, 4.0, 0.0], [9.0, 4.0])] == pytest.approx([16.0, 0.4])


def test_a_noisy_gram_matrix_becomes_the_matrix_of_its_clear_components() -> None:
    noise = 8.0
    made, states, p = played(noise, "privirec", components=40, iterations=1, reveal_gram=True)
    own = states[-1]
    np.testing.assert_allclose(own.singular_values[:3] ** 2, np.linalg.eigvalsh(p)[::-1][:3], rtol=0.05)
    kept = own.singular_values > 0
    assert 3 <= kept.sum() < 40
    assert not own.basis[:, ~kept].any()
    found = components_of(made, own).gram
    assert np.linalg.norm(found - p, 2) < 2 * noise * np.sqrt(ITEMS)
    assert np.linalg.eigvalsh(found.astype(float)).min() > -1e-3
    assert clear(FILTERS["ease"].scores(components_of(made, own), user_row([0, 1, 2], ITEMS))[0])
    assert made.decode_state(3, made.encode_state(own)).round_number == 3
    reach = Reach(3, 10, CLIENTS, largest=1.0)
    made.require_reachable(own, reach)
    with pytest.raises(CodecError, match="entries of the Gram matrix"):
        made.require_reachable(replace(own, gram=own.gram * np.float32(1e6)), reach)


def test_with_noise_the_gram_matrix_needs_no_iteration_before_it() -> None:
    made, states, p = played(0.1, "privirec", noisy=True, components=40, iterations=0)
    assert len(states) == 3
    np.testing.assert_allclose(states[-1].singular_values[:3] ** 2, np.linalg.eigvalsh(p)[::-1][:3], rtol=0.05)
    assert components_of(made, states[-1]).gram is not None


def test_degrees_and_counts_are_at_least_the_level_of_the_noise() -> None:
    made = recipe("privirec-k", {"items": 4, "components": 2}, noisy=True)
    total = np.array([-7.3, 1.0, 9.6, 250.0])
    state = made.absorb(made.initial_state(SEED), replace(made.round_spec(SEED, 1), noise=2.2), total, 100)
    assert noise_level(2.2) == 4.4
    np.testing.assert_array_equal(state_as(state, PriviRecState).item_degrees, [5, 5, 10, 100])
    counted = recipe("fedmf", {"items": 4, "dim": 2, "item_bias": "counts"})
    after = counted.absorb(counted.initial_state(SEED), replace(counted.round_spec(SEED, 1), noise=2.2), total, 100)
    np.testing.assert_array_equal(state_as(after, CountedFactors).item_counts, [5, 5, 10, 100])
    assert counted.decode_state(1, counted.encode_state(after)).round_number == 1
    drowned = counted.absorb(counted.initial_state(SEED), replace(counted.round_spec(SEED, 1), noise=80), total, 100)
    assert not state_as(drowned, CountedFactors).biases.any()


@pytest.mark.parametrize("name", ["colr", "fedmf"])
def test_noisy_rows_are_divided_by_the_clients_unless_the_task_says_otherwise(name: str) -> None:
    given = {"items": 4, "dim": 2, "item_bias": "counts"} | ({"rank": 2} if name == "colr" else {})

    def change(noise: float, **more: object) -> np.ndarray:
        made = recipe(name, given | more)
        start = made.initial_state(SEED)
        counted = made.absorb(start, made.round_spec(SEED, 1), np.array([1.0, 2, 3, 90]), 100)
        spec = replace(made.round_spec(SEED, 2), noise=noise)
        after = made.absorb(counted, spec, np.ones(made.layout(2).length), 100)
        return np.linalg.norm(after.item_factors - counted.item_factors, axis=1)

    np.testing.assert_allclose(change(3.0), change(0.0, normalise="clients"), rtol=1e-5)
    exact, noisy = change(0.0, normalise="expected"), change(30.0, normalise="expected")
    assert (noisy <= exact).all()
    assert noisy[0] == pytest.approx(change(0.0, normalise="clients")[0] * 100 / 60, rel=1e-4)
    assert (change(0.0) == exact).all()


def test_negative_touch_counts_change_a_row_by_no_more_than_the_level_of_the_noise_allows() -> None:
    made = recipe("fedmf", {"items": 2, "dim": 1, "normalise": "touched", "reveal_touched": True})
    spec = replace(made.round_spec(SEED, 1), noise=4.0)
    start = made.initial_state(SEED)
    after = made.absorb(start, spec, np.array([16.0, 16.0, -5.0, 32.0]), 100)
    np.testing.assert_allclose((after.item_factors - start.item_factors)[:, 0], [2.0, 0.5], rtol=1e-5)


def test_arrays_ignore_rows_and_weights_below_the_level_of_the_noise() -> None:
    made = recipe(
        "arrays",
        {"shapes": {"t": [3, 2], "w": [2]}, "rows": ["t"], "reveal_rows": True, "max_weight": 10, "clip": 9}
        | {"reveal_weights": True, "std": 0},
    )

    def moved(weight: float) -> dict[str, np.ndarray]:
        total = np.array([5.0, 5, 5, 5, 40, 40, -3, 9.9, 20, 5, 5, weight])
        after = made.absorb(made.initial_state(SEED), replace(made.round_spec(SEED, 1), noise=5.0), total, 100)
        return made.arrays(after)

    np.testing.assert_allclose(moved(20)["t"], [[0, 0], [0, 0], [2, 2]])
    np.testing.assert_allclose(moved(20)["w"], [0.25, 0.25])
    np.testing.assert_allclose(moved(9)["w"], 0)
    np.testing.assert_allclose(moved(-30)["w"], 0)
    unweighted = recipe("arrays", {"shapes": {"w": [2]}, "std": 0})
    spec = replace(unweighted.round_spec(SEED, 1), noise=500.0)  # clients are counted exactly, however large the noise
    after = unweighted.absorb(unweighted.initial_state(SEED), spec, np.array([50.0, -20.0]), 100)
    np.testing.assert_allclose(after.values, [0.5, -0.2])


@pytest.mark.parametrize("name", sorted(NOISY))
def test_recommended_parameters_of_a_task_with_a_privacy_block_are_allowed_in_it(name: str) -> None:
    made = recipe(name, parameters_for(name, {"items": 300}, noisy=True), noisy=True)
    assert made.sensitivity(1).l2 == {"privirec": np.sqrt(0.5), "privirec-k": 1.0}[name]
    assert made.parameters.components == 256
    assert made.steps == {"privirec": 1, "privirec-k": 3}[name]
    assert parameters_for(name, {"items": 300}, noisy=True, started=True)["iterations"] == {"privirec": 0}.get(name, 1)
    with_degrees = recipe(name, parameters_for(name, {"items": 300, "item_exponent": 0.25}, noisy=True), noisy=True)
    assert with_degrees.sum_of(1) == "degrees"
    assert parameters_for(name, {"items": 300})["user_exponent"] == {"privirec": 0.0}.get(name, 0.25)


FEW_ITEMS, USERS = 12, 30
PRIVATE: dict[str, dict[str, Any]] = {
    "arrays": {"shapes": {"w": [3]}},
    "colr": {"items": FEW_ITEMS, "dim": 4, "rank": 2},
    "fedmf": {"items": FEW_ITEMS, "dim": 4},
    "privirec": {"items": FEW_ITEMS, "components": 3, "iterations": 2, "reveal_gram": True},
    "privirec-k": {"items": FEW_ITEMS, "components": 3, "iterations": 2},
}
OTHERS = sorted(set(OWN) - set(PRIVATE))


def make(name: str, **changes: Any) -> Recipe:
    return recipe(name, PRIVATE.get(name, {"items": FEW_ITEMS}) | changes)


@pytest.mark.parametrize("name", OTHERS)
def test_recipes_without_a_bound_refuse_and_name_the_command_that_lists_those_with_one(name: str) -> None:
    with pytest.raises(ParameterError, match=f"recipe '{name}' cannot be .*hushrec privacy plan lists"):
        make(name).sensitivity(1)
    assert sorted(noisy_recipes()) == sorted(PRIVATE)


def test_sums_of_counts_and_of_changes() -> None:
    for name in ("colr", "fedmf"):
        values = 5 * {"colr": 2, "fedmf": 4}[name]  # of an item and its 4 negatives
        assert make(name).sensitivity(1) == Sensitivity(per_item=values)
        counted = make(name, item_bias="counts", count_sums=2)
        assert [counted.sensitivity(number) for number in (1, 2, 3)] == [
            Sensitivity(counts=True),
            Sensitivity(counts=True),
            Sensitivity(per_item=values),
        ]
    assert make("arrays").sensitivity(1) == Sensitivity()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), exponents=st.tuples(st.floats(0.5, 1), st.floats(0, 0.5)))
def test_no_part_of_privirec_is_longer_than_its_bound(seed: int, exponents: tuple[float, float]) -> None:
    chosen = make("privirec", user_exponent=exponents[0], item_exponent=exponents[1])
    rng = np.random.default_rng(seed)
    rows = (rng.random((USERS, FEW_ITEMS)) < rng.uniform(0.1, 0.9)).astype(float)
    rows[np.arange(USERS), rng.integers(0, FEW_ITEMS, USERS)] = 1
    state = chosen.initial_state(SEED)
    iteration = Sensitivity(l2=1.0, per_item=3)
    bounds = [Sensitivity(counts=True), iteration, iteration, Sensitivity(l2=pytest.approx(0.5**0.5))]
    for number, bound in enumerate(bounds, start=1):
        spec = chosen.round_spec(SEED, number)
        parts = [chosen.contribute(state, spec, Local(np.flatnonzero(row))).vector for row in rows]
        assert chosen.sensitivity(number) == bound
        if bound.counts:
            assert set(np.concatenate(parts)) <= {0.0, 1.0}
        else:
            assert max(map(np.linalg.norm, parts)) <= 1 + 1e-6  # float32 columns of Q
        state = chosen.absorb(state, spec, np.sum(parts, axis=0), USERS)


def test_rows_that_can_be_longer_than_1_are_refused() -> None:
    chosen = make("privirec-k", user_exponent=0.25, item_exponent=0.3)
    with pytest.raises(ParameterError, match=r"choose user_exponent >= 0\.5, not 0\.25"):
        chosen.sensitivity(2)


def test_a_measurement_has_the_norm_of_its_values() -> None:
    made = with_evaluation(make("fedmf", item_bias="counts"), Evaluation(every=2), 8)
    found = {number: made.sensitivity(number) for number in range(1, 6)}
    assert found[1] == Sensitivity(counts=True)
    assert found[3] == found[4] == Sensitivity(per_item=20)
    for number in (2, 5):
        values = made.layout(number).length - 1
        part = made.contribute(made.initial_state(SEED), made.round_spec(SEED, number), Local(np.ones(values)))
        assert found[number] == Sensitivity(l2=pytest.approx(float(np.linalg.norm(part.vector))))
    assert made.layout(2).length > made.layout(5).length
