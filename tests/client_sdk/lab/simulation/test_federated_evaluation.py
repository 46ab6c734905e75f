"""Federated evaluation, of one client and of a federation, equals central evaluation; the verdict of a curve."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.evaluation.metrics import hit_ratio, ndcg, ranks_of
from client_sdk.lab.federation import Federation
from client_sdk.lab.measures import Advised, Comparison, Measured, verdict
from client_sdk.training import client_side
from client_sdk.training.evaluated import HELD_OUT, rank_measures, rating_measures
from client_sdk.training.mf import MFConfig
from protocols.errors import ParameterError
from protocols.messages import Evaluation
from protocols.privacy_advice import Left
from protocols.recipes.evaluated import EvaluatedState, with_evaluation
from protocols.recipes.registry import recipe
from protocols.recipes.state import state_as

USERS, ROUNDS = 24, 9
RECIPES: dict[str, dict[str, Any]] = {
    "fedmf": {"dim": 4, "clip": 2.0},
    "colr": {"dim": 4, "rank": 2, "clip": 2.0, "item_bias": "counts"},
    "scolr": {"dim": 4, "rank": 2, "clip": 2.0, "item_bias": "counts"},
}


@pytest.fixture(scope="module")
def data() -> Interactions:
    return synthetic(SyntheticConfig(users=USERS, items=40, positives=6))


def federation(data: Interactions, recipe: str, mechanism: str, evaluation: Evaluation, **more: Any) -> Federation:
    parameters = {"items": data.n_items, **RECIPES[recipe]}
    chosen = {"training": MFConfig(epochs=1), "cohort_size": USERS, "schedule_rounds": ROUNDS, **more}
    return Federation(data, recipe, parameters, mechanism, evaluation=evaluation, **chosen)


def central(made: Federation) -> dict[str, float]:
    """The metrics of the present model over all users, each with the last item of its history held out."""
    model, side = state_as(made.state, EvaluatedState).model, made.client_side
    histories = [made.train.history(user).items for user in range(USERS)]
    counts = np.bincount(np.concatenate([items[:-1] for items in histories]), minlength=made.train.n_items)
    ranks, popular = [], []
    for items, own in zip(histories, made.client_states, strict=True):
        others, target = np.setdiff1d(np.arange(made.train.n_items), items), items[-1:]
        for values, found in ((side.inner.scores(model, own, History(items[:-1])), ranks), (counts, popular)):
            found.append(ranks_of(values[target], values[others][None])[0])
    metrics: dict[str, float] = {}
    for name, found in (("", ranks), ("popularity ", popular)):
        metrics |= {f"{name}hr@10": hit_ratio(np.array(found)), f"{name}ndcg@10": ndcg(np.array(found))}
    return metrics


@pytest.mark.parametrize(("recipe", "mechanism"), [("colr", "masked"), ("fedmf", "plain"), ("scolr", "plain")])
def test_the_summed_metrics_are_those_of_a_central_evaluation(data: Interactions, recipe: str, mechanism: str) -> None:
    made = federation(data, recipe, mechanism, Evaluation(every=2))
    first = made.recipe.inner.main_sum
    list(made.run(first + 2))  # one measurement and two training sums: everybody has trained
    assert len(made.recipe.curve(made.state).points) == 1
    expected = central(made)
    list(made.run(1))
    curve = made.recipe.curve(made.state)
    point = curve.points[-1]
    assert (point.model_round, point.round, point.clients) == (first + 2, first + 3, USERS)
    found = curve.metrics(point)
    assert set(found) == ({*expected} if "item_bias" in RECIPES[recipe] else {"hr@10", "ndcg@10"})
    for name in found:
        assert found[name] == pytest.approx(expected[name], abs=made.plan.predicted_error / USERS + 1e-7)
    assert 0 < expected["hr@10"] < 1  # otherwise nothing would have been compared


def test_measuring_changes_nothing_that_is_trained_but_the_rows(data: Interactions) -> None:
    """The same federation over histories without their last items, and without evaluation, trains the same model."""
    made = federation(data, "fedmf", "plain", Evaluation(every=4))
    list(made.run(4))
    kept = np.ones(data.size, dtype=bool)
    kept[data.indptr[1:] - 1] = False
    plain = Federation(
        data.where(kept), "fedmf", {"items": data.n_items, **RECIPES["fedmf"]},
        training=MFConfig(epochs=1), cohort_size=USERS,
    )  # fmt: skip
    plain.state = replace(plain.state, round_number=1)  # the measurement was round 1
    list(plain.run(3))
    np.testing.assert_array_equal(state_as(made.state, EvaluatedState).model.item_factors, plain.state.item_factors)


def test_the_last_rounds_train_on_the_held_out_items_if_the_task_says_so(data: Interactions) -> None:
    kinds = [Evaluation(every=2, final_rounds=final) for final in (0, 3)]
    without, with_them = (federation(data, "fedmf", "plain", kind) for kind in kinds)

    def difference(rounds: int) -> float:
        models = []
        for made in (without, with_them):
            list(made.run(rounds))
            models.append(state_as(made.state, EvaluatedState).model.item_factors)
        return float(np.abs(models[0] - models[1]).max())

    assert difference(ROUNDS - 3) == 0
    assert difference(3) > 1e-3
    assert [len(made.recipe.curve(made.state).points) for made in (without, with_them)] == [3, 2]


def test_what_is_held_out_stays_the_same_as_the_history_grows(data: Interactions) -> None:
    made = federation(data, "fedmf", "plain", Evaluation(every=1))
    spec = made.recipe.round_spec(made.task_seed, 2)
    start = made.client_side.initial_client_state(np.random.default_rng(0))

    def held(items: list[int], client_state: Any) -> Any:
        rng = np.random.default_rng(0)
        return made.client_side.contribute(spec, "c", made.state, History.of(items, 40), client_state, rng).client_state

    first = held([5, 3, 9], start)
    assert first[HELD_OUT].tolist() == [9]
    assert held([5, 3, 9, 11], first)[HELD_OUT].tolist() == [9]
    assert held([5, 3, 11], first)[HELD_OUT].tolist() == [11]  # the user deleted item 9
    assert held([5], start)[HELD_OUT].tolist() == []  # nothing would be left to train on


def test_a_client_without_held_out_rows_abstains_so_that_the_floor_counts_clients_that_measure() -> None:
    data = Interactions.from_pairs(np.array([0, 0, 1, 2, 2]), np.array([1, 2, 3, 4, 5]), n_users=3, n_items=30)
    made = Federation(data, "fedmf", {"items": 30, "dim": 4}, cohort_size=3, evaluation=Evaluation(every=1))
    (measurement,) = made.run(1)
    assert (measurement.survivors, made.recipe.curve(made.state).points[0].clients) == (2, 2)
    lonely = History.of([3], 30)
    start = made.client_side.initial_client_state(np.random.default_rng(0))
    with pytest.raises(ParameterError, match="nothing to measure"):
        rng, spec = np.random.default_rng(0), made.recipe.round_spec(made.task_seed, 1)
        made.client_side.contribute(spec, "c", made.recipe.initial_state(made.task_seed), lonely, start, rng)


def test_rfrec_is_stopped_when_it_overfits_and_its_curve_is_that_of_a_central_evaluation() -> None:
    rng = np.random.default_rng(3)
    users, items = np.nonzero(rng.random((90, 25)) < 0.5)
    taste = rng.standard_normal((90, 2)) @ rng.standard_normal((2, 25))
    ratings = np.clip(np.rint(3 + 0.5 * taste + 1.2 * rng.standard_normal((90, 25))), 1, 5)[users, items]
    data = Interactions.from_pairs(users, items, n_users=90, n_items=25, ratings=ratings.astype(np.float32))
    rounds = 100
    evaluation = Evaluation(every=2, keep="best", stop_after=3)
    parameters = {"items": 25, "dim": 8, "penalty": 0.1, "user_penalty": 0.01}
    made = Federation(data, "rfrec", parameters, cohort_size=90, evaluation=evaluation, schedule_rounds=rounds)
    list(made.run(3))  # a measurement and two training sums
    squared = []
    for user in range(90):
        history = made.train.history(user)
        kept = History(history.items[:-1], history.ratings[:-1])
        scores = made.client_side.inner.scores(
            state_as(made.state, EvaluatedState).model, made.client_states[user], kept
        )
        squared.append(((np.clip(scores[history.items[-1]], 1, 5) - history.ratings[-1]) / 4) ** 2)
    list(made.run(rounds))
    curve = made.recipe.curve(made.state)
    assert curve.points[1].model_round == 3
    assert curve.metrics(curve.points[1])["rmse"] == pytest.approx(float(np.sqrt(np.mean(squared))), abs=1e-6)
    assert made.state.round_number < rounds, "nothing stopped the task"
    assert curve.fallen == 3
    assert curve.metrics(curve.points[-1])["rmse"] > curve.metrics(curve.best)["rmse"]


def test_constants_of_clients_do_not_follow_from_many_measurements(data: Interactions) -> None:
    """36 measurements of cohorts of 12 of 24 clients would give each client's metrics by item counts to 2.5e-9.

    They enter the first measurement only, and all are over one cohort: the equations have one right-hand side. Two that
    differ by one client would be a binary search for what it holds out, as the server chooses the models.
    """
    evaluation = Evaluation(every=1)
    made = federation(data, "colr", "plain", evaluation, cohort_size=12, schedule_rounds=73, sampling="uniform")
    specs = [made.recipe.round_spec(made.task_seed, number) for number in range(1, 74)]
    measuring = [spec for spec in specs if made.recipe.measures_in(spec.sum_index)]
    assert len(measuring) == 36
    assert len({tuple(made.cohort(spec).tolist()) for spec in measuring}) == 1

    carry = [spec for spec in measuring if made.recipe.layout(spec.sum_index).length > 1 + len(made.recipe.measures)]
    assert carry == measuring[:1]
    constants = np.random.default_rng(4).random(USERS)

    def solved(cohorts: list[NDArray[np.int64]]) -> NDArray[np.float64]:
        equations = np.zeros((len(cohorts), USERS))
        for row, cohort in zip(equations, cohorts, strict=True):
            row[cohort] = 1.0
        found, *_ = np.linalg.lstsq(equations, equations @ constants, rcond=None)
        return np.abs(found - constants)

    assert (solved([made.cohort(spec) for spec in measuring]) > 1e-3).all()
    undefended = [made.cohort(made.recipe.round_spec(made.task_seed, n, 3)) for n in range(3, 39)]  # drawn anew
    assert (solved(undefended) < 1e-9).all()


VERDICT_USERS = 400
BASE = np.random.default_rng(0).random(VERDICT_USERS)


def curve(*shifts: float, noise: float = 0.1) -> list[Measured]:
    """Points whose users have the control's values plus a shift and noise of mean 0."""
    found = []
    for place, shift in enumerate(shifts):
        drawn = noise * np.random.default_rng(place + 1).standard_normal(VERDICT_USERS)
        values = BASE + shift + drawn - drawn.mean()
        found.append(Measured({"NDCG@20": float(values.mean())}, values))
    return found


