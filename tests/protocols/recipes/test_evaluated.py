"""Federated evaluation as a recipe: layouts, states, the curve, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from protocols.errors import CodecError, ParameterError
from protocols.layout import REPEATED_HELD_OUT
from protocols.messages import Evaluation
from protocols.messages.privacy import Privacy
from protocols.recipes.base import Local, ModelState
from protocols.recipes.evaluated import MAX_POINTS, Evaluated, EvaluatedState, with_evaluation
from protocols.recipes.evaluation_curve import ADOPTED_ROUND, BEST_ROUND, MEASURES, MODEL_ROUND, Curve, CurvePoint
from protocols.recipes.private import with_privacy
from protocols.recipes.registry import recipe
from protocols.recipes.state import state_as

SEED, ITEMS, ROUNDS = bytes(range(32)), 6, 10
RECIPES: dict[str, dict[str, Any]] = {
    "fedmf": {},
    "colr": {"rank": 2, "item_bias": "counts", "count_sums": 2},
    "rfrec": {},
}


def measured(name: str, rounds: int = ROUNDS, **evaluation: Any) -> Evaluated:
    inner = recipe(name, {"items": ITEMS, "dim": 3, **RECIPES[name]})
    return with_evaluation(inner, Evaluation(**{"every": 3, **evaluation}), rounds)


def after(made: Evaluated, sums: int, values: list[float] | None = None, clients: float = 2.0) -> EvaluatedState:
    """The state after `sums` sums of zeros, whose measurements are of so many clients, the metrics from `values`."""
    state: ModelState = made.initial_state(SEED)
    for number in range(1, sums + 1):
        total = np.zeros(made.layout(number).length)
        if made.measures_in(number):
            total[:] = clients, *[0.5] * (total.size - 1)
            if values is not None:
                total[1:] = clients * values[made.points_after(number) - 1]
        state = made.absorb(state, made.round_spec(SEED, number), total, 4)
    return state_as(state, EvaluatedState)


@pytest.mark.parametrize("name", ["colr", "rfrec"])
def test_a_measurement_is_a_sum_of_its_own_and_the_recipe_sees_its_own_sums(name: str) -> None:
    made = measured(name)
    first = made.inner.main_sum
    measuring = [number for number in range(1, ROUNDS + 1) if made.measures_in(number)]
    assert measuring == list(range(first, ROUNDS + 1, 4))
    assert made.main_sum == first + 1
    assert [made.points_after(number) for number in (first - 1, first, first + 3, first + 4)] == [0, 1, 1, 2]
    inner = 0
    for number in range(1, ROUNDS + 1):
        layout, spec = made.layout(number), made.round_spec(SEED, number)
        assert spec.sum_index == number
        assert made.longest_vector() >= layout.length
        if number not in measuring:
            inner += 1
            assert made.inner_spec(spec).sum_index == inner
            assert layout == made.inner.layout(inner)
            continue
        assert layout.sum_class == REPEATED_HELD_OUT
        constants = len(made.constants) if number == first else 0
        assert layout.length == 1 + len(made.measures) + constants, "constants of a client are measured once"
        sent = made.contribute(made.initial_state(SEED), spec, Local(np.full(layout.length - 1, 0.75))).blocks
        assert layout.scatter(made.route(spec, "c"), sent).tolist() == [1.0, *[0.75] * (layout.length - 1)]


def test_a_measurement_moves_no_model() -> None:
    made = measured("colr")
    before = after(made, 6)
    state = made.absorb(before, made.round_spec(SEED, 7), np.array([2.0, 1.0, 1.0]), 4)
    assert made.measures_in(7)
    assert made.inner.encode_state(state.model) == made.inner.encode_state(before.model)
    assert (state.round_number, state.model.round_number) == (7, 7)
    with pytest.raises(ParameterError, match="already in a state"):
        made.absorb(state, made.round_spec(SEED, 7), np.array([2.0, 1.0, 1.0]), 4)


def test_an_abandoned_measurement_is_one_of_no_clients() -> None:
    made = measured("colr")
    state = after(made, 2)
    trained = made.absorb(state, made.round_spec(SEED, 4, 4), np.zeros(made.layout(4).length), 4)
    assert len(made.encode_state(trained)) == made.state_bytes(4)
    assert made.curve(trained).metrics(trained.points[0]) == {}
    assert state_as(made.decode_state(4, made.encode_state(trained)), EvaluatedState).points == trained.points
    # a measurement with nothing trained since the abandoned one is of the same model, and both have the same rounds
    total = np.array([2.0, *[0.5] * (made.layout(7).length - 1)])
    measured_twice = made.absorb(state, made.round_spec(SEED, 7, 7), total, 4)
    points = state_as(made.decode_state(7, made.encode_state(measured_twice)), EvaluatedState).points
    assert [(point.model_round, point.round, point.clients) for point in points] == [(2, 7, 0.0), (2, 7, 2.0)]


@pytest.mark.parametrize("values", [[0.5], [1.2, 0.0], [-0.1, 0.0], [float("nan"), 0.0]])
def test_only_values_between_0_and_1_are_measurements(values: list[float]) -> None:
    made = measured("fedmf")
    with pytest.raises(ParameterError, match=r"2 values in \[0, 1\]"):
        made.contribute(made.initial_state(SEED), made.round_spec(SEED, 1), Local(np.array(values)))


def test_states_have_the_length_of_their_sum_and_survive_encoding() -> None:
    made = measured("colr")
    for sums in range(ROUNDS + 1):
        state = after(made, sums)
        body = made.encode_state(state)
        assert len(body) == made.state_bytes(sums) <= made.longest_state_bytes()
        again = made.decode_state(state.round_number, body)
        assert again.points == state.points
        assert made.encode_state(again) == body
        again.freeze()
    assert made.name == "colr"
    assert made.view(state, 0) is state
    assert not made.by_snapshot
    assert "held-out rows" in made.warnings()[-1]


def test_malformed_states_are_refused() -> None:
    made = measured("fedmf")
    body = made.encode_state(after(made, 9))
    assert len(state_as(made.decode_state(9, body), EvaluatedState).points) == 3
    width = (len(body) - made.inner.state_bytes(1)) // 3
    swapped = body[: -2 * width] + body[-width:] + body[-2 * width : -width]
    for number, wrong, reason in (
        (9, body + body[-width:] * 9, "another length"),
        (9, swapped, "out of order"),
        (5, body, "a measurement of round 9"),
    ):
        with pytest.raises(CodecError, match=reason):
            made.decode_state(number, wrong)
    with pytest.raises(ParameterError, match="EvaluatedState is needed"):
        state_as(made.inner.initial_state(SEED), EvaluatedState)


def test_a_member_that_leaves_out_a_sum_has_a_state_of_the_same_length() -> None:
    made = measured("fedmf")
    state = after(made, 4)
    left_out = made.left_out(state, made.round_spec(SEED, 5))
    assert len(made.encode_state(left_out)) == made.state_bytes(5)
    assert made.curve(left_out).metrics(left_out.points[-1]) == {}
    assert made.curve(left_out).best == state.points[0]
    assert made.left_out(after(made, 5), made.round_spec(SEED, 7, 6)).points == after(made, 5).points


def test_the_curve_names_the_best_model_and_stops_a_task_that_has_become_worse() -> None:
    made = measured("fedmf", stop_after=2, every=1)
    values = [0.3, 0.2, 0.3, 0.2, 0.1]
    assert not made.is_done(after(made, 0))
    states = [after(made, sums, values, 400.0) for sums in (1, 3, 5, 7, 9)]
    assert [made.curve(state).fallen for state in states] == [0, 1, 0, 1, 2]
    assert [made.is_done(state) for state in states] == [False] * 4 + [True]
    assert made.report(states[3]) == pytest.approx(
        {"hr@10": 0.2, "ndcg@10": 0.2, "evaluated clients": 400.0, "evaluated model round": 6.0, BEST_ROUND: 0.0}
    )
    assert made.report(made.initial_state(SEED)) == {}


@pytest.mark.parametrize(("kind", "best"), [("ranking", (0.5, 0.3)), ("ratings", (0.05, 0.2))])
def test_a_fall_within_the_noise_does_not_stop_a_task(kind: str, best: tuple[float, float]) -> None:
    """Half a standard error: of 0 or 1 at most for NDCG, of squares of normal errors for ratings."""
    level = best[0] if kind == "ratings" else best[1]
    variance = 2 * level**2 if kind == "ratings" else level * (1 - level)
    sign = -1 if kind == "ranking" else 1
    for clients, (share, fallen) in product((100.0, 10_000.0), ((0.99, 0), (1.01, 1))):
        limit = (variance / clients) ** 0.5 / 2
        curve = [best, tuple(value + sign * share * limit for value in best)]
        points = (CurvePoint(n, n + 1, clients, tuple(clients * v for v in values)) for n, values in enumerate(curve))
        assert Curve(MEASURES[kind], tuple(points)).fallen == fallen


def test_the_lowest_error_is_the_best() -> None:
    points = tuple(CurvePoint(n, n + 1, 4.0, (4 * error**2, 4 * error)) for n, error in enumerate([0.4, 0.2, 0.3]))
    curve = Curve(MEASURES["ratings"], points)
    assert curve.best == points[1]
    assert curve.metrics(points[1]) == pytest.approx({"rmse": 0.2, "mae": 0.2})
    assert Curve(MEASURES["ratings"], ()).best is None
    assert Curve(MEASURES["ratings"], ()).fallen == 0


def test_no_sum_of_the_final_rounds_measures() -> None:
    made = measured("fedmf", every=2, final_rounds=3)
    assert [n for n in range(1, ROUNDS + 1) if made.measures_in(n)] == [1, 4, 7]
    assert [n for n in range(1, ROUNDS + 1) if made.trains_on_all(n)] == [8, 9, 10]
    assert made.points_after(ROUNDS) == 3


@pytest.mark.parametrize(
    ("name", "parameters", "reason"),
    [
        ("privirec-k", {"components": 4, "oversampling": 0, "rayleigh_ritz": False}, "after its last sum only"),
        ("fair", {}, "one device group"),
        ("fair", {"capacities": [0]}, "trains on its view"),
        ("topk", {"support": "own", "reveal_indices": True}, "choose their blocks"),
        ("pfedclr", {"noise_scale": 0.1}, "add noise"),
    ],
)
def test_recipes_that_cannot_be_measured_are_refused(name: str, parameters: dict[str, Any], reason: str) -> None:
    made = recipe(name, {"items": 40, **parameters})
    with pytest.raises(ParameterError, match=reason):
        with_evaluation(made, Evaluation(every=1), ROUNDS)
    assert with_evaluation(made, None, ROUNDS) is made


def test_too_many_and_no_measurements_are_refused() -> None:
    inner = recipe("fedmf", {"items": ITEMS, "dim": 3})
    with pytest.raises(ParameterError, match="choose every >= 2"):
        with_evaluation(inner, Evaluation(every=1), 2 * MAX_POINTS + 1)
    assert with_evaluation(inner, Evaluation(every=2), 2 * MAX_POINTS + 1) is not inner
    with pytest.raises(ParameterError, match="fewer final_rounds"):
        with_evaluation(inner, Evaluation(every=1, final_rounds=ROUNDS), ROUNDS)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"final_rounds": 2, "keep": "best"}, "final_rounds needs keep 'last'"),
        ({"final_rounds": 2, "stop_after": 2}, "final_rounds needs keep 'last'"),
        *(({"holdout": holdout}, "holdout") for holdout in (0, 0.6, "first")),
    ],
)
def test_no_model_of_held_out_rows_is_best_and_half_are_held_out_at_most(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Evaluation.model_validate({"every": 1, **changes})


def test_a_model_that_measures_clearly_worse_is_not_adopted() -> None:
    """Over 100 clients the standard error of .5 is .05, and half of it the error of a difference."""
    made = measured("colr", rounds=20, every=1, gate=2.0)
    levels = iter([0.5, 0.46, 0.4, 0.55, 0.4])  # adopted, adopted, not, adopted, not
    state: ModelState = made.initial_state(SEED)
    seen = []
    for number in range(1, 12):
        layout = made.layout(number)
        if made.measures_in(number):
            total = np.full(layout.length, 100 * next(levels))
            total[0] = 100.0
        else:
            total = np.full(layout.length, 0.25)
        before, spec = state_as(state, EvaluatedState), made.round_spec(SEED, number)
        state = made.absorb(before, spec, total, 4)
        own = state_as(state, EvaluatedState)
        assert len(made.encode_state(own)) == made.state_bytes(number) <= made.longest_state_bytes()
        held = state_as(made.decode_state(number, made.encode_state(own)), EvaluatedState)
        assert made.same_state(own, replace(held, adopted=own.adopted))
        assert (held.adopted is None) == (number < made.inner.main_sum)
        if made.measures_in(number):
            is_new = made.inner.encode_state(own.used) == made.inner.encode_state(before.model)
            assert made.inner.encode_state(own.model) == made.inner.encode_state(own.used)
            report = made.report(own)
            assert is_new == (report[ADOPTED_ROUND] == report[MODEL_ROUND])
            seen.append(is_new)
    assert seen == [True, True, False, True, False]


def test_a_measurement_of_nobody_changes_nothing_behind_a_gate() -> None:
    made = measured("fedmf", every=1, gate=1.0)
    state = after(made, 3, [0.5, 0.0], clients=0.0)
    assert made.inner.encode_state(state.used) == made.inner.encode_state(made.initial_state(SEED).model)
    skipped = made.absorb(after(made, 2), made.round_spec(SEED, 4), np.zeros(made.layout(4).length), 4)
    assert len(made.encode_state(skipped)) == made.state_bytes(4)
    first = made.absorb(made.initial_state(SEED), replace(made.round_spec(SEED, 2)), np.zeros(made.layout(2).length), 4)
    assert state_as(first, EvaluatedState).adopted is not None, "the first measurement was abandoned"


def test_a_gate_needs_measurements_without_noise() -> None:
    with pytest.raises(ParameterError, match="leave out the gate"):
        with_privacy(measured("colr", gate=2.0), Privacy(epsilon=8.0, delta=1e-6), 10, 20, 20)
    with pytest.raises(ValidationError, match="no gate"):
        Evaluation(every=1, gate=2.0, final_rounds=2)
    assert "gate" not in Evaluation(every=1).model_dump()
