"""The client side of PriviRec: contributions against the dense matrix, and each filter against its equations."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from client_sdk.history import History
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.training import client_side, graph_filters
from client_sdk.training.base import LocalResult, TrainingConfig
from client_sdk.training.graph_filters import BSPM, FILTERS, GFCF, Components, Ease, TurboCF, user_row
from client_sdk.training.privirec import components_of, matching_filter
from protocols.errors import ParameterError
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import recipe
from protocols.recipes.spectrum import chosen_weight

TASK_SEED = bytes(range(32))
USERS, ITEMS, K = 60, 40, 6
MINE = np.array([31, 4, 17], dtype=np.int32)


@pytest.fixture(scope="module")
def train() -> Interactions:
    return synthetic(SyntheticConfig(users=USERS, items=ITEMS, positives=8))


def make(name: str = "privirec-k", **changes: Any) -> PriviRecK:
    full = {"reveal_gram": True, "min_owners": 1}
    return recipe(name, {"items": ITEMS, "components": K, "iterations": 2, **full, **changes})


def part(chosen: PriviRecK, state: PriviRecState, step: int, items: np.ndarray = MINE) -> LocalResult:
    spec = chosen.round_spec(TASK_SEED, step)
    return client_side(chosen).contribute(spec, "c", state, History(items), {}, np.random.default_rng(0))


def state_of(chosen: PriviRecK, degrees: np.ndarray, step: int = 1) -> PriviRecState:
    first = chosen.absorb(chosen.initial_state(TASK_SEED), chosen.round_spec(TASK_SEED, 1), degrees, USERS)
    return first.following(chosen.round_spec(TASK_SEED, step))


def train_all(train: Interactions, name: str, **changes: Any) -> Federation:
    full = {"reveal_gram": True, "min_owners": 1}
    parameters = {"items": ITEMS, "components": K, "iterations": 2, **full, **changes}
    made = Federation(train, name, parameters, cohort_size=USERS, seed=3)
    list(made.run(100))
    return made


def test_contribution_to_an_iteration_is_nonzero_for_the_clients_items_only() -> None:
    """The nonzero rows are the user's list of items, which is why the contribution must be dense and masked."""
    chosen = make()
    state = state_of(chosen, np.full(ITEMS, 9.0))
    rows = part(chosen, state, 2).blocks[0].reshape(ITEMS, K)
    np.testing.assert_array_equal(np.flatnonzero(np.abs(rows).max(axis=1)), np.sort(MINE))
    assert np.linalg.matrix_rank(rows) == 1
    scales = np.full(3, 3**-0.5 * 9**-0.5)
    np.testing.assert_allclose(rows[MINE], np.outer(scales, scales @ state.basis[MINE].astype(float)), rtol=1e-12)
    degrees = np.full(ITEMS, 4.0)
    degrees[17] = 0  # the client was not in the first sum
    rows = part(chosen, state_of(chosen, degrees), 2).blocks[0].reshape(ITEMS, K)
    np.testing.assert_array_equal(np.flatnonzero(np.abs(rows).max(axis=1)), [4, 31])


