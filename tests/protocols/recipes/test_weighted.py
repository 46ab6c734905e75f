"""Item counts and weights: what summed rows are divided by, what observers learn from many sums; and PFedCLR."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from pydantic import ValidationError

from aggregator_service.tasks.task_views import plan_request
from client_sdk.history import History
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.operator import task_request
from client_sdk.store.states import GivenData
from client_sdk.training import client_side
from client_sdk.training.base import why_abstain
from client_sdk.training.factors import logit_offsets
from client_sdk.training.mf import draw_samples
from protocols import plugins
from protocols.advice import NOISY, RECOMMENDED, STARTED, advise, choose, parameters_for
from protocols.errors import CodecError, CombinationError, ParameterError
from protocols.messages import Evaluation
from protocols.recipes.base import Contribution, Local, ModelState, RoundSpec, Update
from protocols.recipes.colr import CoLR
from protocols.recipes.defaults import TaskDefaults
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.factors import WeightedParameters, item_biases, weigh, weighted_mean, with_weight
from protocols.recipes.pfedclr import PFedCLR
from protocols.recipes.registry import recipe, recipe_entry
from protocols.recipes.rows import expected_touches
from protocols.task_terms import check_combination

VALUES = st.floats(-8, 8, width=32)
EQUAL = WeightedParameters()


def capped(most: int) -> WeightedParameters:
    return WeightedParameters(max_interactions=most, reveal_weights=True)


@given(
    st.lists(st.tuples(arrays(np.float64, 3, elements=VALUES), st.integers(1, 1000)), min_size=1, max_size=5),
    st.one_of(st.none(), st.integers(1, 1000)),
)
@settings(max_examples=25)
def test_the_sum_gives_the_mean_of_all_or_the_one_weighted_by_capped_interactions(clients, most):
    p = EQUAL if most is None else capped(most)
    total = np.sum([weigh(p, vector, size) for vector, size in clients], axis=0)
    weights = [min(size, most or 1) for _, size in clients]
    expected = np.average([vector for vector, _ in clients], axis=0, weights=weights)
    np.testing.assert_allclose(weighted_mean(with_weight(p, total, len(clients))), expected, atol=1e-9)


def test_without_consent_nothing_that_is_sent_depends_on_the_number_of_interactions():
    assert weigh(EQUAL, np.ones(3), 7).tolist() == weigh(EQUAL, np.ones(3), 900).tolist() == [1.0] * 3
    for wrong, problem in (({"max_interactions": 5}, "reveal_weights=true"), ({"reveal_weights": True}, "no weights")):
        with pytest.raises(ValidationError, match=problem):
            WeightedParameters(**wrong)
    assert not EQUAL.weight_warnings()
    assert "number of examples" in capped(3).weight_warnings()[0]


def test_weights_of_many_rounds_are_equations_in_the_clients_numbers_of_examples():
    """24 clients, 30 sums over 12 of them: why weights need consent."""
    rng, p = np.random.default_rng(1), capped(1000)
    sizes = rng.integers(1, 500, 24)
    cohorts = [rng.choice(24, 12, replace=False) for _ in range(30)]
    who = np.array([np.isin(np.arange(24), cohort) for cohort in cohorts], float)
    totals = [sum(weigh(p, np.zeros(1), sizes[client])[-1] for client in cohort) for cohort in cohorts]
    found = np.linalg.lstsq(who, np.array(totals) * 1000, rcond=None)[0]
    assert np.rint(found).tolist() == sizes.tolist()


def test_a_sum_without_weight_has_no_mean_and_a_client_without_interactions_takes_no_part():
    for total in (np.zeros(3), np.array([1.0, 1.0, -1e-9]), np.array([1.0]), np.full(3, np.nan)):
        with pytest.raises(ParameterError, match="positive sum of weights"):
            weighted_mean(total)
    for p in (EQUAL, capped(9)):
        with pytest.raises(ParameterError, match="at least 1"):
            weigh(p, np.ones(2), 0)


TOUCHED: dict[str, Any] = {"normalise": "touched", "reveal_touched": True}
ROWS = ("colr", "topk")


def test_expected_touches_are_the_mean_of_drawn_ones() -> None:
    rng, items, clients, rounds = np.random.default_rng(0), 400, 240, 20
    lengths = np.clip(rng.exponential(20.0, clients).round(), 1, items // 2).astype(int)
    rows = [rng.choice(items, length, replace=False).astype(np.int32) for length in lengths]
    counts = np.bincount(np.concatenate(rows), minlength=items).astype(np.float64)
    drawn = np.zeros(items)
    for _ in range(rounds):
        for own in rows:
            drawn[draw_samples(own, items, 4, rng).items] += 1 / rounds
    expected = expected_touches(counts, clients, 4, clients)
    assert np.median(np.abs(expected - drawn) / drawn) < 0.05
    assert abs(expected.mean() / drawn.mean() - 1) < 0.02
    np.testing.assert_allclose(expected_touches(counts, clients, 4, 7), expected * 7 / clients)
    assert (expected_touches(counts, 0, 4, 7) == 7).all()  # nobody was counted
    assert (expected_touches(np.full(items, 9.0), 9, 4, 7) == 7).all()  # everybody has every item


def share_found(who: NDArray[np.bool_], has: NDArray[np.bool_], seen: NDArray[np.float64]) -> float:
    """Return the share of all pairs that a linear system over the rounds finds; seen: (rounds, items, values)."""
    found = np.linalg.lstsq(who.astype(float), seen.reshape(len(seen), -1), rcond=None)[0]
    strength = np.linalg.norm(found.reshape(*has.shape, -1), axis=2)
    guessed = np.zeros_like(has)
    for user, row in enumerate(strength):
        guessed[user, np.argsort(-row)[: has[user].sum()]] = True
    return float((guessed & has).sum() / has.sum())


def observe(users: int, items: int, cohort: int, rounds: int) -> tuple[Any, Any, Any, Any]:
    """Return what an observer of a task's sums knows, and what it is after.

    bool (rounds, users), the cohorts; (rounds, items), counts of touches; (rounds, items, dim), changes of the factors;
    bool (users, items), which items each user has.
    """
    train = synthetic(SyntheticConfig(users=users, items=items, positives=12))
    given = {"items": items, "dim": 8, "rank": 1, "item_bias": "counts", **TOUCHED}
    made = Federation(train, "colr", given, cohort_size=cohort, sampling="uniform")
    seen: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []

    class Watched(CoLR):
        def change(self, state: ModelState, spec: RoundSpec, total: Any, contributions: int) -> NDArray[np.float64]:
            seen.append((total[items:], total[:items, None] * self.projection(spec, "")))
            return super().change(state, spec, total, contributions)

    made.recipe = Watched(made.recipe.parameters)
    list(made.run(rounds + 1))
    cohorts = [made.cohort(made.recipe.round_spec(made.task_seed, number)) for number in range(2, rounds + 2)]
    who = np.array([np.isin(np.arange(users), chosen) for chosen in cohorts])
    has = np.array([np.isin(np.arange(items), train.positives(user)) for user in range(users)])
    counts, changes = (np.array(part) for part in zip(*seen, strict=True))
    return who, counts, changes, has


def test_touch_counts_of_many_rounds_are_item_lists_and_changes_alone_are_not() -> None:
    """For an observer that knows the cohorts: why the counts need consent.

    Changes alone do not tell who has an item; but a row of zeros says that nobody in the cohort has it, which is the
    limit that docs/security.md states.
    """
    for sizes, least, most in (((24, 500, 6, 100), 1.0, 1.5), ((40, 60, 20, 60), 4.0, 6.0)):
        who, counts, changes, has = observe(*sizes)
        may_have = np.stack([changes.any(axis=2)[own].all(axis=0) for own in who.T])  # no row of zeros in its rounds
        assert (may_have | ~has).all()
        assert least <= may_have.sum() / has.sum() <= most
        if counts.mean() < 1:
            assert share_found(who, has, counts) > 0.95
            assert share_found(who, has, changes) < 0.6
        else:
            assert counts.mean() > 10


# --- pFedCLR: the weighted mean of the clients' item factors, with and without noise ----------------------------------


TASK_SEED = bytes(range(32))
PFEDCLR_ITEMS, DIM = 20, 6
SIZES = (3, 40, 900, 5000)


def make(**changes: Any) -> PFedCLR:
    return recipe("pfedclr", {"items": PFEDCLR_ITEMS, "dim": DIM, **changes})


def sent(made: PFedCLR, update: Update, size: int, seed: int = 0) -> Contribution:
    local = Local(update, examples=size, entropy=np.random.default_rng(seed).bytes)
    return made.contribute(made.initial_state(TASK_SEED), made.round_spec(TASK_SEED, 1), local)


def test_noise_is_drawn_for_every_entry_untouched_items_included() -> None:
    made = make(noise_scale=0.5)
    block = sent(made, Update(np.array([4], np.int32), np.zeros((1, DIM), np.float32)), 50, 1).vector
    assert np.unique(block).size == block.size == PFEDCLR_ITEMS * DIM
    assert (np.abs(block) <= made.layout().blocks[0].bounds()).all()
    large = make(items=5000, noise_scale=0.5)
    noise = sent(large, Update(np.zeros(0, np.int32), np.zeros((0, DIM), np.float32)), 1, 2).vector
    assert np.abs(noise).mean() == pytest.approx(0.5, rel=0.03)  # E|Laplace(b)| = b
    assert np.abs(noise.mean()) < 0.03


ITEMS, SEED = 12, bytes(range(32))


def counting(name: str, **changes: object):
    return recipe(name, {"items": ITEMS, "dim": 4, "item_bias": "counts", "count_sums": 2, **changes})


@pytest.mark.parametrize("name", ["fedmf", "pfedclr"])
def test_the_first_sums_count_and_leave_the_factors_alone_and_later_ones_do_not_count(name: str) -> None:
    chosen = counting(name)
    for sum_index in (1, 2):
        assert chosen.layout(sum_index).length == ITEMS
        assert chosen.route(chosen.round_spec(SEED, 5, sum_index), "c") == 1
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
    chosen = counting("fedmf")
    total = np.full(ITEMS, 9.0)
    total[0] = -3.0
    counts = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), total, 4).item_counts
    assert counts.tolist() == [0.0, *[4.0] * (ITEMS - 1)]


def test_more_clients_with_an_item_than_clients_are_refused() -> None:
    chosen = counting("fedmf")
    state = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), np.arange(ITEMS, dtype=float), 99)
    with pytest.raises(CodecError):
        chosen.decode_state(1, chosen.encode_state(state)[:-4] + bytes([ITEMS - 2, 0, 0, 0]))


@pytest.mark.parametrize(
    ("number", "sum_index", "model_round", "items", "counted", "reason"),
    [
        (2, 2, 1, [2, 5], 0, None),
        (2, 2, 1, [2, 5], 1, "are in sum 1"),
        (2, 1, 1, [2, 5], 1, "repeats sum 1"),  # the model of round 1 shows that its sum was released
        (2, 1, 1, [2, 5], 0, "repeats sum 1"),
        (1, 1, 0, [], 0, "nothing to count"),
        (4, 3, 2, [2, 5], 1, None),  # a sum of changes
    ],
)
def test_when_a_client_abstains(
    number: int, sum_index: int, model_round: int, items: list[int], counted: int, reason: str | None
) -> None:
    chosen, history = counting("fedmf"), History(np.array(items, np.int32))
    given = GivenData(("t", counted) if counted else None)
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
    chosen = counting("fedmf")
    side = client_side(chosen)
    state = chosen.absorb(chosen.initial_state(SEED), chosen.round_spec(SEED, 1), np.arange(ITEMS, dtype=float), 99)
    zero = {"user_factor": np.zeros(4, np.float32)}
    ranked = np.argsort(-side.scores(state, zero, History(np.array([1], np.int32))))
    assert ranked.tolist() == list(range(ITEMS))[::-1]
    np.testing.assert_allclose(logit_offsets(state, 4), item_biases(state) - np.log(4), rtol=1e-6)
    assert logit_offsets(recipe("fedmf", {"items": 3, "dim": 4}).initial_state(SEED), 4) is None


def test_the_task_sets_the_training_and_a_client_may_choose_its_own() -> None:
    side = client_side(counting("fedmf", epochs=3, batch_size=7, weight_decay=0.01))
    assert (side.training.epochs, side.training.batch_size, side.training.weight_decay) == (3, 7, 0.01)
    assert side.training.learning_rate == 0.5
    own = client_side(counting("pfedclr", epochs=3, buffer_learning_rate=0.5))
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


def test_the_entry_of_a_recipe_says_what_its_new_tasks_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of another package, too; its own hook sees what is known of the task."""
    defaults = TaskDefaults(
        recommended={"dim": 5},
        started={"learning_rate": 0.5},
        adjust=lambda chosen, given, facts: {**chosen, "epochs": facts.clients},
    )
    here = SimpleNamespace(ENTRY=replace(recipe_entry("fedmf"), name="theirs", defaults=defaults))
    monkeypatch.setitem(sys.modules, "theirs", here)  # type: ignore[arg-type]
    monkeypatch.setattr(plugins, "_found", lambda group: (("theirs", "theirs:ENTRY"),))
    assert parameters_for("theirs", {"items": 9}, clients=7) == {"items": 9, "dim": 5, "epochs": 7}
    assert parameters_for("theirs", {"dim": 2}, started=True) == {"dim": 2, "learning_rate": 0.5, "epochs": None}
    assert parameters_for("theirs", {}, "paper") == {}
    assert RECOMMENDED["theirs"] == {"dim": 5}
    assert {"theirs", "colr"} <= set(STARTED)
    assert "theirs" not in NOISY
    assert "nobodys" not in RECOMMENDED
    with pytest.raises(ParameterError, match="unknown recipe"):
        parameters_for("nobodys", {})


