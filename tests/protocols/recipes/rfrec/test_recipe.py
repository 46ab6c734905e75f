"""RFRec and RFRecF: the effect of a sum on the average, encoded states, and invalid parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.combinations import check_combination
from protocols.errors import CodecError, ParameterError
from protocols.recipes.base import MOVES_ALIKE, Local
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec import RFRec, RFRecF, RFRecState
from protocols.recipes.rfrec_parameters import Stretch

SEED = bytes(range(32))
ITEMS, DIM = 12, 3
NAMES = ["rfrec", "rfrecf"]


def make(name: str, **changes: Any) -> RFRec:
    made = recipe(name, {"items": ITEMS, "dim": DIM, "variant": "paper", **changes})
    assert isinstance(made, RFRec)
    return made


def own(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(2).uniform(-1, 1, (count, ITEMS, DIM)).astype(np.float32))


def summed(made: RFRec, state: RFRecState, vectors: list[np.ndarray]) -> np.ndarray:
    return np.sum([made.contribute(state, made.round_spec(SEED, 1), Local(own)).vector for own in vectors], axis=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_average_is_the_mean_of_those_who_sent_something(name: str) -> None:
    made = make(name)
    state, vectors = made.initial_state(SEED), own(5)
    after = made.absorb(state, made.round_spec(SEED, 1), summed(made, state, vectors[:3]), 3)
    np.testing.assert_allclose(after.item_factors, np.mean(vectors[:3], axis=0), atol=1e-6)
    assert (after.round_number, after.sum_index) == (1, 1)
    again = made.absorb(after, made.round_spec(SEED, 3, 2), summed(made, after, vectors), 5)  # round 2 failed
    np.testing.assert_allclose(again.item_factors, np.mean(vectors, axis=0), atol=1e-6)
    assert (again.round_number, again.sum_index) == (3, 2)


def test_an_abandoned_sum_changes_nothing() -> None:
    made = make("rfrec")
    state = made.absorb(made.initial_state(SEED), made.round_spec(SEED, 1), np.zeros(ITEMS * DIM), 3)
    after = made.absorb(state, made.round_spec(SEED, 5, 3), np.full(ITEMS * DIM, 6.0), 3)
    assert (after.round_number, after.sum_index) == (5, 3)
    np.testing.assert_allclose(after.item_factors, state.item_factors + 2.0, atol=1e-6)


@pytest.mark.parametrize(("number", "sum_index"), [(1, 1), (2, 1)])
def test_a_sum_is_absorbed_once_and_in_its_turn(number: int, sum_index: int) -> None:
    made = make("rfrec")
    state = made.absorb(made.initial_state(SEED), made.round_spec(SEED, 1), np.zeros(ITEMS * DIM), 3)
    with pytest.raises(ParameterError, match="does not follow"):
        made.absorb(state, made.round_spec(SEED, number, sum_index), np.zeros(ITEMS * DIM), 3)


def test_the_average_begins_small_and_from_the_tasks_seed() -> None:
    made = make("rfrec", items=4000)
    factors = made.initial_state(SEED).item_factors
    assert factors.dtype == np.float32
    assert abs(float(factors.std()) / 0.01 - 1) < 0.02
    np.testing.assert_array_equal(factors, made.initial_state(SEED).item_factors)
    assert np.abs(factors - made.initial_state(SEED[::-1]).item_factors).max() > 0.01


def test_differences_beyond_the_clip_are_clipped_and_counted() -> None:
    made = make("rfrec", clip=0.5)
    state = made.initial_state(SEED)
    spec = made.round_spec(SEED, 1)
    sent = made.contribute(state, spec, Local(state.item_factors + np.float32(0.75)))
    assert sent.clipped == ITEMS * DIM
    np.testing.assert_array_equal(sent.vector, 0.5)
    with pytest.raises(ParameterError, match="diverged"):
        made.contribute(state, spec, Local(np.full((ITEMS, DIM), np.nan, np.float32)))


def test_noise_is_on_the_clipped_difference_and_drawn_for_each_value() -> None:
    made = make("rfrec", items=4000, clip=9.0, ldp={"clip": 0.2, "scale": 0.04})
    state = made.initial_state(SEED)
    own = Local(state.item_factors + np.float32(0.3), entropy=np.random.default_rng(1).bytes)
    sent = made.contribute(state, made.round_spec(SEED, 1), own)
    noise = sent.vector - 0.2
    assert sent.clipped == noise.size
    assert np.unique(noise).size > 0.9 * noise.size
    assert abs(float(noise.std()) / (0.04 * np.sqrt(2)) - 1) < 0.05
    assert made.layout().blocks[0].bounds()[0] == made.parameters.ldp.bound != 9.0
    (warning,) = made.warnings()
    assert "epsilon 10 for each" in warning
    assert f"{10 * 4000 * DIM:,}" in warning
    assert make("rfrec").warnings() == (MOVES_ALIKE,)


@pytest.mark.parametrize("name", NAMES)
def test_state_round_trip_and_its_failing_cases(name: str) -> None:
    made = make(name)
    state = made.absorb(made.initial_state(SEED), made.round_spec(SEED, 4, 1), np.ones(ITEMS * DIM), 2)
    body = made.encode_state(state)
    assert len(body) == made.state_bytes(1) == made.longest_state_bytes()
    again = made.decode_state(4, body)
    np.testing.assert_array_equal(again.item_factors, state.item_factors)
    assert again.sum_index == 1
    assert made.stretch(again, 1) == made.stretch(state, 1)
    for bad in (body[:-1], body + b"\0", body[:-4] + np.array(np.inf, "<f4").tobytes(), b"\5" + body[1:]):
        with pytest.raises(CodecError):
            made.decode_state(4, bad)


def test_rfrec_steps_once_a_sum_and_never_ends() -> None:
    made = make("rfrec")
    state = made.initial_state(SEED)
    assert made.stretch(state, 7) == Stretch(1, 0, 7)
    assert not made.is_done(state)


def test_rfrecf_is_done_when_its_coins_are_used_up() -> None:
    made = make("rfrecf", iterations=40)
    assert isinstance(made, RFRecF)
    state = made.initial_state(SEED)
    in_all = len(made.stretches(state))
    assert 1 < in_all <= 20
    for number in range(1, in_all + 1):
        assert not made.is_done(state)
        state = made.absorb(state, made.round_spec(SEED, number), np.zeros(ITEMS * DIM), 2)
    assert made.is_done(state)
    assert made.report(state) == {"iterations": 40.0, "sums": in_all, "sums_in_all": in_all}
    assert made.stretch(state, in_all + 1) == Stretch(0, 0, 40)  # if the last sum was abandoned
    with pytest.raises(ParameterError, match="there is no sum"):
        made.stretch(state, 0)


def test_coins_that_never_train_are_refused_when_the_task_is_made() -> None:
    made = make("rfrecf", iterations=1, probability=0.999)
    with pytest.raises(ParameterError, match="no iteration of this task trains"):
        made.initial_state(SEED)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("rfrec", {}, (0.05, False, 10.0, 0.2, 0.0)),
        ("rfrec", {"variant": "released"}, (0.1, True, 20.0, 0.2, 0.0)),
        ("rfrecf", {}, (0.05, False, 0.0, 0.2, 0.5)),
        ("rfrecf", {"variant": "released"}, (0.1, True, 0.0, 0.1, 1.0)),
        ("rfrecf", {"variant": "released", "user_norm": "squared"}, (0.1, True, 0.0, 0.2, 1.0)),
        ("rfrecf", {"learning_rate": 0.01, "probability": 0.2}, (0.0125, False, 0.0, 0.2, 0.5)),
    ],
)
def test_rules(name: str, changes: dict[str, Any], expected: tuple[Any, ...]) -> None:
    rule = make(name, **changes).parameters.rule
    assert (rule.rate, rule.adam, rule.pull, rule.decay, rule.move) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("rfrec", {"rating_min": 5}, "must be less than"),
        ("rfrec", {"variant": "released", "scaling": "raw"}, "sigmoid"),
        ("rfrec", {"iterations": 5}, "iterations"),
        ("rfrec", {"ldp": {"clip": 0.2}}, "scale"),
        ("rfrecf", {"learning_rate": 0.2}, "away from the average"),
        ("rfrecf", {"probability": 1.0}, "probability"),
    ],
)
def test_wrong_parameters_name_what_is_wrong(name: str, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParameterError, match=problem):
        make(name, **changes)


@pytest.mark.parametrize("name", NAMES)
def test_carriers(name: str) -> None:
    for mechanism in ("plain", "ckks", "masked", "paillier"):
        check_combination(make(name), mechanism)
