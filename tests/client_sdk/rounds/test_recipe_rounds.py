"""Recipes through whole rounds of a real server: the plain sum's model, coins, data counted once, groups.

That encrypted sums are those of plain ones is in the battery: `RecipeConformance`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.agreement.terms import TaskTerms
from client_sdk.history import History
from client_sdk.lab.fleet_rounds import FleetRound
from client_sdk.rounds.contribution import train
from client_sdk.rounds.events import RoundAbstained
from client_sdk.rounds.masked import MaskedRound
from client_sdk.store.states import ClientState, GivenData
from client_sdk.training.arrays import ArraysRound
from client_sdk.training.base import LocalResult
from client_sdk.training.pfedclr import PFedCLRSide
from client_sdk.training.rfrec import SUM_INDEX
from protocols.advice import parameters_for
from protocols.messages import Schedule
from protocols.recipes.base import FactorState
from protocols.recipes.factors import CountedFactors
from protocols.recipes.privirec_state import PriviRecState
from protocols.recipes.registry import OWN
from protocols.recipes.rfrec import RFRecState
from protocols.recipes.state import state_as
from protocols.task_terms import carriers
from tests.support.one_member import OneMember, aggregate_of, attempt
from tests.support.programs import task_view
from tests.support.server import AggregatorProcess
from tests.support.tasks import (
    ITEMS,
    TRIAL,
    TRUSTING,
    SmallTask,
    enrolled_fleet,
    interactions,
    model_in_the_clear,
    small_task,
)  # fmt: skip
from tests.vectors.recipes import SMALL


def test_a_task_ends_with_its_coins_and_clients_miss_rounds(server: AggregatorProcess, operator: Operator) -> None:
    """RFRecF: cohorts of 3 of 6 clients, and a schedule of more sums than the coins need."""
    users, items, rng = 6, 24, np.random.default_rng(7)
    rated = [
        {item: float(rng.integers(1, 6)) for item in range(items) if (item + user) % 3 == 0} for user in range(users)
    ]
    schedule = Schedule(rounds=50, cohort_size=3, start_clients=users)
    parameters = {"items": items, "dim": 4, "iterations": 10, "variant": "paper", "moves": "coin"}
    request = task_request("coins", "rfrecf", "plain", schedule, parameters, {}, bytes(32))
    with enrolled_fleet(server.url, SmallTask.of(operator, request, users), rated) as fleet:
        assert {done.state for done in fleet.run()} == {"complete"}
        recipe, state = fleet.clients[0].member.terms.recipe, state_as(fleet.model(), RFRecState)
        sums = len(recipe.stretches(state))
        assert recipe.is_done(state)
        assert state.sum_index == sums < 10
        states = [client.client_state() for client in fleet.clients]
        steps = sorted(int(client_state[SUM_INDEX][0]) for client_state in states if client_state)
        assert steps.count(sums) == 3 == steps[-3:].count(sums), "the others missed the last sum, and perhaps all"


@pytest.mark.parametrize(("recipe", "mechanism"), [("colr", "ckks"), ("colr", "oneshot"), ("scolr", "masked")])
def test_a_round_through_the_service_gives_the_model_of_the_plain_sum(
    server: AggregatorProcess, operator: Operator, recipe: str, mechanism: str
) -> None:
    """The model that the server released is that of training every client again from the same seeds."""
    users = 4
    name = f"same-{recipe}-{mechanism}"
    task = small_task(operator, name, users=users, recipe=recipe, mechanism=mechanism, rounds=1)
    policy = Policy(mechanisms=frozenset({mechanism}), trust_models=True, reveal_gram=True)
    with enrolled_fleet(server.url, task, interactions(users), policy=policy) as fleet:
        start = state_as(fleet.model(), FactorState).item_factors.copy()
        (played,) = fleet.run()
        assert (played.state, played.survivors, len(played.reports)) == ("complete", users, users)
        assert all(report.seal_seconds > 0 and report.upload_seconds > 0 for report in played.reports)
        expected = state_as(model_in_the_clear(fleet, interactions(users)), FactorState).item_factors
        error = fleet.clients[0].member.terms.sum_plan.predicted_error
        found = state_as(fleet.model(), FactorState).item_factors
        np.testing.assert_allclose(found, expected, atol=8 * error + 1e-6)
        assert np.abs(expected - start).max() > 0.01
    assert operator.task(task.task_id).state == "complete"


ALL_PAIRS = [(recipe, mechanism) for recipe in OWN for mechanism in sorted(carriers(recipe))]


@pytest.mark.nightly
@pytest.mark.parametrize(("recipe", "mechanism"), ALL_PAIRS)
def test_rounds_of_each_recipe_over_each_mechanism_are_complete(
    server: AggregatorProcess, operator: Operator, recipe: str, mechanism: str
) -> None:
    few = {"min_owners": 1, "reveal_gram": True} if recipe.startswith("privirec") else {}
    parameters, groups = SMALL[recipe] | few, [0, 1] * 3 if recipe == "fair" else [0] * 3
    how = {"degree": 4096} if (recipe, mechanism) == ("fair", "ckks") else {}
    schedule = Schedule(rounds=4, cohort_size=3, start_clients=len(groups))
    organiser = None if mechanism == "plain" else TRIAL.pin
    name = f"pair-{recipe}-{mechanism}"
    request = task_request(name, recipe, mechanism, schedule, parameters, how, bytes(32), organiser=organiser)

    def trainer(asked: ArraysRound) -> None:
        asked.contribute({name: np.full_like(array, 0.1) for name, array in asked.arrays().items()}, weight=2.0)

    rated = [{0: 5.0, 1 + user % 4: 2.0} for user in range(len(groups))]
    given: list[Any] = [trainer] * len(groups) if recipe == "arrays" else rated
    task = SmallTask.of(operator, request, len(groups))
    with enrolled_fleet(server.url, task, given, device_groups=groups) as fleet:

        def check(played: FleetRound) -> None:
            assert (played.state, played.survivors) == ("complete", 3), (played.failure, played.missed)
            for group in sorted(set(groups)):
                arrays = [value for value in vars(fleet.model(group)).values() if isinstance(value, np.ndarray)]
                assert arrays and all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f")

        assert fleet.run(check)
        if recipe != "arrays":
            assert all(np.isfinite(scores).all() for scores in fleet.scores())
    assert operator.task(task.task_id).state == "complete"


def task_of_all(operator: Operator, users: int, name: str, recipe: str, given: dict[str, Any]) -> SmallTask:
    """A masked task whose sums are all over the same `users` members."""
    schedule = Schedule(rounds=9, cohort_size=users, min_clients=users, start_clients=users)
    return SmallTask.of(operator, task_request(name, recipe, "masked", schedule, given, organiser=TRIAL.pin), users)


def test_members_keep_an_item_out_of_masked_sums_and_choose_the_filter_in_the_last_one(
    server: AggregatorProcess, operator: Operator
) -> None:
    users = 5
    given = {"items": 12, "components": 3, "iterations": 2, "reveal_gram": True, "min_owners": 1, "validation": 1.0}
    task = task_of_all(operator, users, "validated", "privirec-k", given)
    rows = [[(user + step) % 12 for step in range(6)] for user in range(users)]
    with enrolled_fleet(server.url, task, rows) as fleet:
        states: list[PriviRecState] = []

        def check(played: FleetRound) -> None:
            assert (played.state, played.survivors) == ("complete", users), (played.failure, played.missed)
            states.append(state_as(fleet.model(), PriviRecState))

        fleet.run(check)
        assert all(np.isfinite(scores).all() for scores in fleet.scores())
    assert operator.task(task.task_id).state == "complete"
    assert [state.sum_index for state in states] == [1, 2, 3, 4]
    assert states[0].item_degrees.sum() == users * 5, "each has six items and keeps one out"
    assert states[-1].measured[0] == users and (states[-1].measured[1:] > 0).all()


def test_members_count_pairs_in_blocks_of_16_bits_and_choose_the_filter_in_the_last_sum(
    server: AggregatorProcess, operator: Operator
) -> None:
    users, counted = 5, {"user_exponent": 0.0, "item_exponent": 0.4, "iterations": 0, "blocks": 2}
    given = {"items": 12, "components": 9, "reveal_gram": True, "min_owners": 1, "validation": 1.0, "slim": True}
    given |= counted
    task = task_of_all(operator, users, "counted", "privirec", given)
    rows = [[(user + step) % 12 for step in range(6)] for user in range(users)]
    with enrolled_fleet(server.url, task, rows) as fleet:
        states: list[PriviRecState] = []
        fleet.run(lambda played: states.append(state_as(fleet.model(), PriviRecState)))
        assert all(np.isfinite(scores).all() for scores in fleet.scores())
    assert operator.task(task.task_id).state == "complete"
    assert [state.sum_index for state in states] == [1, 2, 3, 4]
    kept = int(np.count_nonzero(states[0].item_degrees))
    assert states[-1].pairs.sum() == users * 15, "each has six items, keeps one out, and counts 15 pairs of five"
    assert states[-1].pairs.size == kept * (kept + 1) // 2
    assert states[-1].measured[0] == users and states[-1].measured.size == 68


def test_a_list_that_grows_after_the_degrees_ends_no_task_of_counts(
    server: AggregatorProcess, operator: Operator
) -> None:
    """The server and members compute one model, and the record of the rounds says how many counts are above."""
    users, counted = 5, {"user_exponent": 0.0, "item_exponent": 0.4, "iterations": 0, "blocks": 2}
    given = {"items": 12, "components": 9, "reveal_gram": True, "min_owners": 1, **counted}
    task = task_of_all(operator, users, "grown", "privirec", given)
    rows = [[(user + step) % 12 for step in range(6)] for user in range(users)]
    with enrolled_fleet(server.url, task, rows) as fleet:

        def grow(_: FleetRound) -> None:
            fleet._histories[0] = fleet.clients[0].history([*rows[0], 6])

        fleet.run(grow)
        last = state_as(fleet.model(), PriviRecState)
        assert all(np.isfinite(scores).all() for scores in fleet.scores())
    done = operator.task(task.task_id)
    assert (done.state, done.completed_rounds, last.sum_index) == ("complete", 3, 3)
    reports = [view.report for view in operator.rounds(task.task_id)]
    # item 6 with itself, and with items 4 and 5, which all five have: four had it in the sum of degrees
    assert last.item_degrees[[4, 5, 6]].tolist() == [5, 5, 4]
    assert reports[-1] is not None and reports[-1]["pairs_above_degree"] == 3


def test_members_add_up_what_follows_what_and_keep_their_last_item_out(
    server: AggregatorProcess, operator: Operator
) -> None:
    users, items = 5, 12
    given = {"items": items, "components": 4, "iterations": 2, "reveal_gram": True, "min_owners": 1, "validation": 1.0}
    task = task_of_all(operator, users, "ordered", "privirec-k", {**given, "next_vectors": 3})
    rows = [
        History(np.array([(user + step) % items for step in range(6)], np.int32), times=np.arange(6.0))
        for user in range(users)
    ]
    with enrolled_fleet(server.url, task, rows) as fleet:
        states: list[PriviRecState] = []
        fleet.run(lambda played: states.append(state_as(fleet.model(), PriviRecState)))
        assert all(np.isfinite(scores).all() for scores in fleet.scores())
    assert operator.task(task.task_id).state == "complete"
    assert [state.sum_index for state in states] == [1, 2, 3, 4, 5]
    expected = np.bincount([(user + step) % items for user in range(users) for step in range(5)], minlength=items)
    np.testing.assert_array_equal(states[0].item_degrees, expected)
    assert states[3].transitions.shape == (3, 3) and states[3].transitions.any()
    assert states[4].measured[0] == users and states[4].measured.size == 53


def test_a_client_of_pfedclr_uploads_before_it_personalises(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the server sums while it takes step 2."""
    terms = TaskTerms.of(task_view("pfedclr", {"items": 6, "dim": 4, "rank": 2}, completed_rounds=1))
    member, uploads = OneMember(terms, None, {1: aggregate_of(terms, None)}), list[int]()
    contribute = PFedCLRSide.contribute

    def noted(self: PFedCLRSide, *given: Any) -> LocalResult:
        local = contribute(self, *given)

        def finish() -> ClientState:
            uploads.append(len(member.requests("/contributions/")))
            return local.finish()

        return replace(local, finish=finish)

    monkeypatch.setattr(PFedCLRSide, "contribute", noted)
    member.attempt()
    assert uploads == [1]


