"""Each filter equals its equations, computed with dense float64 matrices, from a Gram matrix and from factors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from client_sdk.training import graph_filters as rows
from client_sdk.training.graph_filters import BSPM, FILTERS, GFCF, Components, Ease, TurboCF, user_row
from protocols.errors import ParameterError
from protocols.recipes.spectrum import chosen_weight

USERS, ITEMS, DIMS = 25, 14, 5


def random_rows(seed: int, users: int = USERS, items: int = ITEMS) -> np.ndarray:
    """A random binary matrix in which some items, and possibly users, have no interaction."""
    rng = np.random.default_rng(seed)
    matrix = (rng.random((users, items)) < 0.3).astype(np.float64)
    matrix[:, rng.integers(items)] = 0
    return matrix


def power_of(degrees: np.ndarray, exponent: float) -> np.ndarray:
    return np.where(degrees > 0, np.where(degrees > 0, degrees, 1.0) ** exponent, 0.0)


def normalised(matrix: np.ndarray, a: float = 0.5, b: float | None = None) -> np.ndarray:
    """R~ = D_u^-a R D_i^-b."""
    b = 1 - a if b is None else b
    return power_of(matrix.sum(1), -a)[:, None] * matrix * power_of(matrix.sum(0), -b)


def components_of(matrix: np.ndarray, a: float = 0.5, factored: bool = False, b: float | None = None) -> Components:
    r = normalised(matrix, a, b)
    _, s, vt = np.linalg.svd(r)
    s = np.concatenate([s, np.zeros(vt.shape[0] - s.size)])
    k = s.size if factored else DIMS
    gram = None if factored else csr_array((r.T @ r).astype(np.float32))
    return Components(matrix.sum(0), vt[:k].T.astype(np.float32), s[:k].astype(np.float32), gram, a, b)


def ideal_part(matrix: np.ndarray, dims: int = DIMS) -> np.ndarray:
    _, _, vt = np.linalg.svd(normalised(matrix))
    v, d = vt[:dims].T, matrix.sum(0)
    return matrix @ np.diag(power_of(d, -0.5)) @ v @ v.T @ np.diag(power_of(d, 0.5))


def sharpened(signal: np.ndarray, p: np.ndarray, solver: str, time: float, steps: int) -> list[np.ndarray]:
    """Solve dy/dt = -y P with the stages of the solver; return the signal after each step."""
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
    p = normalised(matrix).T @ normalised(matrix)
    found = GFCF(alpha=alpha, ideal_dims=DIMS).scores(components_of(matrix, factored=factored), csr_array(matrix))
    # The projector is unique only if there is a gap between the DIMS-th and the next singular value.
    s = np.linalg.svd(normalised(matrix), compute_uv=False)
    if alpha == 0 or s[DIMS - 1] - s[DIMS] > 1e-3:
        close(found, matrix @ p + alpha * ideal_part(matrix))


@pytest.mark.parametrize("which", [1, 2, 3])
@pytest.mark.parametrize(("a", "power"), [(0.5, 1.0), (0.6, 0.7), (0.5, 1.4)])
def test_turbo_cf_is_equation_5(which, a, power) -> None:
    matrix = random_rows(3)
    p = (normalised(matrix, a).T @ normalised(matrix, a)) ** power
    expected = {
        1: matrix @ p,
        2: matrix @ (2 * p - p @ p),
        3: matrix @ (p + 0.01 * (-p @ p @ p + 10 * p @ p - 29 * p)),
    }[which]
    turbo = TurboCF(user_exponent=a, power=power, filter=which)
    close(turbo.scores(components_of(matrix, a), csr_array(matrix)), expected)
    if not turbo.needs_gram:
        close(turbo.scores(components_of(matrix, a, factored=True), csr_array(matrix)), expected)


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
    scaled, items = normalised(matrix, a, b), matrix.shape[1]
    learned = np.zeros((items, items))
    for item in range(items):
        others = np.arange(items) != item
        loss = scaled[:, others].T @ scaled[:, others] + weight * np.eye(items - 1)
        learned[others, item] = np.linalg.solve(loss, scaled[:, others].T @ scaled[:, item])
    degrees = matrix.sum(0)
    expected = matrix * power_of(degrees, -b) @ learned * power_of(degrees, b)
    close(Ease(weight).scores(components_of(matrix, a, factored, b), csr_array(matrix)), expected)


def test_the_weight_of_ease_follows_from_the_last_singular_value() -> None:
    assert chosen_weight(np.array([9.0, 2.0])) == 0.3
    assert chosen_weight(np.full(40, 2.0)) == pytest.approx(2.0)
    assert chosen_weight(np.zeros(0)) == 0.3
    matrix = random_rows(4)
    components = components_of(matrix, 0.25, b=0.3125)
    weight = chosen_weight(components.singular_values)
    rows = csr_array(matrix)
    np.testing.assert_array_equal(Ease().scores(components, rows), Ease(weight).scores(components, rows))


@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("solver", "time", "steps"), [("euler", 1.2, 1), ("euler", 1.0, 3), ("rk4", 2.5, 1)])
@pytest.mark.parametrize("average", [False, True])
def test_bspm_equals_the_solver_of_the_ode(factored, early, solver, time, steps, average) -> None:
    matrix = random_rows(6)
    p = normalised(matrix).T @ normalised(matrix)
    blurred, low_pass = matrix @ p, 0.2 * ideal_part(matrix)
    points = sharpened(blurred + low_pass if early else blurred, p, solver, time, steps)
    expected = np.mean([blurred, *points], axis=0) if average else points[-1]
    bspm = BSPM(early, solver, time, steps, beta=0.2, ideal_dims=DIMS, average_points=average)
    found = bspm.scores(components_of(matrix, factored=factored), csr_array(matrix))
    close(found, expected if early else expected + low_pass)


@pytest.mark.parametrize("name", sorted(FILTERS))
@pytest.mark.parametrize("factored", [False, True])
def test_a_device_without_scipy_gets_the_same_scores(name: str, factored: bool) -> None:
    """Dense rows and matrices, as a device has them, against sparse ones."""
    matrix = random_rows(12)
    sparse = components_of(matrix, factored=factored)
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
    components, everybody = components_of(matrix), csr_array(matrix)
    for graph_filter in FILTERS.values():
        whole = graph_filter.scores(components, everybody)
        alone = graph_filter.scores(components, user_row(np.flatnonzero(matrix[4]), ITEMS))
        np.testing.assert_allclose(alone[0], whole[4], atol=1e-5)
        with monkeypatch.context() as patch:
            patch.setattr(rows, "CHUNK_VALUES", 3 * ITEMS)
            np.testing.assert_allclose(graph_filter.scores(components, everybody), whole, atol=1e-5)


def test_user_without_items_and_item_without_users_score_zero() -> None:
    matrix = random_rows(9)
    components = components_of(matrix)
    absent = int(np.flatnonzero(matrix.sum(0) == 0)[0])
    for graph_filter in FILTERS.values():
        assert not graph_filter.scores(components, user_row([], ITEMS)).any()
        assert not graph_filter.scores(components, csr_array(matrix))[:, absent].any()
        assert graph_filter.scores(components, csr_array((0, ITEMS), dtype=np.float32)).shape == (0, ITEMS)


def test_mismatched_rows_and_components_are_refused() -> None:
    matrix = random_rows(11)
    components, factors = components_of(matrix), components_of(matrix, factored=True)
    for graph_filter in FILTERS.values():
        with pytest.raises(ParameterError, match=f"rows must have {ITEMS} columns"):
            graph_filter.scores(components, user_row([0], ITEMS + 1))
        with pytest.raises(ParameterError, match="binary"):
            graph_filter.scores(components, 2 * csr_array(matrix))
        if graph_filter.user_exponent is not None:
            for other in ({"user_exponent": 0.4}, {"item_exponent": 0.25}):
                with pytest.raises(ParameterError, match="user exponent 0.5 and item exponent 0.5"):
                    graph_filter.scores(replace(components, **other), csr_array(matrix))
    with pytest.raises(ParameterError, match="needs the Gram matrix, not its factors"):
        TurboCF(power=0.7).scores(factors, csr_array(matrix))
    with pytest.raises(ParameterError, match="items must lie"):
        user_row([ITEMS], ITEMS)
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
