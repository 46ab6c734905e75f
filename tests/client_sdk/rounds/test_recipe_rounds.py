"""Recipes through whole rounds of a real server: the plain sum's model, coins, data counted once, measured models.

That encrypted sums are those of plain ones is in the battery: `RecipeConformance`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.http import SyncDriver
from client_sdk.errors import Abstained, PolicyRefused
from client_sdk.lab.data.interactions import leave_one_out
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.rounds.events import Event, ModelMeasured, RoundAbstained
from client_sdk.store.states import ClientState, GivenData
from client_sdk.task import Task
from client_sdk.training.base import LocalResult
from client_sdk.training.pfedclr import BUFFER_ROWS, PFedCLRConfig, PFedCLRHalf
from client_sdk.training.rfrec import SUM_INDEX
from protocols.advice import parameters_for
from protocols.messages import Evaluation, Schedule
from protocols.recipes.base import FactorState
from protocols.recipes.factors import CountedFactors
from protocols.recipes.rfrec import RFRecState
from protocols.recipes.state import state_as
from tests.support.one_member import OneMember, aggregate_of, attempt
from tests.support.programs import task_view
from tests.support.server import AggregatorProcess
from tests.support.tasks import (
    ITEMS,
    TRIAL,
    SmallTask,
    enrolled_fleet,
    interactions,
    joined,
    model_in_the_clear,
    small_task,
    take_part_together,
)  # fmt: skip

PFEDCLR = {"dim": 4, "rank": 2, "max_interactions": 10, "reveal_weights": True}
SMALL = PFedCLRConfig(epochs=2, batch_size=32)
COHORT = 20


def test_noise_of_pfedclr_stays_within_the_range_of_the_ring() -> None:
    data = leave_one_out(synthetic(SyntheticConfig(users=30, items=60, positives=9)), 0)
    parameters = {"items": data.train.n_items, "dim": 4, "rank": 2, "noise_scale": 0.5}
    made = Federation(data.train, "pfedclr", parameters, "masked", {"dropout": 0.0}, SMALL, COHORT)
    list(made.run(1))
    moved = made.state.item_factors - made.recipe.initial_state(made.task_seed).item_factors
    expected = 0.5 * np.sqrt(2 / COHORT)  # the deviation of a mean of 20 draws
    assert moved.std() == pytest.approx(expected, rel=0.25)


# --- RFRec and RFRecF -------------------------------------------------------------------------------------------------

USERS, RATED = 6, 24


def ratings() -> list[dict[int, float]]:
    """Return every user's ratings; every item is rated by some user, and no user rated all."""
    rng = np.random.default_rng(7)
    return [{i: float(rng.integers(1, 6)) for i in range(RATED) if (i + user) % 3 == 0} for user in range(USERS)]


def test_a_task_ends_with_its_coins_and_clients_miss_rounds(server: AggregatorProcess, operator: Operator) -> None:
    """Cohorts of 3 of 6 clients, and a schedule of more sums than the coins need."""
    schedule = Schedule(rounds=50, cohort_size=3, start_clients=USERS)
    parameters = {"items": RATED, "dim": 4, "iterations": 10, "variant": "paper", "moves": "coin"}
    request = task_request("coins", "rfrecf", "plain", schedule, parameters, {}, bytes(32))
    with enrolled_fleet(server.url, SmallTask.of(operator, request, USERS), ratings()) as fleet:
        assert {done.state for done in fleet.run()} == {"complete"}
        recipe, state = fleet.clients[0].member.terms.recipe, state_as(fleet.model(), RFRecState)
        sums = len(recipe.stretches(state))
        assert recipe.is_done(state)
        assert state.sum_index == sums < 10
        states = [client.client_state() for client in fleet.clients]
        steps = sorted(int(client_state[SUM_INDEX][0]) for client_state in states if client_state)
        assert steps[-3:] == [sums] * 3
        assert steps[0] < sums


