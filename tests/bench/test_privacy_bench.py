"""The benchmark's sums of a population are those of its clients' contributions, and their noise is the task's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from bench.privacy import Population, figures_of, noisy, privately, train_popularity, train_spectrum
from protocols.recipes.base import Local
from protocols.recipes.private import Private
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.registry import recipe
from protocols.recipes.spectrum import row_starts

ITEMS, USERS = 24, 60


def population(users: int | None = None) -> Population:
    rng = np.random.default_rng(4)
    rows = (rng.random((USERS, ITEMS)) < 0.3).astype(np.float32)
    rows[np.arange(USERS), rng.integers(0, ITEMS, USERS)] = 1
    return Population(csr_array(rows), users, 0)


def test_sums_of_a_population_are_those_of_its_contributions() -> None:
    made = recipe(
        "privirec",
        {"items": ITEMS, "components": 4, "iterations": 1, "item_exponent": 0.0, "reveal_gram": True},
    )
    assert isinstance(made, PriviRecK)
    whole = population()
    state, bound = made.initial_state(bytes(32)), made.sensitivity(3).l2
    for number in (1, 2, 3):
        spec = made.round_spec(bytes(32), number)
        parts = [made.contribute(state, spec, Local(whole.rows[[user]].indices)).vector for user in range(USERS)]
        total = np.sum(parts, axis=0)
        if number == 1:
            np.testing.assert_array_equal(total, whole.degrees)
        elif number == 2:
            np.testing.assert_allclose(total, whole.product(state.basis), atol=1e-4)
        else:
            np.testing.assert_allclose(total, whole.gram(bounded=False), atol=1e-4)
            clipped = sum(part * min(1.0, bound / np.linalg.norm(part)) for part in parts)
            np.testing.assert_allclose(clipped, whole.gram(bounded=True), atol=1e-4)
        state = made.absorb(state, spec, total, USERS)


def test_resampled_clients_keep_most_of_their_rows() -> None:
    many = population(5000)
    assert many.degrees.sum() / 5000 == pytest.approx(0.7 * population().rows.nnz / USERS, rel=0.03)
    assert many.gram(bounded=False)[row_starts(ITEMS)].sum() == pytest.approx(5000, rel=0.01)


def test_the_noise_of_a_sum_has_the_deviation_that_the_recipe_is_told() -> None:
    inner = recipe("privirec-k", {"items": 400, "components": 50, "iterations": 2, "item_exponent": 0.0})
    made = privately(inner, 4.0, 3, 1000)
    assert isinstance(made, Private)
    state = replace(made.initial_state(bytes(32)), round_number=1, sum_index=1)
    spec, exact = made.round_spec(bytes(32), 2), np.zeros(400 * 50)
    total = noisy(made, spec, state, exact, 1000, np.random.default_rng(0))
    values, told = made.in_own_units(state, spec, total, 1000)
    assert values.std() == pytest.approx(told.noise, rel=0.02)
    assert told.noise == pytest.approx(made.multiplier * (1000 / 900) ** 0.5, rel=1e-6)
    alone = privately(inner, 4.0, 3, 1000, local=True)
    assert isinstance(alone, Private)
    assert alone.multiplier == pytest.approx(made.multiplier, rel=0.01)
    assert alone.in_own_units(state, spec, total, 1000)[1].noise == pytest.approx(alone.multiplier * 1000**0.5)


@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_every_method_scores_all_users(epsilon: float | None) -> None:
    whole, users = population(3000), np.arange(USERS)
    for name in ("privirec", "privirec-k"):
        scores = train_spectrum(whole, name, epsilon, 0, earlier=population(2000) if name == "privirec-k" else None)(
            users
        )
        assert scores.shape == (USERS, ITEMS)
        assert np.isfinite(scores).all()
    counts = train_popularity(whole, epsilon, 0, local=False)(users)[0]
    order = np.corrcoef(counts, np.log(whole.degrees + 1))[0, 1]
    assert order > 0.8


def test_figures_compare_with_no_noise_and_with_popularity() -> None:
    found = {
        "ml-1m.popularity.epsnone": {0: {"ndcg20": 0.02}},
        "ml-1m.privirec.eps2": {0: {"ndcg20": 0.03}},
        "ml-1m.privirec.epsnone": {0: {"ndcg20": 0.04}},
    }
    figures = figures_of(found)
    assert figures["ml-1m.privirec.eps2.kept"] == pytest.approx(0.75)
    assert figures["ml-1m.privirec.eps2.over_popularity"] == pytest.approx(1.5)
    assert "ml-1m.privirec.epsnone.kept" not in figures
