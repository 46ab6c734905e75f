"""Federated evaluation over HTTP: the curve, early stopping, and the best model for late downloads."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.errors import Abstained, PolicyRefused
from client_sdk.rounds.contribution import require_data, train
from client_sdk.rounds.events import Event, ModelMeasured
from protocols.messages import Evaluation, Schedule
from protocols.recipes.evaluated import Evaluated, EvaluatedState
from tests.support.server import AggregatorProcess
from tests.support.tasks import SmallTask, joined, take_part_together

CROWD, FILMS = 5, 24
PLAIN = Policy(mechanisms=frozenset({"plain"}), min_cohort=2, snapshot_every=0)


def noisy_ratings() -> list[dict[int, float]]:
    """Ratings on which a model overfits within a few rounds."""
    rng = np.random.default_rng(8)
    values = np.clip(np.rint(3 + 1.5 * rng.standard_normal((CROWD, FILMS))), 1, 5)
    return [{item: float(values[user, item]) for item in rng.permutation(FILMS)[:10].tolist()} for user in range(CROWD)]


def test_a_task_that_overfits_is_stopped_and_has_its_best_model(server: AggregatorProcess, operator: Operator) -> None:
    """Without penalties a model of noise soon becomes much worse than its best."""
    parameters = {"items": FILMS, "dim": 4, "learning_rate": 0.5, "penalty": 0.0, "user_penalty": 0.0}
    schedule = Schedule(rounds=80, cohort_size=CROWD, start_clients=CROWD)
    request = task_request(
        "rated", "rfrec", "plain", schedule, parameters, None, bytes(range(32)),
        evaluation=Evaluation(every=1, keep="best", stop_after=3),
    )  # fmt: skip
    events: list[Event] = []
    with joined(server.url, SmallTask.of(operator, request, CROWD), CROWD, PLAIN) as parts:
        told = [events.append, *[None] * (CROWD - 1)]
        take_part_together(
            parts, list(zip(noisy_ratings(), told, strict=True)), lambda part, given: part.take_part(*given)
        )
        part, other, *_ = parts
        task, curve = operator.task("rated"), part.evaluation()
        assert (best := curve.best) is not None
        assert task.state == "complete" and task.completed_rounds < 80
        assert task.best_round == best.model_round
        assert 0 < best.model_round < task.completed_rounds - 3
        assert curve.fallen == 3
        kept = part.model()
        assert kept.round_number == best.model_round
        assert part.terms.recipe.encode_state(kept) == part.terms.recipe.encode_state(other.model())
    measured = {event.model_round: event.metrics["rmse"] for event in events if isinstance(event, ModelMeasured)}
    assert list(measured) == sorted(measured)
    assert measured[best.model_round] == min(measured.values())
    assert max(measured) > best.model_round


def test_a_task_whose_best_model_is_the_initial_one_recommends_from_it(
    server: AggregatorProcess, operator: Operator
) -> None:
    """Steps that are far too long make each model worse than the one before."""
    parameters = {"items": FILMS, "dim": 4, "learning_rate": 100.0}
    schedule = Schedule(rounds=4, cohort_size=CROWD, start_clients=CROWD)
    request = task_request(
        "worse", "rfrec", "plain", schedule, parameters, None, bytes(range(32)),
        evaluation=Evaluation(every=1, keep="best"),
    )  # fmt: skip
    ratings = noisy_ratings()
    with joined(server.url, SmallTask.of(operator, request, CROWD), CROWD, PLAIN) as parts:
        take_part_together(parts, ratings)
        best = parts[0].evaluation().best
        assert best is not None and best.model_round == 0
        assert len(parts[0].recommend(3, ratings[0]).items) == 3
        assert parts[0].model().round_number == 0


def test_a_gate_keeps_the_model_before_a_worse_one(server: AggregatorProcess, operator: Operator) -> None:
    """Server and members agree on it, the round says so, and devices recommend with it."""
    parameters = {"items": FILMS, "dim": 4, "learning_rate": 100.0}
    schedule = Schedule(rounds=4, cohort_size=CROWD, start_clients=CROWD)
    request = task_request(
        "gated", "rfrec", "plain", schedule, parameters, None, bytes(range(32)),
        evaluation=Evaluation(every=1, gate=1.0),
    )  # fmt: skip
    ratings = noisy_ratings()
    with joined(server.url, SmallTask.of(operator, request, CROWD), CROWD, PLAIN) as parts:
        take_part_together(parts, ratings)
        recipe = parts[0].terms.recipe
        assert isinstance(recipe, Evaluated)
        first, last = recipe.initial_state(bytes(range(32))), parts[0].model()
        assert isinstance(last, EvaluatedState)
        kept, newest = (recipe.inner.encode_state(one) for one in (last.used, last.model))
        assert kept == recipe.inner.encode_state(first.model) != newest
        reports = [view.report for view in operator.rounds(operator.task("gated").task_id) if view.report]
        (report,) = [one for one in reports if one.get("evaluated model round") == 2.0]
        assert report["adopted model round"] == 0.0
        assert len(parts[0].recommend(3, ratings[0]).items) == 3


def test_a_client_measures_no_more_often_than_its_policy_allows(server: AggregatorProcess, operator: Operator) -> None:
    """Rounds that fail count, too: a server could repeat a measurement with another model each time."""
    request = task_request(
        "bounded", "fedmf", "plain", Schedule(rounds=10), {"items": FILMS}, evaluation=Evaluation(every=1)
    )
    invitation = operator.invite(operator.create_task(request).task_id).invitation
    store, identity = MemoryStore(), Identity.generate()
    few, enough = (Policy(mechanisms=PLAIN.mechanisms, max_measurements=most) for most in (4, 5))
    with Client(server.url, identity, store, few) as client, pytest.raises(PolicyRefused, match="measures its model 5"):
        client.join("bounded", invitation=invitation)
    for _ in range(2):  # the record outlives the process
        with Client(server.url, identity, store, enough) as client:
            core = client.join("bounded", invitation=invitation).part
            spec, history = core.member.terms.recipe.round_spec(core.member.terms.seed, 9, 1), core.history([2, 5])
            state = core.member.terms.recipe.initial_state(core.member.terms.seed)
            given = core.member.store.given(core.member.terms.task_id, None, "held-out")
            for _ in range(given.measured, 5):
                require_data(core, spec, state, history)
                train(core, spec, state, history)
            with pytest.raises(Abstained, match="measured models 5 times"):
                require_data(core, spec, state, history)
            require_data(core, core.member.terms.recipe.round_spec(core.member.terms.seed, 9, 2), state, history)
