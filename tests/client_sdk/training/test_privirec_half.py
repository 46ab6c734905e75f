"""The client side of PriviRec: contributions computed by hand and against the dense matrix, and the filters."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from client_sdk.history import History
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.training import client_half
from client_sdk.training.base import LocalResult
from client_sdk.training.graph_filters import FILTERS, Components
from client_sdk.training.privirec import PriviRecHalf, components_of, matching_filter
from protocols.errors import ParameterError
from protocols.recipes.privirec import PriviRecK, PriviRecState
from protocols.recipes.registry import recipe
from protocols.recipes.spectrum import chosen_weight, triangle_length

TASK_SEED = bytes(range(32))
USERS, ITEMS, K = 60, 40, 6
MINE = np.array([31, 4, 17], dtype=np.int32)


@pytest.fixture(scope="module")
def train() -> Interactions:
    return synthetic(SyntheticConfig(users=USERS, items=ITEMS, positives=8))


def make(name: str = "privirec-k", **changes: Any) -> PriviRecK:
    full = {"reveal_gram": True} if name == "privirec" else {}
    made = recipe(name, {"items": ITEMS, "components": K, "iterations": 2, **full, **changes})
    assert isinstance(made, PriviRecK)
    return made


def part(chosen: PriviRecK, state: PriviRecState, step: int, items: np.ndarray = MINE) -> LocalResult:
    spec = chosen.round_spec(TASK_SEED, step)
    return client_half(chosen).contribute(spec, "c", state, History(items), {}, np.random.default_rng(0))


def state_of(chosen: PriviRecK, degrees: np.ndarray, step: int = 1) -> PriviRecState:
    first = chosen.absorb(chosen.initial_state(TASK_SEED), chosen.round_spec(TASK_SEED, 1), degrees, USERS)
    assert isinstance(first, PriviRecState)
    return first.following(chosen.round_spec(TASK_SEED, step))


def train_all(train: Interactions, name: str, **changes: Any) -> Federation:
    full = {"reveal_gram": True} if name == "privirec" else {}
    parameters = {"items": ITEMS, "components": K, "iterations": 2, **full, **changes}
    made = Federation(train, name, parameters, cohort_size=USERS, seed=3)
    list(made.run(100))
    return made


def normalised(train: Interactions, exponent: float = 0.5) -> np.ndarray:
    rows = interaction_rows(train).toarray().astype(float)
    by_item = np.where(rows.sum(0) > 0, np.maximum(rows.sum(0), 1) ** (exponent - 1), 0)
    return rows.sum(1)[:, None] ** -exponent * rows * by_item


def test_contribution_to_an_iteration_is_nonzero_for_the_clients_items_only() -> None:
    """The nonzero rows are the user's list of items, which is why the contribution must be dense and masked."""
    chosen = make()
    state = state_of(chosen, np.full(ITEMS, 9.0))
    rows = part(chosen, state, 2).blocks[0].reshape(ITEMS, K)
    np.testing.assert_array_equal(np.flatnonzero(np.abs(rows).max(axis=1)), np.sort(MINE))
    assert np.linalg.matrix_rank(rows) == 1
    scales = np.full(3, 3**-0.5 * 9**-0.5)
    np.testing.assert_allclose(rows[MINE], np.outer(scales, scales @ state.basis[MINE].astype(float)), rtol=1e-12)


def test_contributions_to_degrees_and_gram() -> None:
    chosen, degrees = make("privirec"), np.arange(1.0, ITEMS + 1)
    ones = part(chosen, chosen.initial_state(TASK_SEED), 1).blocks[0]
    assert (np.flatnonzero(ones).tolist(), ones.sum()) == (sorted(MINE.tolist()), 3)
    pairs = part(chosen, state_of(chosen, degrees, 3), 4).blocks[0]
    dense = np.zeros((ITEMS, ITEMS))
    dense[np.triu_indices(ITEMS)] = pairs
    row = np.zeros(ITEMS)
    row[MINE] = 3**-0.5 * degrees[MINE] ** -0.5
    np.testing.assert_allclose(dense, np.triu(np.outer(row, row)), atol=1e-15)
    assert np.count_nonzero(pairs) == 6


def test_item_with_degree_zero_contributes_zero() -> None:
    """The client was not in the first sum, so the degree of its item is 0."""
    chosen, degrees = make(), np.full(ITEMS, 4.0)
    degrees[17] = 0
    rows = part(chosen, state_of(chosen, degrees), 2).blocks[0].reshape(ITEMS, K)
    np.testing.assert_array_equal(np.flatnonzero(np.abs(rows).max(axis=1)), [4, 31])


