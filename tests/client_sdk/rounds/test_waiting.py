"""A client that waits for a key holder or a committee says so once, in the log and as an event."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy
from client_sdk.rounds.events import Event, Waiting
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import interactions, small_task

ANY = Policy(mechanisms=frozenset({"ckks", "oneshot"}), snapshot_every=0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("waiting") / "data") as running:
        yield running


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