# --- a sum of counts holds the items of `min_clients` clients or more ------------------------------------------------
# Clients that were counted once sent zeros to later sums of counts. The zeros counted towards `min_clients`, and the
# sum was the item list of the one client that was not counted before.


def counting_task(operator: Operator, name: str, **schedule: Any) -> SmallTask:
    """A task with the recommended parameters, which count items first."""
    parameters = parameters_for("colr", {"items": ITEMS, "dim": 8, "clip": 2.0, "rank": 2})
    request = task_request(name, "colr", "masked", Schedule(**schedule), parameters, organiser=TRIAL.pin)
    return SmallTask.of(operator, request, 50)


def test_no_sum_of_a_default_task_is_the_item_list_of_a_member(server: AggregatorProcess, operator: Operator) -> None:
    """Cohorts of all members but one, as any member sees it: the counts of one round less those of the round before."""
    users, seen = interactions(5), [np.zeros(ITEMS)]
    task = counting_task(operator, "default", rounds=2, cohort_size=4, start_clients=5)
    with enrolled_fleet(server.url, task, users, downloads="once") as fleet:
        played = fleet.run(lambda _: seen.append(state_as(fleet.model(), CountedFactors).item_counts))
    assert [(done.state, done.survivors) for done in played] == [("complete", 4)] * 2
    first, later = [after - before for before, after in pairwise(seen)]
    assert first.sum() == 4 * 6
    assert not later.any()


