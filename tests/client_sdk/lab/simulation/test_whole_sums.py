"""Sums computed as whole matrix products are what the clients' contributions add up to."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.lab.whole import whole_sum
from client_sdk.training import client_half
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.rfrec import RFRecState
from protocols.recipes.state import state_as
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.run import run_masked_sum

EXPONENTS = [{}, {"user_exponent": 0.25, "item_exponent": 0.3125}, {"user_exponent": 0.0, "item_exponent": 0.0}]


def rows(users: int = 40, items: int = 30) -> Interactions:
    return synthetic(SyntheticConfig(users=users, items=items, positives=8))


@pytest.mark.parametrize("exponents", EXPONENTS)
@pytest.mark.parametrize(("mechanism", "parameters"), [("plain", {}), ("masked", {"bits": 24}), ("masked", {})])
def test_whole_sums_are_those_of_the_clients(
    mechanism: str, parameters: dict[str, int], exponents: dict[str, float]
) -> None:
    train = rows()
    given = {"items": 30, "components": 6, "iterations": 3, "rayleigh_ritz": True, **exponents}
    made = Federation(train, "privirec-k", given, mechanism, parameters, cohort_size=25, seed=2, masks=False)
    recipe = made.recipe
    assert isinstance(recipe, PriviRecK)
    half = client_half(recipe)
    for number in range(1, recipe.steps + 1):
        spec = recipe.round_spec(made.task_seed, number)
        plan, cohort = made._plan(spec.sum_index), made.cohort(spec)
        vectors = {
            str(user): half.contribute(
                spec, str(user), made.state, train.history(int(user)), {}, np.random.default_rng(0)
            ).blocks[0]
            for user in cohort
        }
        found = whole_sum(recipe, plan, spec, made.state, train, cohort)
        if isinstance(plan, MaskedPlan):
            np.testing.assert_array_equal(found, run_masked_sum(plan, vectors).total)
        else:
            np.testing.assert_allclose(found, sum(vectors.values()), rtol=1e-6, atol=1e-6)
        assert np.ptp(found) > 0
        next(made.run(1))


def test_users_are_scored_together_as_on_their_devices() -> None:
    train = rows()
    made = Federation(train, "privirec-k", {"items": 30, "components": 6, "iterations": 3}, cohort_size=40)
    list(made.run(9))
    alone = [made.half.scores(made.state, {}, train.history(user)) for user in range(40)]
    np.testing.assert_allclose(made.scores(np.arange(40)), np.stack(alone), atol=1e-5)


def test_ratings_of_all_devices_are_trained_together_as_on_each() -> None:
    rng = np.random.default_rng(4)
    owners, items = np.nonzero(rng.random((30, 20)) < 0.4)
    train = Interactions.from_pairs(
        owners, items, n_users=30, n_items=20, ratings=rng.integers(1, 6, owners.size).astype(np.float32)
    )
    parameters = {"items": 20, "dim": 4, "item_bias": "means", "penalty": 0.3, "learning_rate": 0.03}
    apart, together = (
        Federation(train, "rfrec", parameters, mechanism, cohort_size=30, seed=5) for mechanism in ("masked", "plain")
    )
    for made in (apart, together):
        made.masks = False  # masked sums are computed client by client
        list(made.run(1 + 12))
    everybody = np.arange(30)
    expected = apart.scores(everybody)
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(together.scores(everybody), expected, atol=2e-3)
    factors = (state_as(made.state, RFRecState).item_factors for made in (together, apart))
    np.testing.assert_allclose(*factors, atol=2e-3)
