"""A federation in one process: each recipe trains the same model over plain, CKKS and masked sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_sdk.lab.data.interactions import LeaveOneOut, leave_one_out
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import FOLD_BATCH, Federation
from client_sdk.training.mf import MFConfig
from protocols.errors import CombinationError

USERS, COHORT, ROUNDS = 60, FOLD_BATCH + 4, 4
RECIPES: dict[str, dict[str, Any]] = {"fedmf": {}, "colr": {"rank": 2}}


@pytest.fixture(scope="module")
def data() -> LeaveOneOut:
    return leave_one_out(synthetic(SyntheticConfig(users=USERS, items=80, positives=12)), 0)


def federation(data: LeaveOneOut, recipe: str, mechanism: str, **changes: Any) -> Federation:
    parameters = {"items": data.train.n_items, "dim": 6, **RECIPES[recipe]}
    return Federation(
        data.train, recipe, parameters, mechanism, training=MFConfig(epochs=1), cohort_size=COHORT, **changes
    )


@pytest.mark.parametrize("recipe", sorted(RECIPES))
@pytest.mark.parametrize(
    ("mechanism", "parameters"),
    [("ckks", {"set": "standard"}), ("ckks", {"set": "compact", "wire": "expanded"}), ("masked", {"dropout": 0.0})],
)
def test_encrypted_and_plain_sums_train_the_same_model(
    data: LeaveOneOut, recipe: str, mechanism: str, parameters: dict[str, Any]
) -> None:
    plain = federation(data, recipe, "plain")
    encrypted = federation(data, recipe, mechanism, mechanism_parameters=parameters)
    ours, theirs = list(encrypted.run(ROUNDS)), list(plain.run(ROUNDS))
    # an absorbed value is a sum's value over a count of at least 1, once a round; float32 and training add their own
    tolerance = 4 * ROUNDS * (encrypted.plan.predicted_error + plain.plan.predicted_error) + 1e-5
    np.testing.assert_allclose(encrypted.state.item_factors, plain.state.item_factors, atol=tolerance)
    np.testing.assert_allclose(encrypted.user_factors, plain.user_factors, atol=10 * tolerance)
    assert [r.survivors for r in ours] == [COHORT] * ROUNDS
    assert [r.number for r in ours] == [r.number for r in theirs] == [1, 2, 3, 4]
    assert ours[0].bytes_up > theirs[0].bytes_up or mechanism == "masked"


def test_every_user_is_asked_once_before_any_user_is_asked_twice(data: LeaveOneOut) -> None:
    made = federation(data, "colr", "plain")
    turns = np.concatenate(
        [made.cohort(made.recipe.round_spec(made.task_seed, number)) for number in range(1, USERS // COHORT + 1)]
    )
    assert sorted(turns) == list(range(USERS))
    first, again = (made.recipe.round_spec(made.task_seed, number) for number in (1, 1 + USERS // COHORT))
    np.testing.assert_array_equal(made.cohort(first), made.cohort(again))


def test_uniform_sampling_draws_each_cohort_independently_without_repetition(data: LeaveOneOut) -> None:
    made = federation(data, "colr", "plain", sampling="uniform")
    cohorts = [made.cohort(made.recipe.round_spec(made.task_seed, number)) for number in range(1, 40)]
    assert all(np.unique(cohort).size == COHORT for cohort in cohorts)
    turns = np.bincount(np.concatenate(cohorts), minlength=USERS)
    assert turns.max() - turns.min() > 1  # taking turns, no two users would differ by more
    assert turns.min() > 0
    again = federation(data, "colr", "plain", sampling="uniform")
    np.testing.assert_array_equal(again.cohort(again.recipe.round_spec(again.task_seed, 7)), cohorts[6])


def test_the_run_depends_on_the_seed_only(data: LeaveOneOut) -> None:
    def factors(seed: int) -> np.ndarray:
        made = federation(data, "colr", "plain", seed=seed)
        list(made.run(2))
        return made.state.item_factors

    np.testing.assert_array_equal(factors(1), factors(1))
    assert np.abs(factors(1) - factors(2)).max() > 0.01


@pytest.mark.parametrize("recipe", ["svd", "scolr"])
def test_unsupported_combinations_are_refused(data: LeaveOneOut, recipe: str) -> None:
    with pytest.raises(CombinationError, match="cannot be combined"):
        Federation(data.train, recipe, {"items": data.train.n_items, "dim": 6, "rank": 2}, "ckks")