# --- any recipe over the service --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "mechanism"), [("colr", "ckks"), ("colr", "oneshot"), ("scolr", "masked"), ("pfedclr", "masked")]
)
def test_a_round_through_the_service_gives_the_model_of_the_plain_sum(
    server: AggregatorProcess, operator: Operator, recipe: str, mechanism: str
) -> None:
    """The model that the server released is that of training every client again from the same seeds."""
    users = 4
    parameters, training = (PFEDCLR, SMALL) if recipe == "pfedclr" else (None, None)
    task = small_task(
        operator, f"same-{recipe}-{mechanism}", users=users, recipe=recipe, mechanism=mechanism,
        recipe_parameters=parameters, rounds=1,
    )  # fmt: skip
    policy = Policy(mechanisms=frozenset({mechanism}))
    with enrolled_fleet(server.url, task, interactions(users), training=training, policy=policy) as fleet:
        start = state_as(fleet.model(), FactorState).item_factors.copy()
        (played,) = fleet.run()
        assert (played.state, played.survivors, len(played.reports)) == ("complete", users, users)
        assert all(report.seal_seconds > 0 and report.upload_seconds > 0 for report in played.reports)
        expected = state_as(model_in_the_clear(fleet, interactions(users)), FactorState).item_factors
        error = fleet.clients[0].member.terms.sum_plan.predicted_error
        found = state_as(fleet.model(), FactorState).item_factors
        np.testing.assert_allclose(found, expected, atol=8 * error + 1e-6)
        assert np.abs(expected - start).max() > 0.01
        if recipe == "pfedclr":  # step 2 took place
            states = [client.client_state() for client in fleet.clients]
            assert all(client_state is not None and client_state[BUFFER_ROWS].any() for client_state in states)
    assert operator.task(task.task_id).state == "complete"


