"""Item biases: the first sums count items, later ones train, and round 0 of training ranks by popularity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aggregator_service.tasks.tasks import plan_request
from client_sdk.history import History
from client_sdk.operator import task_request
from client_sdk.store.states import GivenData
from client_sdk.training import client_half
from client_sdk.training.base import why_abstain
from client_sdk.training.factors import logit_offsets
from protocols.advice import RECOMMENDED, advise, choose, parameters_for
from protocols.combinations import check_combination
from protocols.errors import CodecError, CombinationError, ParameterError
from protocols.messages import Evaluation
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.factors import item_biases
from protocols.recipes.registry import recipe

ITEMS, SEED = 12, bytes(range(32))


def make(name: str, **changes: object):
    return recipe(name, {"items": ITEMS, "dim": 4, "item_bias": "counts", "count_sums": 2, **changes})


@pytest.mark.parametrize("name", ["fedmf", "pfedclr"])
def test_the_first_sums_count_and_leave_the_factors_alone_and_later_ones_do_not_count(name: str) -> None:
    chosen = make(name)
    for sum_index in (1, 2):
        assert chosen.layout(sum_index).length == ITEMS
        assert chosen.route(chosen.round_spec(SEED, 5, sum_index), "c") == ((0,),)
    assert chosen.main_sum == 3
    assert chosen.layout(3) == recipe(name, {"items": ITEMS, "dim": 4}).layout()
    first, total = chosen.initial_state(SEED), np.arange(ITEMS, dtype=np.float64)
    np.testing.assert_array_equal(item_biases(first), np.zeros(ITEMS))
    second = chosen.absorb(first, chosen.round_spec(SEED, 1), total, 12)
    third = chosen.absorb(second, chosen.round_spec(SEED, 2), total + 0.2, 12)
    np.testing.assert_array_equal(third.item_counts, 2 * total)
    np.testing.assert_array_equal(third.item_factors, first.item_factors)
    np.testing.assert_allclose(item_biases(third), np.log((2 * total + 1) / (2 * total.mean() + 1)), rtol=1e-6)


def test_counts_outside_the_cohort_are_moved_to_the_bound() -> None:
    chosen = make("fedmf")
    total = np.full(ITEMS, 9.0)
    total[0] = -3.0
    counts = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), total, 4).item_counts
    assert counts.tolist() == [0.0, *[4.0] * (ITEMS - 1)]


def test_a_sum_of_counts_needs_its_state_and_its_turn() -> None:
    chosen, plain = make("fedmf"), recipe("fedmf", {"items": ITEMS, "dim": 4})
    spec = chosen.round_spec(SEED, 1)
    with pytest.raises(ParameterError, match="CountedFactors is needed"):
        chosen.absorb(plain.initial_state(SEED), spec, np.zeros(ITEMS), 3)
    done = chosen.absorb(chosen.initial_state(SEED), spec, np.zeros(ITEMS), 3)
    with pytest.raises(ParameterError, match="already"):
        chosen.absorb(done, spec, np.zeros(ITEMS), 3)


def test_more_clients_with_an_item_than_clients_are_refused() -> None:
    chosen = make("fedmf")
    state = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), np.arange(ITEMS, dtype=float), 99)
    with pytest.raises(CodecError):
        chosen.decode_state(1, chosen.encode_state(state)[:-4] + bytes([ITEMS - 2, 0, 0, 0]))


@pytest.mark.parametrize(
    ("number", "sum_index", "model_round", "items", "counted", "reason"),
    [
        (1, 1, 0, [2, 5], None, None),  # never took part
        (1, 1, 0, [2, 5], 0, None),
        (2, 1, 0, [2, 5], 1, None),  # the same sum again: round 1 failed
        (2, 2, 1, [2, 5], 0, None),
        (2, 2, 1, [2, 5], 1, "are in sum 1"),
        (2, 1, 1, [2, 5], 1, "repeats sum 1"),  # the model of round 1 shows that its sum was released
        (2, 1, 1, [2, 5], 0, "repeats sum 1"),
        (1, 1, 0, [], None, "nothing to count"),
        (4, 3, 2, [2, 5], 1, None),  # a sum of changes
    ],
)
def test_when_a_client_abstains(
    number: int, sum_index: int, model_round: int, items: list[int], counted: int | None, reason: str | None
) -> None:
    chosen, history = make("fedmf"), History(np.array(items, np.int32))
    given = GivenData(None if not counted else ("t", counted))
    state = replace(chosen.initial_state(SEED), round_number=model_round)
    sum_class = chosen.layout(sum_index).sum_class
    found = why_abstain(sum_class, chosen.round_spec(SEED, number, sum_index), state, history, given, "t")
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize("carrier", ["ckks", "masked", "oneshot", "paillier"])
@pytest.mark.parametrize(("name", "bias"), [("colr", "counts"), ("rfrec", "means")])
def test_sums_that_hide_contributions_count_once(name: str, bias: str, carrier: str) -> None:
    given = {"items": 20, "item_bias": bias}
    chosen = recipe(name, {**given, "count_sums": 2})
    check_combination(chosen, "plain")
    with pytest.raises(CombinationError, match="cannot be combined"):
        check_combination(chosen, carrier)
    check_combination(recipe(name, given), carrier)
    check_combination(recipe(name, {"items": 20, "count_sums": 2}), carrier)  # it counts nothing
    with pytest.raises(CombinationError, match="set count_sums to 1"):
        plan_request(task_request("again", name, carrier, recipe_parameters={**given, "count_sums": 2}))
    measured = with_evaluation(chosen, Evaluation(every=1), 20)
    with pytest.raises(CombinationError, match="cannot be combined"):
        check_combination(measured, carrier)


def test_scores_begin_with_popularity() -> None:
    chosen = make("fedmf")
    half = client_half(chosen)
    state = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), np.arange(ITEMS, dtype=float), 99)
    zero = {"user_factor": np.zeros(4, np.float32)}
    ranked = np.argsort(-half.scores(state, zero, History(np.array([1], np.int32))))
    assert ranked.tolist() == list(range(ITEMS))[::-1]
    np.testing.assert_allclose(logit_offsets(state, 4), item_biases(state) - np.log(4), rtol=1e-6)
    assert logit_offsets(recipe("fedmf", {"items": 3, "dim": 4}).initial_state(SEED), 4) is None


def test_the_server_rate_multiplies_the_mean_change() -> None:
    moved = []
    for rate in (1.0, 4.0):
        chosen = recipe("fedmf", {"items": 2, "dim": 1, "server_rate": rate})
        before = chosen.initial_state(SEED)
        after = chosen.absorb(before, chosen.round_spec(SEED, 1), np.array([0.5, 0.5]), 3)
        moved.append(after.item_factors - before.item_factors)
    np.testing.assert_allclose(moved[1], 4 * moved[0], rtol=1e-5)


def test_the_task_sets_the_training_and_a_client_may_choose_its_own() -> None:
    half = client_half(make("fedmf", epochs=3, batch_size=7, weight_decay=0.01))
    assert (half.training.epochs, half.training.batch_size, half.training.weight_decay) == (3, 7, 0.01)
    assert half.training.learning_rate == 0.5
    own = client_half(make("pfedclr", epochs=3, buffer_learning_rate=0.5))
    assert (own.training.epochs, own.training.buffer_learning_rate) == (3, 0.5)


def test_recommended_parameters_give_way_to_those_that_are_named() -> None:
    needed = {"privirec": {"reveal_gram": True}}
    for name, chosen in RECOMMENDED.items():
        made = recipe(name, parameters_for(name, {"items": 100, **needed.get(name, {})}))
        assert made.parameters.model_dump().items() >= dict(chosen).items()
    assert parameters_for("colr", {"items": 3, "batch_size": 9})["batch_size"] == 9
    touched = {"normalise": "touched", "reveal_touched": True}
    assert parameters_for("colr", {"items": 3}, "paper") == {"items": 3, **touched}
    assert parameters_for("rfrec", {"items": 3, "variant": "paper"}) == {"items": 3, "variant": "paper"}
    assert parameters_for("colr", {"items": 3, "item_bias": "none"}) == {"items": 3, "item_bias": "none"}


def test_the_choice_follows_from_data_budget_and_mechanism() -> None:
    usual = choose(1682, 943, 99_057)
    assert (usual.recipe, usual.rounds, usual.cohort_size) == ("privirec-k", 6, 943)
    assert usual.message_bytes == 4 * 1682 * 256
    narrow = choose(1682, 943, 99_057, budget=4 * 1682 * 15)
    assert (narrow.recipe, narrow.parameters["rank"], narrow.rounds, narrow.cohort_size) == ("colr", 4, 101, 100)
    assert "only 15 vectors" in narrow.why[0]
    assert choose(1682, 943, 99_057, budget=4 * 1682).parameters["rank"] == 1
    assert choose(1682, 943, 99_057, mechanism="ckks").recipe == "colr"
    rated = choose(1682, 943, 99_057, ratings=True)
    assert (rated.recipe, rated.message_bytes) == ("rfrec", 4 * 1682 * 20)
    for found in (usual, narrow, rated):
        recipe(found.recipe, found.parameters)
    for users, more, problem in (
        (943, {"budget": 4 * 1682 - 1}, "6,728 bytes, more than the budget of 6,727"),
        (943, {"mechanism": "rot13"}, "unknown mechanism"),
        (2, {}, "3 clients"),
    ):
        with pytest.raises(ParameterError, match=problem):
            choose(1682, users, 99_057, **more)  # type: ignore[arg-type]


def test_advice_follows_the_size_of_the_data() -> None:
    assert advise(1682, 943, 99_057) == (101, 100)  # dense data: the least rounds
    assert advise(2983, 2836, 42_697) == (101, 595)  # sparse data: a larger cohort, to count items
    assert advise(3000, 50_000, 100_000) == (451, 1000)  # and more rounds, where that is not enough
    assert advise(10**6, 50, 5000) == (1001, 50)
    for bad in ((0, 9, 9), (5, 2, 9), (5, 9, 8)):
        with pytest.raises(ParameterError, match="advice"):
            advise(*bad)