@pytest.mark.parametrize(("sums", "step", "why"), [(1, 1, "repeats sum 1"), (2, 2, "are in sum 1")])
def test_counted_members_are_no_crowd_for_a_victim(sums: int, step: int, why: str) -> None:
    """A server that asks for the counts of round 1 again, or for the next ones, gets those of nobody that it has."""
    parameters = {"items": 6, "dim": 4, "rank": 2, "item_bias": "counts", "count_sums": sums}
    terms = TaskTerms.of(task_view("colr", parameters, completed_rounds=1))
    member = OneMember(terms, None, {1: aggregate_of(terms, None)})
    member.store.keep_given("t_1", None, "rows", GivenData().with_counted("t_1", 1))
    member.runner.run(attempt(member.part, member.asked.model_copy(update={"step": step}), member.events.append))
    (abstained,) = member.events
    assert isinstance(abstained, RoundAbstained) and why in abstained.reason
    assert [json.loads(told.body) for told in member.requests("/refusals")] == [{"reason": "no-data"}]
    assert not member.requests("/contributions/")


def test_a_client_is_recorded_as_counted_before_it_sends(server: AggregatorProcess, operator: Operator) -> None:
    """Else one whose answer is lost would be counted again, in another sum."""
    task, store, identity = counting_task(operator, "record", cohort_size=6), MemoryStore(), Identity.generate()
    with Client(server.url, identity, store, TRUSTING) as client:
        core = task.join(client).part
        recipe, seed = core.member.terms.recipe, core.member.terms.seed
        local = train(core, recipe.round_spec(seed, 1), recipe.initial_state(seed), core.history([2, 5]))
        assert np.flatnonzero(local.blocks[0]).tolist() == [2, 5]
    with Client(server.url, identity, store, TRUSTING) as restarted:
        kept = restarted.join(task.name).part.member.store.given(task.task_id, None, "rows")
    assert kept.counted == (task.task_id, 1)