def judged(*shifts: float, advised: Advised | None = None, higher: bool = True) -> Comparison:
    control, rounds = Measured({"NDCG@20": float(BASE.mean())}, BASE), [5, 10][: len(shifts)]
    given = advised or Advised()
    return verdict(rounds, curve(*shifts), {"popularity": control}, given, recipe="colr", higher_is_better=higher)


def test_the_difference_is_in_its_own_standard_errors() -> None:
    for shift, word in ((0.1, "is better than"), (-0.1, "is worse than"), (0.001, "cannot be told")):
        found = judged(shift)
        difference = curve(shift)[0].of_users - BASE
        assert found.standard_errors == pytest.approx(shift / (difference.std(ddof=1) / np.sqrt(VERDICT_USERS)))
        assert word in found.text
        assert f"{abs(found.standard_errors):.1f} standard errors" in found.text
    same = Measured({"HR": 0.5}, np.full(3, 0.5))
    found = verdict([1], [same], {"popularity": same}, Advised(), recipe="colr", higher_is_better=True)
    assert (found.standard_errors, "cannot be told" in found.text) == (0, True)
    lower = judged(-0.1, 0.2, higher=False)  # errors of ratings
    assert (lower.round, "is better than" in lower.text) == (5, True)
    assert lower.standard_errors > 2