def test_recommendations_on_a_device_do_not_import_scipy() -> None:
    code = (
        "import sys, numpy as np\n"
        "from client_sdk.history import History\n"
        "from client_sdk.training import client_side\n"
        "from protocols.recipes.base import Local\n"
        "from protocols.recipes.registry import recipe\n"
        "whole = {'reveal_gram': True, 'min_owners': 1}\n"
        "made = recipe('privirec', {'items': 6, 'components': 2, 'iterations': 1, **whole})\n"
        "state = made.initial_state(bytes(32))\n"
        "for number in range(1, made.steps + 1):\n"
        "    spec, local = made.round_spec(bytes(32), number, number), Local(np.arange(6))\n"
        "    total = 3 * made.contribute(state, spec, local).vector\n"
        "    state = made.absorb(state, spec, total, 3)\n"
        "for name in ('ease', 'turbo-cf'):\n"
        "    scores = client_side(made, graph_filter=name).scores(state, {}, History(np.array([1, 4], np.int32)))\n"
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
        client_side(chosen).scores(state_of(chosen, np.ones(ITEMS)), {}, History(MINE))


@pytest.mark.parametrize("exponent", [0.5, 0.7])
def test_complete_task_gives_the_singular_vectors_and_the_gram_matrix(train: Interactions, exponent: float) -> None:
    made = train_all(train, "privirec", iterations=60, rayleigh_ritz=True, oversampling=6, user_exponent=exponent)
    components = components_of(made.recipe, made.state)
    exact = scaled_rows(interaction_rows(train).toarray().astype(np.float64), exponent)
    assert made.state.round_number == 62
    assert (made.state.basis.shape, components.vectors.shape) == ((ITEMS, K + 6), (ITEMS, K)), "none is oversampled"
    np.testing.assert_array_equal(components.item_degrees, train.item_degrees())
    np.testing.assert_allclose(components.gram, exact.T @ exact, atol=1e-5)
    _, values, transposed = np.linalg.svd(exact)
    np.testing.assert_allclose(components.singular_values, values[:K], atol=1e-5)
    np.testing.assert_allclose(np.abs(np.diag(transposed[:K] @ components.vectors)), 1, atol=1e-3)


def test_matching_filter_has_the_recipes_exponent(train: Interactions) -> None:
    def chosen(exponent: float, name: str | None = None) -> Any:
        return client_side(make(user_exponent=exponent), graph_filter=name).graph_filter

    assert chosen(0.5) is FILTERS["gf-cf"]
    assert chosen(0.5, "bspm-em") is FILTERS["bspm-em"]
    assert chosen(0.6).user_exponent == 0.6
    made = train_all(train, "privirec-k", user_exponent=0.6)
    assert np.isfinite(client_side(made.recipe).scores(made.state, {}, History(MINE))).all()
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
        client_side(recipe("fedmf", {"items": ITEMS}), graph_filter="gf-cf")
    with pytest.raises(ParameterError, match="'privirec-k' trains nothing: leave out the training settings"):
        client_side(recommended, TrainingConfig())


FEW_USERS, FEW_ITEMS, DIMS = 25, 14, 5


def random_rows(seed: int) -> np.ndarray:
    """A random binary matrix in which some items, and possibly users, have no interaction."""
    rng = np.random.default_rng(seed)
    matrix = (rng.random((FEW_USERS, FEW_ITEMS)) < 0.3).astype(np.float64)
    matrix[:, rng.integers(FEW_ITEMS)] = 0
    return matrix


def power_of(degrees: np.ndarray, exponent: float) -> np.ndarray:
    return np.where(degrees > 0, np.where(degrees > 0, degrees, 1.0) ** exponent, 0.0)


def scaled_rows(matrix: np.ndarray, a: float = 0.5, b: float | None = None) -> np.ndarray:
    """R~ = D_u^-a R D_i^-b."""
    b = 1 - a if b is None else b
    return power_of(matrix.sum(1), -a)[:, None] * matrix * power_of(matrix.sum(0), -b)


def decomposed(matrix: np.ndarray, a: float = 0.5, factored: bool = False, b: float | None = None) -> Components:
    r = scaled_rows(matrix, a, b)
    _, s, vt = np.linalg.svd(r)
    s = np.concatenate([s, np.zeros(vt.shape[0] - s.size)])
    k = s.size if factored else DIMS
    gram = None if factored else csr_array((r.T @ r).astype(np.float32))
    return Components(matrix.sum(0), vt[:k].T.astype(np.float32), s[:k].astype(np.float32), gram, a, b)


def ideal_part(matrix: np.ndarray) -> np.ndarray:
    _, _, vt = np.linalg.svd(scaled_rows(matrix))
    v, d = vt[:DIMS].T, matrix.sum(0)
    return matrix @ np.diag(power_of(d, -0.5)) @ v @ v.T @ np.diag(power_of(d, 0.5))


def sharpened(signal: np.ndarray, p: np.ndarray, solver: str, time: float, steps: int) -> list[np.ndarray]:
    h, points = time / steps, []
    for _ in range(steps):
        k1 = -signal @ p
        if solver == "euler":
            signal = signal + h * k1
        else:
            k2 = -(signal + h / 2 * k1) @ p
            k3 = -(signal + h / 2 * k2) @ p
            k4 = -(signal + h * k3) @ p
            signal = signal + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        points.append(signal)
    return points


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * max(1, np.abs(expected).max()))


