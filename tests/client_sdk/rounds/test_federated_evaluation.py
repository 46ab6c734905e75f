"""Federated evaluation through a real server: the curve, early stopping, and the best model for late downloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.api.http import SyncDriver
from client_sdk.errors import Abstained, PolicyRefused
from client_sdk.rounds.events import Event, ModelMeasured
from client_sdk.task import Task
from protocols.messages import Evaluation, Schedule
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRIAL, SmallTask, joined, take_part_together

USERS, ITEMS = 5, 24
ANY = Policy(mechanisms=frozenset({"plain", "ckks"}), min_cohort=2, snapshot_every=0)


NOISE = (8, 0.0, 1.5)
"""Ratings on which a model overfits within a few rounds: seed, spread of the items' means, noise."""
LEARNABLE = (5, 1.5, 0.2)
"""Ratings on which it improves for longer than a test takes: also over CKKS, whose noise changes each run."""


def ratings(kind: tuple[int, float, float]) -> list[dict[int, float]]:
    """Return ten ratings of every user."""
    seed, spread, noise = kind
    rng = np.random.default_rng(seed)
    means = spread * rng.standard_normal(ITEMS) if spread else np.zeros(ITEMS)
    values = np.clip(np.rint(3 + means + noise * rng.standard_normal((USERS, ITEMS))), 1, 5)
    return [{item: float(values[user, item]) for item in rng.permutation(ITEMS)[:10].tolist()} for user in range(USERS)]


@contextmanager
def play(
    server: AggregatorProcess,
    operator: Operator,
    mechanism: str,
    rounds: int,
    evaluation: Evaluation,
    kind: tuple[int, float, float],
) -> Iterator[tuple[list[Task], list[Event]]]:
    """The clients of a task that was trained to its end, each in its own thread, and the events of the first one, which
    holds the keys."""
    # without penalties a model of noise soon becomes much worse than its best
    penalties = {"penalty": 10.0, "user_penalty": 0.1} if kind == LEARNABLE else {"penalty": 0.0, "user_penalty": 0.0}
    parameters = {"items": ITEMS, "dim": 4, "learning_rate": 0.2 if kind == LEARNABLE else 0.5, **penalties}
    request = task_request(
        f"rated-{mechanism}-{rounds}", "rfrec", mechanism,
        Schedule(rounds=rounds, cohort_size=USERS, start_clients=USERS), parameters, None, bytes(range(32)),
        organiser=None if mechanism == "plain" else TRIAL.pin, evaluation=evaluation,
    )  # fmt: skip
    with joined(server.url, SmallTask.of(operator, request, USERS), USERS, ANY) as parts:
        events: list[Event] = []
        told = [events.append, *[None] * (USERS - 1)]
        take_part_together(
            parts, list(zip(ratings(kind), told, strict=True)), lambda part, given: part.take_part(*given)
        )
        yield parts, events


def test_the_server_stops_a_task_that_overfits_and_serves_its_best_model(
    server: AggregatorProcess, operator: Operator
) -> None:
    evaluation = Evaluation(every=1, keep="best", stop_after=3)
    with play(server, operator, "plain", 80, evaluation, NOISE) as ((part, other, *_), events):
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


def test_members_of_an_encrypted_task_keep_the_best_model_themselves(
    server: AggregatorProcess, operator: Operator
) -> None:
    evaluation = Evaluation(every=2, keep="best")
    with play(server, operator, "ckks", 8, evaluation, LEARNABLE) as (parts, _):
        best, points = parts[0].evaluation().best, parts[0].evaluation().points
        assert best is not None and 0 < best.model_round < 8
        assert [part.model().round_number for part in parts] == [best.model_round] * USERS
    assert operator.task("rated-ckks-8").best_round is None, "the server does not see the curve"
    assert [(point.model_round, point.clients) for point in points] == [(0, USERS), (3, USERS), (6, USERS)]


def test_a_client_measures_no_more_often_than_its_policy_allows(server: AggregatorProcess, operator: Operator) -> None:
    """Rounds that fail count, too: a server could repeat a measurement with another model each time."""
    request = task_request(
        "bounded", "fedmf", "plain", Schedule(rounds=10), {"items": ITEMS}, evaluation=Evaluation(every=1)
    )
    invitation = operator.invite(operator.create_task(request).task_id).invitation
    store, identity, few = MemoryStore(), Identity.generate(), Policy(mechanisms=ANY.mechanisms, max_measurements=4)
    with Client(server.url, identity, store, few) as client, pytest.raises(PolicyRefused, match="measures its model 5"):
        client.join("bounded", invitation=invitation)
    enough = Policy(mechanisms=ANY.mechanisms, max_measurements=5)
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