def test_the_next_step_follows_from_the_curve() -> None:
    assert "stop at round 5" in judged(0.3, 0.1).text
    assert "still rises" in judged(0.1, 0.3).text
    flat = judged(0.3, 0.3)
    assert "rises" not in flat.text
    assert "stop at" not in flat.text
    assert flat.text.endswith("standard errors).")  # nothing is said of settings that were not measured
    assert "-r components=N" in judged(0.1, advised=Advised(vectors=12, trains=False)).text
    untrained = judged(0.3, 0.1, advised=Advised(trains=False))  # judged after its last sum
    assert (untrained.round, "stop at" in untrained.text) == (10, False)


def test_a_verdict_says_that_the_control_does_better() -> None:
    for shift, said in ((-0.1, True), (0.001, False), (0.1, False)):
        assert ("In this run popularity does best." in judged(shift).text) == said


def test_a_suggestion_names_the_page_with_its_measurements() -> None:
    noisy = Advised(recipe="privirec", noisy=True, start=True)
    for advised, what, page in (
        (Advised(recipe="privirec-k", start=True), "--recipe privirec-k", "docs/which-recipe.md"),
        (Advised(start=True), "--start-from-privirec", "docs/results.md"),
        (noisy, "--recipe privirec:", "under noise"),
        (noisy, "--recipe privirec:", "docs/results.md"),
        (Advised(vectors=12, trains=False), "-r components=N", "docs/results.md"),
    ):
        (sentence,) = (part for part in re.split(r"(?<=\.) ", judged(0.1, advised=advised).text) if what in part)
        assert page in sentence
    under_noise = judged(0.1, advised=Advised(noisy=True, start=True)).text
    assert "--start-from-privirec" not in under_noise  # which was measured without