@given(st.integers(0, 2**31), st.booleans(), st.sampled_from([0.0, 0.3, 1.0]))
@settings(deadline=None, max_examples=10)
def test_gf_cf_is_equation_4(seed, factored, alpha) -> None:
    matrix = random_rows(seed)
    p = scaled_rows(matrix).T @ scaled_rows(matrix)
    found = GFCF(alpha=alpha, ideal_dims=DIMS).scores(decomposed(matrix, factored=factored), csr_array(matrix))
    # The projector is unique only if there is a gap between the DIMS-th and the next singular value.
    s = np.linalg.svd(scaled_rows(matrix), compute_uv=False)
    if alpha == 0 or s[DIMS - 1] - s[DIMS] > 1e-3:
        close(found, matrix @ p + alpha * ideal_part(matrix))


@pytest.mark.parametrize("which", [1, 2, 3])
@pytest.mark.parametrize(("a", "power"), [(0.5, 1.0), (0.6, 0.7), (0.5, 1.4)])
def test_turbo_cf_is_equation_5(which, a, power) -> None:
    matrix = random_rows(3)
    p = (scaled_rows(matrix, a).T @ scaled_rows(matrix, a)) ** power
    expected = {
        1: matrix @ p,
        2: matrix @ (2 * p - p @ p),
        3: matrix @ (p + 0.01 * (-p @ p @ p + 10 * p @ p - 29 * p)),
    }[which]
    turbo = TurboCF(user_exponent=a, power=power, filter=which)
    close(turbo.scores(decomposed(matrix, a), csr_array(matrix)), expected)
    if power == 1:
        close(turbo.scores(decomposed(matrix, a, factored=True), csr_array(matrix)), expected)


@given(
    st.integers(0, 2**31),
    st.booleans(),
    st.sampled_from([0.03, 0.3, 10.0]),
    st.sampled_from([(0.5, 0.5), (0.25, 0.3125), (0.0, 0.0), (0.7, 0.1)]),
)
@settings(deadline=None, max_examples=15)
def test_ease_is_the_minimum_of_its_loss(seed, factored, weight, exponents) -> None:
    """Every column of B minimises |X - X b|^2 + weight |b|^2 without its own item: solved item by item.

    X = R for exponents of 0, which is Steck's EASE; from the Gram matrix and from a spectrum of full rank.
    """
    matrix, (a, b) = random_rows(seed), exponents
    scaled, items = scaled_rows(matrix, a, b), matrix.shape[1]
    learned = np.zeros((items, items))
    for item in range(items):
        others = np.arange(items) != item
        loss = scaled[:, others].T @ scaled[:, others] + weight * np.eye(items - 1)
        learned[others, item] = np.linalg.solve(loss, scaled[:, others].T @ scaled[:, item])
    degrees = matrix.sum(0)
    expected = matrix * power_of(degrees, -b) @ learned * power_of(degrees, b)
    close(Ease(weight).scores(decomposed(matrix, a, factored, b), csr_array(matrix)), expected)


def test_the_weight_of_ease_follows_from_the_last_singular_value() -> None:
    matrix = random_rows(4)
    components = decomposed(matrix, 0.25, b=0.3125)
    weight = chosen_weight(components.singular_values)
    rows = csr_array(matrix)
    np.testing.assert_array_equal(Ease().scores(components, rows), Ease(weight).scores(components, rows))


