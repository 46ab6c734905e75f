"""Joining and waiting on a real server: enrolling again, whom a client waits for, and an operator's interventions."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import SyncDriver
from client_sdk.errors import Conflict, InvalidParameters, NotFound, Unauthenticated
from client_sdk.rounds.events import Event, Waiting
from protocols.messages import MechanismChoice, RecipeChoice, Schedule, TaskRequest
from tests.support.api import Api, TestTask
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess
from tests.support.tasks import interactions, small_task

PLAIN = Policy(mechanisms=frozenset({"plain"}), min_cohort=2)


def test_enrolling_again_works_and_a_recorded_enrolment_does_not(server: AggregatorProcess) -> None:
    with Operator(server.url, server.operator_token) as operator:
        recipe = RecipeChoice(name="fedmf", parameters={"items": 20, "dim": 4, "clip": 0.5})
        schedule = Schedule(rounds=1, cohort_size=3, min_clients=3)
        task = operator.create_task(
            TaskRequest(name="again", recipe=recipe, mechanism=MechanismChoice(name="plain"), schedule=schedule)
        )
        invitation = operator.invite(task.task_id).invitation
    identity, tokens = Identity.generate(), list[str]()
    client_ids = set()
    for _ in range(3):  # each time on a new device, which knows nothing of the enrolments before
        with Client(server.url, identity, MemoryStore(), policy=PLAIN) as client:
            membership = client.join(invitation=invitation).membership
            tokens.append(membership.token)
            client_ids.add(membership.client_id)
    assert (len(set(tokens)), len(client_ids)) == (3, 1)
    calls = ApiCalls(server.url)
    *void, last = (calls.enrolled(membership.client_id, token, identity.signing_key) for token in tokens)
    with SyncDriver() as driver:
        for renewal in range(3):
            with pytest.raises(Conflict, match="renewal above 2"):
                driver.run(calls.enrol(identity.enrolment(invitation, None, None, renewal)))
        assert driver.run(last.task(task.task_id)).name == "again"
        for old in void:
            with pytest.raises(Unauthenticated):
                driver.run(old.task(task.task_id))


# --- a client that waits for a key holder or a committee says so once, in the log and as an event ---------------------

ANY = Policy(mechanisms=frozenset({"ckks", "oneshot"}), snapshot_every=0)


@pytest.mark.parametrize(
    ("mechanism", "whom"),
    [("ckks", "the keyring, which the task's key holder creates"), ("oneshot", "the committee: ")],
)
def test_a_client_says_once_whom_it_waits_for(
    server: AggregatorProcess, caplog: pytest.LogCaptureFixture, mechanism: str, whom: str
) -> None:
    name, users = f"waits-{mechanism}", 3
    events: list[Event] = []
    polls: list[int] = []
    stop = threading.Event()

    def stopped() -> bool:
        polls.append(1)
        return stop.is_set()

    with ExitStack() as resources:
        operator = resources.enter_context(Operator(server.url, server.operator_token))
        task = small_task(operator, name, users=users, mechanism=mechanism)
        clients = [Client(server.url, Identity.generate(), MemoryStore(), ANY) for _ in range(users)]
        parts = [
            resources.enter_context(client).join(invitation=task.invitation, certificate=task.certificate)
            for client in clients
        ]
        pool = resources.enter_context(ThreadPoolExecutor(1))
        running = pool.submit(parts[0].take_part, interactions(1)[0], events.append, stopped, 0.5)
        try:
            wait_until(lambda: len(polls) >= 4, "several polls")
        finally:
            stop.set()
        assert running.result(timeout=60) == []
    told = [event for event in events if isinstance(event, Waiting)]
    assert [event.what.startswith(whom) for event in told] == [True], told
    logged = [record.getMessage() for record in caplog.records if "this client waits for" in record.getMessage()]
    assert logged == [f"task {name}: this client waits for {told[0].what}"]


# --- an operator extends and aborts rounds through the SDK, on a real server ------------------------------------------


def test_an_operator_extends_and_aborts_a_round(server: AggregatorProcess) -> None:
    with Operator(server.url, server.operator_token) as operator:
        task_id = small_task(operator, "intervened", users=3, collect_seconds=3600.0).task_id
        api = Api(server.url, server.operator_token)
        TestTask(api, api.http.get(f"/v1/tasks/{task_id}", headers=api.operator).json()).enrol(3)
        api.close()
        end = time.monotonic() + 30
        while not list(operator.rounds(task_id)) and time.monotonic() < end:
            time.sleep(0.05)
        left = operator.extend_round(task_id, 1, 600).seconds_left
        assert left is not None
        assert 4000 < left <= 4200
        with pytest.raises(InvalidParameters, match="can be extended by"):
            operator.extend_round(task_id, 1, 604_800)
        with pytest.raises(ValueError, match="greater than 0"):
            operator.extend_round(task_id, 1, -1)
        with pytest.raises(NotFound):
            operator.abort_round(task_id, 9)
        aborted = operator.abort_round(task_id, 1)
        assert (aborted.state, aborted.failure) == ("failed", "aborted by an operator")
        assert operator.abort_round(task_id, 1) == aborted
        with pytest.raises(Conflict):
            operator.extend_round(task_id, 1, 5)
        assert operator.task(task_id).state == "open"