# --- item degrees in groups: one member that lies in them is held -----------------------------------------------------


def _lies_in_degrees(liars: list[str], item: int, times: int) -> Callable[..., Any]:
    """`MaskedRound.contribution` of members of whom one says that it counts `times` as an owner of an item."""
    true = MaskedRound.contribution

    def contribution(self: MaskedRound, *given: Any) -> Any:
        local, made = yield from true(self, *given)
        if self.spec.sum_index == 1 and self.part.member.client_id in liars:
            elements = made.elements.copy()
            elements[item] += times
            made = replace(made, payload=elements)
        return local, made

    return contribution


_IN_GROUPS = {"user_exponent": 0.0, "item_exponent": 0.4, "iterations": 0, "reveal_gram": True, "min_owners": 1}


@pytest.mark.parametrize("mechanism", ["masked", "oneshot"])
def test_the_degrees_of_a_task_of_counts_are_split_into_groups_and_all_other_sums_are_whole(
    server: AggregatorProcess, operator: Operator, mechanism: str
) -> None:
    """Where nobody lies the model is that of one sum, exactly."""
    users, groups = 15, {"groups": 3, "tau": 10.0}
    given = {"items": 12, "components": 9, "blocks": 2, **_IN_GROUPS}
    schedule = Schedule(rounds=9, cohort_size=users, min_clients=5, start_clients=users)
    request = task_request(f"split-{mechanism}", "privirec", mechanism, schedule, given, groups, organiser=TRIAL.pin)
    task = SmallTask.of(operator, request, users)
    rows = [[(user + step) % 12 for step in range(6)] for user in range(users)]
    has = np.zeros((users, 12))
    for user, row in enumerate(rows):
        has[user, row] = 1
    with enrolled_fleet(server.url, task, rows) as fleet:
        fleet.run()
        last = state_as(fleet.model(), PriviRecState)
        terms = fleet.clients[0].member.terms
    assert [terms.sum_plan_at(index).groups for index in (1, 2, 3)] == [3, 1, 1]
    assert any("The first sum is split into 3 groups" in text for text in operator.task(task.task_id).warnings)
    assert operator.task(task.task_id).state == "complete"
    reports = [view.report for view in operator.rounds(task.task_id)]
    assert [report.get("groups") for report in reports] == [3.0, None, None]
    assert (reports[0]["groups_used"], reports[0]["smallest_group"]) == (3.0, 5.0)
    assert last.item_degrees.tolist() == has.sum(0).tolist() and last.clients == users
    assert last.pairs.tolist() == (has.T @ has)[np.triu_indices(12)].tolist()


def test_attack_one_member_that_lies_in_the_sum_of_degrees_is_limited(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sum counts what it says; of groups its own counts it as far as others allow."""
    users, liars = 15, list[str]()
    rows = [[(user + step) % 11 for step in range(6)] for user in range(users)]
    monkeypatch.setattr(MaskedRound, "contribution", _lies_in_degrees(liars, item=11, times=5))
    found = []
    for groups in (1, 3):
        given = {"items": 12, "components": 9, **_IN_GROUPS}
        schedule = Schedule(rounds=1, cohort_size=users, min_clients=5, start_clients=users)
        mechanism = {} if groups == 1 else {"groups": groups}
        request = task_request(f"lies-{groups}", "privirec", "masked", schedule, given, mechanism, organiser=TRIAL.pin)
        task = SmallTask.of(operator, request, users)
        with enrolled_fleet(server.url, task, rows) as fleet:
            liars[:] = [fleet.clients[4].member.client_id]
            fleet.run()
            found.append(state_as(fleet.model(), PriviRecState).item_degrees[11])
    assert found[0] == 5.0 and found[1] <= 4.0, "nobody has the item; how far it is held depends on who is with whom"