@pytest.mark.parametrize(
    ("factored", "early", "average", "solver", "time", "steps"),
    [(False, True, False, "euler", 1.2, 1), (True, False, True, "euler", 1.0, 3), (False, False, False, "rk4", 2.5, 1),
     (True, True, True, "rk4", 2.5, 2)],
)  # fmt: skip
def test_bspm_equals_the_solver_of_the_ode(factored, early, solver, time, steps, average) -> None:
    matrix = random_rows(6)
    p = scaled_rows(matrix).T @ scaled_rows(matrix)
    blurred, low_pass = matrix @ p, 0.2 * ideal_part(matrix)
    points = sharpened(blurred + low_pass if early else blurred, p, solver, time, steps)
    expected = np.mean([blurred, *points], axis=0) if average else points[-1]
    bspm = BSPM(early, solver, time, steps, beta=0.2, ideal_dims=DIMS, average_points=average)
    found = bspm.scores(decomposed(matrix, factored=factored), csr_array(matrix))
    close(found, expected if early else expected + low_pass)


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize("factored", [False, True])
def test_a_device_without_scipy_gets_the_same_scores(name: str, factored: bool) -> None:
    """Dense rows and matrices, as a device has them, against sparse ones."""
    matrix = random_rows(12)
    sparse = decomposed(matrix, factored=factored)
    dense = sparse if sparse.gram is None else replace(sparse, gram=sparse.gram.toarray())
    found = FILTERS[name].scores(dense, matrix.astype(np.float32))
    np.testing.assert_allclose(found, FILTERS[name].scores(sparse, csr_array(matrix, dtype=np.float32)), atol=1e-5)
    if not factored:
        powered = TurboCF(power=0.7, filter=2)
        np.testing.assert_allclose(
            powered.scores(dense, matrix.astype(np.float32)), powered.scores(sparse, csr_array(matrix)), atol=1e-5
        )
    with pytest.raises(ParameterError, match="binary"):
        FILTERS[name].scores(dense, 2 * matrix.astype(np.float32))


def test_scores_do_not_depend_on_other_users_or_chunks(monkeypatch) -> None:
    matrix = random_rows(8)
    components, everybody = decomposed(matrix), csr_array(matrix)
    for graph_filter in FILTERS.values():
        whole = graph_filter.scores(components, everybody)
        alone = graph_filter.scores(components, user_row(np.flatnonzero(matrix[4]), FEW_ITEMS))
        np.testing.assert_allclose(alone[0], whole[4], atol=1e-5)
        with monkeypatch.context() as patch:
            patch.setattr(graph_filters, "CHUNK_VALUES", 3 * FEW_ITEMS)
            np.testing.assert_allclose(graph_filter.scores(components, everybody), whole, atol=1e-5)


def test_user_without_items_and_item_without_users_score_zero() -> None:
    matrix = random_rows(9)
    components = decomposed(matrix)
    absent = int(np.flatnonzero(matrix.sum(0) == 0)[0])
    for graph_filter in FILTERS.values():
        assert not graph_filter.scores(components, user_row([], FEW_ITEMS)).any()
        assert not graph_filter.scores(components, csr_array(matrix))[:, absent].any()
        assert graph_filter.scores(components, csr_array((0, FEW_ITEMS), dtype=np.float32)).shape == (0, FEW_ITEMS)


def test_mismatched_rows_and_components_are_refused() -> None:
    matrix = random_rows(11)
    components, factors = decomposed(matrix), decomposed(matrix, factored=True)
    for graph_filter in FILTERS.values():
        with pytest.raises(ParameterError, match=f"rows must have {FEW_ITEMS} columns"):
            graph_filter.scores(components, user_row([0], FEW_ITEMS + 1))
        with pytest.raises(ParameterError, match="binary"):
            graph_filter.scores(components, 2 * csr_array(matrix))
        if graph_filter.user_exponent is not None:
            for other in ({"user_exponent": 0.4}, {"item_exponent": 0.25}):
                with pytest.raises(ParameterError, match="user exponent 0.5 and item exponent 0.5"):
                    graph_filter.scores(replace(components, **other), csr_array(matrix))
    with pytest.raises(ParameterError, match="needs the Gram matrix, not its factors"):
        TurboCF(power=0.7).scores(factors, csr_array(matrix))
    with pytest.raises(ParameterError, match="items must lie"):
        user_row([FEW_ITEMS], FEW_ITEMS)
    with pytest.raises(ParameterError, match="do not match"):
        replace(components, singular_values=np.ones(DIMS + 1, np.float32))
    with pytest.raises(ParameterError, match="the Gram matrix must be"):
        replace(components, gram=csr_array((2, 2)))
    with pytest.raises(ParameterError, match="need singular vectors or a Gram matrix"):
        Components(np.ones(3), np.zeros((3, 0), np.float32), np.zeros(0, np.float32))
    for wrong in (
        lambda: GFCF(alpha=-1), lambda: TurboCF(power=0), lambda: TurboCF(filter=4), lambda: BSPM(True, "rk5"),
        lambda: BSPM(True, sharpening_steps=0),
    ):  # fmt: skip
        with pytest.raises(ParameterError):
            wrong()
