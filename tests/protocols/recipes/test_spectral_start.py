"""The spectral start of a model, and SVD compression: the best low-rank part of what was trained, and of the mean."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.training.factors import USER_FACTOR
from protocols.advice import STARTED, parameters_for
from protocols.errors import ParameterError
from protocols.messages import Evaluation
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.factors import CountedFactors, item_biases
from protocols.recipes.fedmf import low_rank
from protocols.recipes.privirec import PriviRecState
from protocols.recipes.registry import recipe
from protocols.recipes.spectral_start import (
    Source,
    projected_user,
    spectral_factors,
    start_of,
    start_parameters,
    start_state,
)
from protocols.recipes.spectrum import chosen_weight
from protocols.recipes.state import state_as

RECIPES = ["colr", "pfedclr"]
DIM, SEED, B = 8, bytes(range(32)), 0.25


@pytest.fixture(scope="module")
def train() -> Interactions:
    return synthetic(SyntheticConfig(users=60, items=50, positives=10))


@pytest.fixture(scope="module")
def spectrum(train: Interactions) -> Source:
    return _spectrum(train)


def _spectrum(train: Interactions) -> Source:
    made = Federation(
        train,
        "privirec-k",
        {"items": train.n_items, "components": 20, "iterations": 10, "item_exponent": B},
        cohort_size=train.n_users,
    )
    list(made.run(20))
    return Source(made.state, B)


def parameters(items: int, **changes: object) -> dict[str, object]:
    return {"items": items, "dim": DIM, "item_bias": "counts", **changes}


def test_round_0_scores_like_the_low_pass_filter_with_popularity_added(train: Interactions, spectrum: Source) -> None:
    made = Federation(train, "fedmf", parameters(train.n_items, start_weight=2.0), cohort_size=9, start=spectrum)
    rows = np.zeros((train.n_users, train.n_items))
    for user in range(train.n_users):
        rows[user, train.positives(user)] = 1.0
    degrees, size = rows.sum(axis=0), rows.sum(axis=1)
    state = state_as(spectrum.state, PriviRecState)
    order = np.argsort(-state.singular_values)[:DIM]
    vectors, values = state.basis[:, order].astype(float), state.singular_values.astype(float)
    shares = values[order] ** 2 / (values[order] ** 2 + chosen_weight(values))
    factors = degrees[:, None] ** B * vectors * np.sqrt(shares)
    factors *= np.sqrt(train.n_items / (factors**2).sum())
    counts = np.maximum(degrees, 1.0)
    weights = rows * (counts.mean() / counts) ** (2 * B) / np.sqrt(size)[:, None]
    expected = 2.0 * weights @ factors @ factors.T + item_biases(made.state)
    found = [
        made.half.scores(made.state, made.client_states[user], train.history(user)) for user in range(train.n_users)
    ]
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-3)
    assert np.array_equal(made.state.item_counts, degrees)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", RECIPES)
def test_a_started_task_counts_nothing_and_trains_from_the_projected_factor(
    name: str, train: Interactions, spectrum: Source
) -> None:
    made = Federation(train, name, parameters(train.n_items), cohort_size=60, start=spectrum)
    first = made.state
    assert isinstance(first, CountedFactors)
    assert made.recipe.main_sum == 1
    encoded = made.recipe.encode_state(first)
    assert len(encoded) == made.recipe.state_bytes(1)
    assert np.array_equal(made.recipe.decode_state(0, encoded).item_factors, first.item_factors)
    assert not any(state[USER_FACTOR].any() for state in made.client_states)
    list(made.run(1))
    own = projected_user(first, train.positives(0), 16.0, B)
    assert np.linalg.norm(made.client_states[0][USER_FACTOR] - own) < 0.5 * np.linalg.norm(own)
    assert not np.array_equal(made.state.item_factors, first.item_factors)  # type: ignore[attr-defined]
    with pytest.raises(ParameterError, match="not from the seed"):
        made.recipe.initial_state(SEED)


def test_the_parameters_name_the_source_and_the_digests(train: Interactions, spectrum: Source) -> None:
    plain = recipe("colr", parameters(train.n_items))
    assert start_of(plain.parameters) is None
    assert start_of(recipe("privirec-k", {"items": 300}).parameters) is None
    given, body = start_parameters(plain, parameters(train.n_items), "t_1", b"source", spectrum)
    start = start_of(recipe("colr", given).parameters)
    assert start is not None
    assert (start.task, start.round, start.item_exponent) == ("t_1", 11, B)
    assert start.snapshot == hashlib.sha256(b"source").hexdigest()
    assert start.digest == hashlib.sha256(body).hexdigest()


def test_an_evaluated_task_starts_too_and_measures_popularity(train: Interactions, spectrum: Source) -> None:
    evaluation = Evaluation(every=2)
    given, _ = start_parameters(
        recipe("colr", parameters(train.n_items)), parameters(train.n_items), "t_1", b"", spectrum
    )
    made = with_evaluation(recipe("colr", given), evaluation, 6)
    state = start_state(made, spectrum)
    assert np.array_equal(
        made.decode_state(0, made.encode_state(state)).model.item_factors,
        state.model.item_factors,  # type: ignore[attr-defined]
    )
    assert made.constants == ("popularity hr@10", "popularity ndcg@10")  # type: ignore[attr-defined]


def test_what_cannot_start_is_refused(train: Interactions, spectrum: Source) -> None:
    made = recipe("colr", parameters(train.n_items))
    with pytest.raises(ParameterError, match="PriviRecState is needed"):
        start_state(made, Source(made.initial_state(SEED), B))
    with pytest.raises(ParameterError, match="item biases|item_bias"):
        start_parameters_of("colr", {"items": train.n_items, "dim": DIM}, spectrum)
    with pytest.raises(ParameterError, match="has 50"):
        start_state(recipe("colr", parameters(train.n_items + 1)), spectrum)
    with pytest.raises(ParameterError, match="20 singular vectors"):
        spectral_factors(spectrum, 21)
    with pytest.raises(ParameterError, match="cannot start"):
        start_state(recipe("topk", {"items": train.n_items}), spectrum)
    state = state_as(spectrum.state, PriviRecState)
    early = PriviRecState(1, 1, state.item_degrees, state.clients, state.basis, np.zeros(20, np.float32))
    with pytest.raises(ParameterError, match="no singular values"):
        spectral_factors(Source(early, B), DIM)


def start_parameters_of(name: str, given: dict[str, object], spectrum: Source) -> None:
    made, _ = start_parameters(recipe(name, given), given, "t_1", b"", spectrum)
    recipe(name, made)


def test_recommended_values_of_started_tasks_are_accepted(spectrum: Source, train: Interactions) -> None:
    for name in STARTED:
        given = parameters_for(name, {"items": train.n_items, "dim": DIM}, started=True)
        start_parameters_of(name, given, spectrum)
    assert parameters_for("colr", {"items": 3, "learning_rate": 0.7}, started=True)["learning_rate"] == 0.7


# --- SVD compression: the best low-rank part of what a client trained, and of the mean of all -------------------------


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 30), rank=st.integers(1, DIM))
def test_low_rank_is_the_truncated_svd(seed: int, rows: int, rank: int) -> None:
    matrix = np.random.default_rng(seed).normal(size=(rows, DIM))
    left, sizes, right = np.linalg.svd(matrix, full_matrices=False)
    expected = left[:, :rank] * sizes[:rank] @ right[:rank]
    np.testing.assert_allclose(low_rank(matrix, rank), expected, atol=1e-7)
