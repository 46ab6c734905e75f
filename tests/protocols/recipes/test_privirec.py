"""PriviRec against the textbook: exact decompositions, proven bounds; models that start from its spectrum; SVD."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.training.factors import USER_FACTOR
from client_sdk.training.graph_filters import FILTERS
from client_sdk.training.privirec import components_of
from protocols.advice import STARTED, parameters_for
from protocols.errors import CodecError, ParameterError
from protocols.layout import REPEATED_ROWS
from protocols.messages import Evaluation
from protocols.recipes.base import Local, ModelState
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.factors import item_biases
from protocols.recipes.privirec import PriviRecK
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import recipe
from protocols.recipes.spectral_start import (
    Source,
    projected_user,
    spectral_factors,
    start_of,
    start_parameters,
    start_state,
)
from protocols.recipes.spectrum import chosen_weight, triangle_length
from protocols.recipes.state import state_as

TASK_SEED = bytes(range(32))
USERS, ITEMS, K = 40, 12, 5


def make(name: str = "privirec-k", **changes: Any) -> PriviRecK:
    """A recipe whose sums are of all items, and as many as its parameters say."""
    whole = {"reveal_gram": True, "min_owners": 1}
    return recipe(name, {"items": ITEMS, "components": K, "iterations": 3, **whole, **changes})


def matrix(seed: int, users: int = USERS, items: int = ITEMS) -> np.ndarray:
    """A binary matrix (users, items) in which every user has an item."""
    rng = np.random.default_rng(seed)
    rows = (rng.random((users, items)) < rng.uniform(0.1, 0.7)).astype(float)
    rows[np.arange(users), rng.integers(0, items, users)] = 1
    return rows


def normalised(rows: np.ndarray, exponent: float = 0.5, item_exponent: float | None = None) -> np.ndarray:
    """D_u^-a R D_i^-b, written out; b is 1 - a unless it is given."""
    b = 1 - exponent if item_exponent is None else item_exponent
    with np.errstate(divide="ignore"):
        by_item = np.where(rows.sum(0) > 0, rows.sum(0) ** -b, 0)
    return rows.sum(1)[:, None] ** -exponent * rows * by_item


START = {"task": "t", "round": 3, "snapshot": "0" * 64, "digest": "0" * 64, "item_exponent": 0.0}
WITHOUT_DEGREES = {"degrees": False, "item_exponent": 0.0}


def play(
    chosen: PriviRecK, rows: np.ndarray, start: PriviRecState | None = None, noise: float = 0.0
) -> list[PriviRecState]:
    """Every state of a task whose sums are exact, P Q in float64, or have Gaussian noise of this deviation."""
    p, rng = chosen.parameters, np.random.default_rng(3)
    scaled = normalised(rows, p.user_exponent, p.item_exponent)
    gram = scaled.T @ scaled
    states = [start or chosen.initial_state(TASK_SEED)]
    while not chosen.is_done(states[-1]):
        sum_index = states[-1].sum_index + 1
        spec = replace(chosen.round_spec(TASK_SEED, sum_index), noise=noise)
        match chosen.sum_of(sum_index):
            case "degrees":
                total = rows.sum(0)
            case "iteration":
                total = (gram @ chosen.basis_before(states[-1], spec).astype(float)).ravel()
            case "gram":
                total = gram[np.triu_indices(p.items)]
        noisy = total + noise * rng.standard_normal(total.size)
        states.append(chosen.absorb(states[-1], spec, noisy, rows.shape[0]))
    return states


def test_the_sums_of_a_task_by_step() -> None:
    chosen = make("privirec")
    lengths = [chosen.layout(sum_index).length for sum_index in range(1, 6)]
    assert lengths == [ITEMS, *[ITEMS * K] * 3, triangle_length(ITEMS)]
    assert (chosen.by_snapshot, make().steps) == (True, 4)
    assert all(chosen.layout(sum_index).sum_class == REPEATED_ROWS for sum_index in range(1, 6))
    for sum_index in (0, 6):
        with pytest.raises(ParameterError, match="5 sums"):
            chosen.layout(sum_index)


def test_without_degrees_the_first_sum_is_an_iteration_and_all_rows_have_their_weight() -> None:
    rows = matrix(1)
    chosen = make(iterations=60, **WITHOUT_DEGREES)
    assert (chosen.steps, chosen.sum_of(1), chosen.sum_kinds()) == (60, "iteration", (1, 2, 60))
    states = play(chosen, rows)
    _, values, transposed = np.linalg.svd(normalised(rows, 0.5, 0.0))
    np.testing.assert_allclose(states[-1].singular_values, values[:K], atol=1e-4)
    np.testing.assert_allclose(np.abs(np.diag(transposed[:K] @ states[-1].basis)), 1, atol=1e-3)
    assert (np.sum(states[-2].basis * states[-1].basis, axis=0) > 0).all(), "signs are those of the vectors before"
    assert not states[-1].item_degrees.size
    spec, users = chosen.round_spec(TASK_SEED, 1), [np.flatnonzero(row) for row in rows]
    sent = sum(chosen.contribute(states[0], spec, Local(own)).vector for own in users)
    total = normalised(rows, 0.5, 0.0)
    exact = total.T @ total @ chosen.basis_before(states[0], spec)
    np.testing.assert_allclose(sent.reshape(ITEMS, K), exact, atol=1e-6)
    assert (states[1].change, states[2].change < 1) == (1.0, True)
    assert make("privirec", iterations=1, **WITHOUT_DEGREES).sum_of(2) == "gram"
    scores = FILTERS["ease"].scores(components_of(chosen, states[-1]), rows.astype(np.float32))
    assert np.isfinite(scores).all()
    with pytest.raises(ParameterError, match="first vectors come with sum 1"):
        components_of(chosen, states[0])


@pytest.mark.parametrize(("columns", "zeros"), [(K, 2), (2, 0), (9, 0)])
def test_a_start_from_vectors_has_them_first_and_random_ones_where_they_end(columns: int, zeros: int) -> None:
    rows = matrix(2)
    earlier = np.linalg.svd(normalised(rows, 0.5, 0.0))[2][:columns].T.astype(np.float32)
    earlier[:, columns - zeros :] = 0
    state, body = make(**WITHOUT_DEGREES).starting_from(earlier)
    named = {**START, "digest": sha256(body).hexdigest()}
    chosen = make(iterations=1, start_from=named, **WITHOUT_DEGREES)
    assert chosen.parameters.start_digest == named["digest"]
    start = chosen.decode_state(0, body)
    assert chosen.encode_state(start) == body
    assert len(body) == chosen.state_bytes(0)
    np.testing.assert_array_equal(start.basis, state.basis)
    kept = min(columns - zeros, K)
    np.testing.assert_allclose(np.abs((start.basis[:, :kept] * earlier[:, :kept]).sum(0)), 1, atol=1e-5)
    np.testing.assert_allclose(start.basis.T @ start.basis, np.eye(K), atol=1e-5)
    last = play(chosen, rows, start)[-1]
    exact = np.linalg.svd(normalised(rows, 0.5, 0.0))[1][:kept]
    np.testing.assert_allclose(last.singular_values[:kept], exact, atol=1e-3)
    long = np.frombuffer(body, "<f4", offset=len(body) - 4 * ITEMS * K).copy()
    long[0] = 2
    with pytest.raises(CodecError, match="norm over 1"):
        chosen.decode_state(0, body[: -4 * ITEMS * K] + long.tobytes())
    with pytest.raises(ParameterError, match="12 items, the task that it starts from has 11"):
        chosen.starting_from(earlier[1:])


def test_rayleigh_ritz_is_the_exact_restriction_of_p() -> None:
    rows, chosen = matrix(2), make(iterations=2, rayleigh_ritz=True, oversampling=4)
    states = play(chosen, rows)
    q = states[-2].basis.astype(float)
    values = np.linalg.eigvalsh(q.T @ normalised(rows).T @ normalised(rows) @ q)[::-1]
    np.testing.assert_allclose(states[-1].singular_values.astype(float) ** 2, values, atol=1e-6)
    v = states[-1].basis.astype(float)
    np.testing.assert_allclose(v.T @ v, np.eye(K + 4), atol=1e-6)
    np.testing.assert_allclose(v @ v.T @ q, q, atol=1e-6)


@given(
    seed=st.integers(0, 2**32 - 1),
    exponents=st.sampled_from(
        [(0.5, None), (0.6, None), (0.8, None), (1.0, None), (0.25, 0.3125), (0.25, 0.0), (0.0, 0.0), (0.1, 0.5)]
    ),
    users=st.integers(1, 60),
    items=st.integers(2, 20),
    present=st.floats(0.3, 1),
)
@settings(max_examples=40, deadline=None)
def test_no_sum_passes_its_bound(
    seed: int, exponents: tuple[float, float | None], users: int, items: int, present: float
) -> None:
    rows, (a, b) = matrix(seed, users, items), exponents
    scaled = normalised(rows, a, b)
    stay = np.random.default_rng(seed).random(users) < present  # those who have left since the degrees were summed
    b = 1 - a if b is None else b
    bound = users ** (1 - 2 * b) * items ** max(0.0, 1 - 2 * a) * (1 + 1e-12)
    part = items ** max(0.0, 0.5 - 2 * a)
    gram = scaled[stay].T @ scaled[stay]
    assert np.linalg.norm(gram, 2) <= bound
    q = np.linalg.qr(np.random.default_rng(seed).standard_normal((items, items)))[0]
    assert np.abs(gram @ q).max() <= bound
    for row in scaled:
        assert np.abs(np.outer(row, row @ q)).max() <= part * (1 + 1e-12)
        assert np.outer(row, row).max() <= 1 + 1e-12
    made = make("privirec", items=items, components=1, iterations=1, user_exponent=a, item_exponent=b)
    iteration, gram_sum = (made.layout(sum_index).blocks[0].segments[0] for sum_index in (2, 3))
    assert (iteration.clip, gram_sum.clip) == (pytest.approx(part), 1.0)
    assert bound <= iteration.sum_bound == gram_sum.sum_bound


def test_a_sum_that_does_not_follow_is_refused() -> None:
    chosen = make()
    states = play(chosen, matrix(8))
    for state, number, sum_index in ((states[1], 3, 3), (states[2], 2, 2), (states[1], 1, 1)):
        with pytest.raises(ParameterError, match="does not follow"):
            chosen.absorb(state, chosen.round_spec(TASK_SEED, number, sum_index), np.zeros(ITEMS * K), USERS)
    with pytest.raises(ParameterError, match="vector of"):
        chosen.absorb(states[1], chosen.round_spec(TASK_SEED, 2), np.zeros(ITEMS), USERS)
    nothing = np.zeros(ITEMS * K)
    later = chosen.absorb(states[1], chosen.round_spec(TASK_SEED, 4, 2), nothing, USERS)  # two rounds failed
    assert (later.round_number, later.sum_index) == (4, 2)


def test_a_settled_spectrum_ends_the_job_early_and_is_reported() -> None:
    rows, chosen = matrix(9), make(iterations=100, tolerance=1e-3, rayleigh_ritz=True, oversampling=2)
    states = play(chosen, rows)
    assert 4 < len(states) < 60
    reports = [chosen.report(state) for state in states]
    assert reports[:2] == [{}, {"items_kept": 12.0, "columns": 7.0}]
    assert reports[-1]["change"] <= 1e-3 < reports[-2]["change"]
    assert reports[-1]["captured"] > 0.95 > reports[2]["captured"]
    values = np.linalg.svd(normalised(rows))[1]
    assert reports[-1]["largest_singular_value"] == pytest.approx(values[0], abs=1e-5) == 1.0
    # the last sum was used for Rayleigh and Ritz: largest first
    assert (np.diff(states[-1].singular_values) <= 0).all()


RECIPES = ["colr", "pfedclr"]
DIM, SEED, B = 8, bytes(range(32)), 0.25


@pytest.fixture(scope="module")
def train() -> Interactions:
    return synthetic(SyntheticConfig(users=60, items=50, positives=10))


@pytest.fixture(scope="module")
def spectrum(train: Interactions) -> Source:
    whole = {"reveal_gram": True, "min_owners": 1}
    given = {"items": train.n_items, "components": 20, "iterations": 10, "item_exponent": B, **whole}
    made = Federation(train, "privirec-k", given, cohort_size=train.n_users)
    list(made.run(20))
    return Source(made.state, B)


def parameters(items: int, **changes: object) -> dict[str, object]:
    return {"items": items, "dim": DIM, "item_bias": "counts", **changes}


def started(given: dict[str, object], name: str, spectrum: Source) -> dict[str, object]:
    """The parameters of a task with these that starts from the spectrum."""
    return start_parameters(recipe(name, given), given, "t_1", b"", spectrum)[0]


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
        made.client_side.scores(made.state, made.client_states[user], train.history(user))
        for user in range(train.n_users)
    ]
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-3)
    assert np.array_equal(made.state.item_counts, degrees)


@pytest.mark.parametrize("name", RECIPES)
def test_a_started_task_counts_nothing_and_is_projected(name: str, train: Interactions, spectrum: Source) -> None:
    made = Federation(train, name, parameters(train.n_items), cohort_size=60, start=spectrum)
    first = made.state
    assert made.recipe.main_sum == 1
    encoded = made.recipe.encode_state(first)
    assert len(encoded) == made.recipe.state_bytes(1)
    assert np.array_equal(made.recipe.decode_state(0, encoded).item_factors, first.item_factors)
    assert not any(state[USER_FACTOR].any() for state in made.client_states)
    list(made.run(1))
    own = projected_user(first, train.positives(0), 16.0, B)
    assert np.linalg.norm(made.client_states[0][USER_FACTOR] - own) < 0.5 * np.linalg.norm(own)
    assert not np.array_equal(made.state.item_factors, first.item_factors)
    with pytest.raises(ParameterError, match="not from the seed"):
        made.recipe.initial_state(SEED)


def test_the_parameters_name_the_source_and_the_digests(train: Interactions, spectrum: Source) -> None:
    plain = recipe("colr", parameters(train.n_items))
    assert start_of(plain.parameters) is None
    assert start_of(recipe("privirec-k", {"items": 300}).parameters) is None
    given, body = start_parameters(plain, parameters(train.n_items), "t_1", b"source", spectrum)
    start = start_of(recipe("colr", given).parameters)
    assert (start.task, start.round, start.item_exponent) == ("t_1", 11, B)
    assert start.snapshot == hashlib.sha256(b"source").hexdigest()
    assert start.digest == hashlib.sha256(body).hexdigest()


def test_an_evaluated_task_starts_too_and_measures_popularity(train: Interactions, spectrum: Source) -> None:
    evaluation = Evaluation(every=2)
    given = started(parameters(train.n_items), "colr", spectrum)
    made = with_evaluation(recipe("colr", given), evaluation, 6)
    state = start_state(made, spectrum)
    assert np.array_equal(made.decode_state(0, made.encode_state(state)).model.item_factors, state.model.item_factors)
    assert made.constants == ("popularity hr@10", "popularity ndcg@10")


def test_what_cannot_start_is_refused(train: Interactions, spectrum: Source) -> None:
    made = recipe("colr", parameters(train.n_items))
    with pytest.raises(ParameterError, match="PriviRecState is needed"):
        start_state(made, Source(ModelState(0), B))
    with pytest.raises(ParameterError, match="item biases|item_bias"):
        recipe("colr", started({"items": train.n_items, "dim": DIM}, "colr", spectrum))
    with pytest.raises(ParameterError, match="has 50: items may only be appended"):
        start_state(recipe("colr", parameters(train.n_items - 1)), spectrum)
    with pytest.raises(ParameterError, match="20 singular vectors"):
        spectral_factors(spectrum, 21)
    with pytest.raises(ParameterError, match="cannot start"):
        start_state(recipe("topk", {"items": train.n_items}), spectrum)
    state = state_as(spectrum.state, PriviRecState)
    early = PriviRecState(1, 1, state.item_degrees, state.clients, state.basis, np.zeros(20, np.float32))
    with pytest.raises(ParameterError, match="no singular values"):
        spectral_factors(Source(early, B), DIM)


def test_recommended_values_of_started_tasks_are_accepted(spectrum: Source, train: Interactions) -> None:
    for name in STARTED:
        given = parameters_for(name, {"items": train.n_items, "dim": DIM}, started=True)
        recipe(name, started(given, name, spectrum))
    assert parameters_for("colr", {"items": 3, "learning_rate": 0.7}, started=True)["learning_rate"] == 0.7


def test_a_state_of_another_machine_is_the_same_and_a_made_up_one_is_not() -> None:
    """With more vectors than members, rounding decides the last ones: they only have to be orthogonal to the others."""
    items, members, rng = 60, 7, np.random.default_rng(5)
    made = make(items=items, components=16)
    rows = (rng.random((members, items)) < 0.3).astype(float)
    rows = rows / np.sqrt(np.maximum(rows.sum(0), 1.0))
    start = made.initial_state(bytes(32))
    state = made.absorb(start, made.round_spec(bytes(32), 1), np.full(items, 3.0), members)
    spec = made.round_spec(bytes(32), 2)
    basis = made.basis_before(state, spec).astype(np.float64)
    product = rows.T @ (rows @ basis)

    def after(total: np.ndarray) -> PriviRecState:
        found = made.absorb(state, spec, total.ravel(), members)
        return made.decode_state(2, made.encode_state(found))

    own = after(product)
    theirs = after(product * (1.0 + 2.0**-52 * rng.integers(-1, 2, product.shape)))
    assert np.abs(own.basis - theirs.basis).max() > 0.1
    assert made.same_state(own, theirs)
    for column, change in ((0, -1.0), (15, 1.01), (15, 0.0)):
        basis = theirs.basis.copy()
        basis[:, column] *= change
        assert made.same_state(own, replace(theirs, basis=basis)) is (change == 0.0)
    basis = theirs.basis.copy()
    basis[:, 15] = basis[:, 0]
    assert not made.same_state(own, replace(theirs, basis=basis))


@pytest.mark.parametrize("step", [0.0, 1e-6, 1e-3, 4e-3])
@pytest.mark.parametrize("members", [40, 400])
@pytest.mark.parametrize("krylov", [True, False])
def test_sums_of_honest_members_pass_however_coarse_the_steps_are(step: float, members: int, krylov: bool) -> None:
    """A ring with few bits, or with many spare ones, rounds each contribution to steps as large as the values of rows.

    With 40 members there are more columns than lists, so that the last sum is of rounding alone.
    """
    items, rng = 90, np.random.default_rng(members)
    rows = [
        np.flatnonzero(row).astype(np.int32) for row in rng.random((members, items)) < np.linspace(0.05, 0.5, items)
    ]
    exponents = {"user_exponent": 0.25, "item_exponent": 0.3125, "krylov": krylov}
    made = recipe(
        "privirec-k",
        {"items": items, "components": 24, "iterations": 3, "reveal_gram": True, "min_owners": 1, **exponents},
    )
    state = made.initial_state(TASK_SEED)
    while state.sum_index < 4:
        spec = replace(made.round_spec(TASK_SEED, state.sum_index + 1), size=made.size_after(state))
        vectors = [made.contribute(state, spec, Local(own)).vector for own in rows]
        if spec.sum_index > 1 and step:
            vectors = [step * np.rint(vector / step) for vector in vectors]
        spec = replace(spec, rounding=step / 2 * members)
        state = state_as(made.absorb(state, spec, np.sum(vectors, axis=0), members), PriviRecState)
    assert state.singular_values.any()