@pytest.mark.parametrize(
    ("expected", "shift", "said"),
    [
        ("part", -0.1, "less"),
        ("part", 0.001, "less"),
        ("most", 0.1, ""),
        ("popularity", -0.1, "less"),
        ("popularity", 0.001, ""),
        ("popularity", 0.1, "more"),
        ("nothing", -0.1, ""),
        ("nothing", 0.001, ""),
        ("nothing", 0.1, "more"),
    ],
)
def test_a_verdict_says_where_the_plan_of_the_noise_was_wrong(expected: Left, shift: float, said: str) -> None:
    text = judged(shift, advised=Advised(expected=expected, noisy=True, trains=False)).text
    assert re.findall(r"The noise left (\w+) than was estimated", text) == ([said] if said else [])


# --- what one client measures on its held-out rows --------------------------------------------------------------------


ITEMS = 50
TRAINED, HELD = np.array([1, 2], np.int32), np.array([5, 9], np.int32)


def draws() -> np.random.Generator:
    return np.random.default_rng(4)


def test_drawn_negatives_are_the_same_for_every_ranking_and_leave_out_the_clients_items() -> None:
    scores = np.zeros(ITEMS)
    scores[[1, 2]] = 9.0  # its training items would be above the held-out ones
    scores[HELD] = 1.0
    assert rank_measures([scores], TRAINED, HELD, 46, draws()).tolist() == [1.0, 1.0]
    with pytest.raises(ParameterError, match="only 46 items"):
        rank_measures([scores], TRAINED, HELD, 47, draws())
    ramp = np.arange(ITEMS, dtype=np.float64)
    one, other = np.split(rank_measures([ramp, ramp], TRAINED, HELD, 12, draws()), 2)
    np.testing.assert_array_equal(one, other)


def test_errors_of_ratings_are_in_units_of_the_range() -> None:
    rows = History(np.array([0, 1, 2], np.int32), np.array([1.0, 5.0, 3.0], np.float32))
    predicted = np.array([2.0, 9.0, np.nan])  # one off by a quarter, one clipped to 5, one not a number
    assert rating_measures(predicted, rows, 1.0, 5.0) == pytest.approx([(1 / 16 + 0 + 1) / 3, (1 / 4 + 0 + 1) / 3])
    with pytest.raises(ParameterError, match="rated items only"):
        rating_measures(predicted, History(rows.items), 1.0, 5.0)


def test_a_share_of_the_rows_is_the_last_of_them() -> None:
    made = with_evaluation(recipe("fedmf", {"items": ITEMS, "dim": 3}), Evaluation(every=1, holdout=0.4), 10)
    side, spec = client_side(made), made.round_spec(bytes(32), 2)  # the first sum measures
    start = side.initial_client_state(draws())
    history = History.of([7, 3, 8, 1, 4, 2], ITEMS)
    local = side.contribute(spec, "c", made.initial_state(bytes(32)), history, start, draws())
    assert local.client_state[HELD_OUT].tolist() == [4, 2]
    assert local.blocks[0][: 3 * ITEMS].reshape(ITEMS, 3).any(axis=1)[[7, 3, 8, 1]].all()
    assert local.samples == 4 * 5


def test_measurements_of_a_client_rank_against_the_same_negatives() -> None:
    made = with_evaluation(recipe("fedmf", {"items": ITEMS, "dim": 3}), Evaluation(every=1, negatives=11), 10)
    side, history = client_side(made), History.of([7, 3, 8], ITEMS)
    state = made.initial_state(bytes(32))
    training, spec = made.round_spec(bytes(32), 2), made.round_spec(bytes(32), 3)
    kept = side.contribute(training, "c", state, history, side.initial_client_state(draws()), draws()).client_state
    found = {
        tuple(side.contribute(spec, "c", state, history, kept, np.random.default_rng(seed)).blocks[0][-2:])
        for seed in range(8)
    }
    assert len(found) == 1