def test_recommendations_on_a_device_do_not_import_scipy() -> None:
    code = (
        "import sys, numpy as np\n"
        "from client_sdk.history import History\n"
        "from client_sdk.training import client_half\n"
        "from protocols.recipes.registry import recipe\n"
        "made = recipe('privirec', {'items': 6, 'components': 2, 'iterations': 1, 'reveal_gram': True})\n"
        "state = made.initial_state(bytes(32))\n"
        "for number in range(1, made.steps + 1):\n"
        "    total = np.ones(made.layout(number).length)\n"
        "    state = made.absorb(state, made.round_spec(bytes(32), number, number), total, 3)\n"
        "for name in ('ease', 'turbo-cf'):\n"
        "    scores = client_half(made, graph_filter=name).scores(state, {}, History(np.array([1, 4], np.int32)))\n"
        "    assert scores.shape == (6,)\n"
        "assert 'scipy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_clients_without_items_and_models_of_a_different_sum_are_refused() -> None:
    chosen = make()
    with pytest.raises(ParameterError, match="without interactions"):
        part(chosen, chosen.initial_state(TASK_SEED), 1, MINE[:0])
    with pytest.raises(ParameterError, match="sum 2 follows the model of sum 1, not that of 0"):
        part(chosen, chosen.initial_state(TASK_SEED), 2)
    with pytest.raises(ParameterError, match="no singular vectors yet, which recommendations need: 1 of 3"):
        client_half(chosen).scores(state_of(chosen, np.ones(ITEMS)), {}, History(MINE))


@pytest.mark.parametrize("exponent", [0.5, 0.7])
def test_complete_task_gives_the_singular_vectors_and_the_gram_matrix(train: Interactions, exponent: float) -> None:
    made = train_all(train, "privirec", iterations=60, rayleigh_ritz=True, oversampling=6, user_exponent=exponent)
    components = components_of(made.recipe, made.state)
    exact = normalised(train, exponent)
    assert made.state.round_number == 62
    np.testing.assert_array_equal(components.item_degrees, train.item_degrees())
    np.testing.assert_allclose(components.gram, exact.T @ exact, atol=1e-5)
    _, values, transposed = np.linalg.svd(exact)
    np.testing.assert_allclose(components.singular_values, values[:K], atol=1e-5)
    np.testing.assert_allclose(np.abs(np.diag(transposed[:K] @ components.vectors)), 1, atol=1e-3)


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize("variant", ["privirec", "privirec-k"])
def test_scores_on_the_device_equal_the_filter_over_the_sums(train: Interactions, variant: str, name: str) -> None:
    made = train_all(train, variant, iterations=4)
    half = client_half(made.recipe, graph_filter=name)
    exact = normalised(train)
    gram = exact.T @ exact if variant == "privirec" else None
    scores = half.scores(made.state, {}, train.history(5))
    state = made.state
    q, s = state.basis.astype(float), state.singular_values.astype(float)
    p = gram if gram is not None else q @ np.diag(s**2) @ q.T
    row = np.zeros(ITEMS)
    row[train.positives(5)] = 1
    roots = np.sqrt(train.item_degrees())
    ideal = row / np.where(roots > 0, roots, 1) @ q @ q.T * roots
    blurred = row @ p
    inverse = np.linalg.inv(p + chosen_weight(s) * np.eye(ITEMS))
    scaled = row / np.where(roots > 0, roots, 1)
    expected = {
        "ease": (scaled - scaled @ inverse / np.diag(inverse)) * roots,
        "gf-cf": blurred + 0.3 * ideal,
        "turbo-cf": blurred,
        "bspm-em": (blurred + 0.3 * ideal) @ (np.eye(ITEMS) - p),
        "bspm-lm": blurred @ (np.eye(ITEMS) - p) + 0.3 * ideal,
    }[name]
    np.testing.assert_allclose(scores, expected, atol=1e-5 * max(1, np.abs(expected).max()))


def test_matching_filter_has_the_recipes_exponent(train: Interactions) -> None:
    def chosen(exponent: float, name: str | None = None) -> Any:
        half = client_half(make(user_exponent=exponent), graph_filter=name)
        assert isinstance(half, PriviRecHalf)
        return half.graph_filter

    assert chosen(0.5) is FILTERS["gf-cf"]
    assert chosen(0.5, "bspm-em") is FILTERS["bspm-em"]
    assert chosen(0.6).user_exponent == 0.6
    made = train_all(train, "privirec-k", user_exponent=0.6)
    assert np.isfinite(client_half(made.recipe).scores(made.state, {}, History(MINE))).all()
    with pytest.raises(ParameterError, match="use turbo-cf or ease"):
        chosen(0.6, "gf-cf")
    recommended = make(user_exponent=0.25, item_exponent=0.3125)
    assert matching_filter(recommended) is FILTERS["ease"]
    for name in ("gf-cf", "turbo-cf", "bspm-em"):
        with pytest.raises(ParameterError, match="item exponent .*, but this task has 0.25 and 0.3125"):
            matching_filter(recommended, name)
    with pytest.raises(ParameterError, match="unknown graph filter"):
        chosen(0.5, "svd")
    with pytest.raises(ParameterError, match="has no graph filter"):
        client_half(recipe("fedmf", {"items": ITEMS}), graph_filter="gf-cf")


def test_filters_do_not_get_oversampled_columns(train: Interactions) -> None:
    made = train_all(train, "privirec-k", oversampling=5, rayleigh_ritz=True)
    components = components_of(made.recipe, made.state)
    assert isinstance(components, Components)
    assert (made.state.basis.shape, components.vectors.shape) == ((ITEMS, K + 5), (ITEMS, K))
    assert components.gram is None


def test_masked_and_plain_sums_agree_within_the_predicted_error() -> None:
    users = 16
    data = synthetic(SyntheticConfig(users=users, items=ITEMS, positives=8))
    parameters = {"items": ITEMS, "components": K, "iterations": 1, "reveal_gram": True}
    made = [
        Federation(data, "privirec", parameters, mechanism, options, cohort_size=users, seed=3)
        for mechanism, options in (("masked", {"dropout": 0.0}), ("plain", {}))
    ]
    for federation in made:
        assert [done.survivors for done in federation.run(9)] == [users] * 3
    masked, plain = (federation.state for federation in made)
    np.testing.assert_array_equal(masked.item_degrees, plain.item_degrees)
    assert masked.gram.size == triangle_length(ITEMS)
    np.testing.assert_allclose(masked.gram, plain.gram, atol=2 * made[0].plan.predicted_error + 1e-6)
    np.testing.assert_allclose(masked.basis @ masked.basis.T, plain.basis @ plain.basis.T, atol=1e-3)