def test_the_server_sums_while_clients_of_pfedclr_personalise(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 2 of every client waits until the round is complete, which requires that no upload waits for step 2."""
    users = 3
    task = small_task(operator, "overlap", users=users, recipe="pfedclr", recipe_parameters=PFEDCLR)
    found: list[tuple[int, str]] = []
    contribute = PFedCLRHalf.contribute

    def state_of(number: int) -> str:
        return next(view.state for view in operator.rounds(task.task_id) if view.number == number)

    def waiting(self: PFedCLRHalf, spec: Any, *rest: Any) -> LocalResult:
        local = contribute(self, spec, *rest)
        finish, deadline = local.finish, time.monotonic() + 20

        def late() -> ClientState:
            while (seen := state_of(spec.number)) == "collecting" and time.monotonic() < deadline:
                time.sleep(0.02)
            found.append((spec.number, seen))
            return finish()

        return replace(local, finish=late)

    monkeypatch.setattr(PFedCLRHalf, "contribute", waiting)
    policy = Policy(mechanisms=frozenset({"plain"}))
    with joined(server.url, task, users, policy, training=SMALL) as parts:
        reports = take_part_together(parts, interactions(users))
    assert [[report.round for report in mine] for mine in reports] == [[1, 2]] * users
    assert sorted(number for number, _ in found) == [1] * users + [2] * users
    assert {state for _, state in found} <= {"folding", "complete"}


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
    task = counting_task(operator, "default", rounds=3, cohort_size=4, start_clients=5)
    with enrolled_fleet(server.url, task, users, downloads="once") as fleet:
        played = fleet.run(lambda _: seen.append(state_as(fleet.model(), CountedFactors).item_counts))
    assert [(done.state, done.survivors) for done in played] == [("complete", 4)] * 3
    first, *later = [after - before for before, after in pairwise(seen)]
    assert first.sum() == 4 * 6
    assert not np.any(later)


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
    with Client(server.url, identity, store) as client, SyncDriver() as driver:
        core = task.join(client).part
        recipe, seed = core.member.terms.recipe, core.member.terms.seed
        training = core.train(recipe.round_spec(seed, 1), recipe.initial_state(seed), core.history([2, 5]))
        assert np.flatnonzero(driver.run(training).blocks[0]).tolist() == [2, 5]
    with Client(server.url, identity, store) as restarted:
        kept = restarted.join(task.name).part.member.store.given(task.task_id, None, "rows")
    assert kept.counted == (task.task_id, 1)


# --- federated evaluation: the curve, early stopping, and the best model for late downloads ---------------------------

CROWD, FILMS = 5, 24
EITHER = Policy(mechanisms=frozenset({"plain", "ckks"}), min_cohort=2, snapshot_every=0)


Kind = tuple[int, float, float]
OVERFITTING = (8, 0.0, 1.5)
"""Ratings on which a model overfits within a few rounds: seed, spread of the items' means, noise."""
LEARNABLE = (5, 1.5, 0.2)
"""Ratings on which it improves for longer than a test takes: also over CKKS, whose noise changes each run."""


def noisy_ratings(kind: Kind) -> list[dict[int, float]]:
    seed, spread, noise = kind
    rng = np.random.default_rng(seed)
    means = spread * rng.standard_normal(FILMS) if spread else np.zeros(FILMS)
    values = np.clip(np.rint(3 + means + noise * rng.standard_normal((CROWD, FILMS))), 1, 5)
    return [{item: float(values[user, item]) for item in rng.permutation(FILMS)[:10].tolist()} for user in range(CROWD)]


@contextmanager
def played_task(
    server: AggregatorProcess, operator: Operator, mechanism: str, rounds: int, evaluation: Evaluation, kind: Kind
) -> Iterator[tuple[list[Task], list[Event]]]:
    """The clients of a task that was trained to its end, each in its own thread, and the events of the first one, which
    holds the keys."""
    # without penalties a model of noise soon becomes much worse than its best
    penalties = {"penalty": 10.0, "user_penalty": 0.1} if kind == LEARNABLE else {"penalty": 0.0, "user_penalty": 0.0}
    parameters = {"items": FILMS, "dim": 4, "learning_rate": 0.2 if kind == LEARNABLE else 0.5, **penalties}
    request = task_request(
        f"rated-{mechanism}-{rounds}", "rfrec", mechanism,
        Schedule(rounds=rounds, cohort_size=CROWD, start_clients=CROWD), parameters, None, bytes(range(32)),
        organiser=None if mechanism == "plain" else TRIAL.pin, evaluation=evaluation,
    )  # fmt: skip
    with joined(server.url, SmallTask.of(operator, request, CROWD), CROWD, EITHER) as parts:
        events: list[Event] = []
        told = [events.append, *[None] * (CROWD - 1)]
        take_part_together(
            parts, list(zip(noisy_ratings(kind), told, strict=True)), lambda part, given: part.take_part(*given)
        )
        yield parts, events


def test_a_task_that_overfits_is_stopped_and_has_its_best_model(server: AggregatorProcess, operator: Operator) -> None:
    evaluation = Evaluation(every=1, keep="best", stop_after=3)
    with played_task(server, operator, "plain", 80, evaluation, OVERFITTING) as ((part, other, *_), events):
        task, curve = operator.task("rated-plain-80"), part.evaluation()
        assert (best := curve.best) is not None
        assert task.state == "complete" and task.completed_rounds < 80
        assert task.best_round == best.model_round
        assert 0 < best.model_round < task.completed_rounds - 3
        assert curve.fallen == 3
        kept = part.model()
        assert kept.round_number == best.model_round
        assert part.terms.recipe.encode_state(kept) == part.terms.recipe.encode_state(other.model())
        seen = [event for event in events if isinstance(event, ModelMeasured)]
        rounds = [event.model_round for event in seen]
        assert rounds == sorted(set(rounds))
        measured = {event.model_round: event.metrics["rmse"] for event in seen}
        assert measured[best.model_round] == min(measured.values())
        assert max(measured) > best.model_round


def test_members_of_encrypted_tasks_keep_the_best_model(server: AggregatorProcess, operator: Operator) -> None:
    evaluation = Evaluation(every=2, keep="best")
    with played_task(server, operator, "ckks", 8, evaluation, LEARNABLE) as (parts, _):
        best, points = parts[0].evaluation().best, parts[0].evaluation().points
        assert best is not None and 0 < best.model_round < 8
        assert [part.model().round_number for part in parts] == [best.model_round] * CROWD
    assert operator.task("rated-ckks-8").best_round is None, "the server does not see the curve"
    assert [(point.model_round, point.clients) for point in points] == [(0, CROWD), (3, CROWD), (6, CROWD)]


def test_a_client_measures_no_more_often_than_its_policy_allows(server: AggregatorProcess, operator: Operator) -> None:
    """Rounds that fail count, too: a server could repeat a measurement with another model each time."""
    request = task_request(
        "bounded", "fedmf", "plain", Schedule(rounds=10), {"items": FILMS}, evaluation=Evaluation(every=1)
    )
    invitation = operator.invite(operator.create_task(request).task_id).invitation
    store, identity = MemoryStore(), Identity.generate()
    few, enough = (Policy(mechanisms=EITHER.mechanisms, max_measurements=most) for most in (4, 5))
    with Client(server.url, identity, store, few) as client, pytest.raises(PolicyRefused, match="measures its model 5"):
        client.join("bounded", invitation=invitation)
    for _ in range(2):  # the record outlives the process
        with Client(server.url, identity, store, enough) as client, SyncDriver() as driver:
            core = client.join("bounded", invitation=invitation).part
            spec, history = core.member.terms.recipe.round_spec(core.member.terms.seed, 9, 1), core.history([2, 5])
            state = core.member.terms.recipe.initial_state(core.member.terms.seed)
            given = core.member.store.given(core.member.terms.task_id, None, "held-out")
            for _ in range(given.measured, 5):
                core.require_data(spec, state, history)
                driver.run(core.train(spec, state, history))
            with pytest.raises(Abstained, match="measured models 5 times"):
                core.require_data(spec, state, history)
            core.require_data(core.member.terms.recipe.round_spec(core.member.terms.seed, 9, 2), state, history)