def test_the_choice_follows_from_data_budget_and_mechanism() -> None:
    usual = choose(1682, 943, 99_057)
    assert (usual.recipe, usual.rounds, usual.cohort_size) == ("privirec-k", 6, 943)
    assert usual.message_bytes == 4 * 1682 * 39, "3 x 39 = 943 // 8 equations"
    for vectors in (15, 8):  # which rank better than, or like, colr: docs/results.md
        few = choose(1682, 943, 99_057, budget=4 * 1682 * vectors)
        assert (few.recipe, few.parameters["components"]) == ("privirec-k", vectors)
    narrow = choose(1682, 943, 99_057, budget=4 * 1682 * 2)
    assert (narrow.recipe, narrow.parameters["rank"], narrow.rounds, narrow.cohort_size) == ("colr", 2, 101, 100)
    assert "6 vectors of privirec-k fit" in narrow.why[0]
    assert any("cohorts of at most 100 of 943 clients take turns" in why for why in narrow.why)
    small = choose(1682, 12, 1_200)
    assert small.recipe == "colr" and "its sums over so few clients tell nearly all others" in small.why[0]
    assert not any("take turns" in why for why in small.why), "all of them are in every sum"
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
            choose(1682, users, 99_057, **more)


def test_advice_follows_the_size_of_the_data() -> None:
    assert advise(1682, 943, 99_057) == (101, 100)  # dense data: the least rounds
    assert advise(2983, 2836, 42_697) == (101, 991)  # sparse data: a larger cohort, to count items
    assert advise(3000, 50_000, 100_000) == (451, 1000)  # and more rounds, where that is not enough
    assert advise(10**6, 50, 5000) == (1001, 50)
    for bad in ((0, 9, 9), (5, 2, 9), (5, 9, 8)):
        with pytest.raises(ParameterError, match="advice"):
            advise(*bad)
