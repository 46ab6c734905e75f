"""The server is away in every stage of a round, and no participant ends: each round still completes.

One client of each task holds back the message of a stage. While the round waits for it, the server is ended, started
again after twice the time that a request is repeated for, and only then the message is sent.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from client_sdk import AsyncClient, Client, ClientOptions, GaveUp, Identity, MemoryStore, Operator, Policy, RoundReport
from client_sdk.api.http import SyncDriver
from client_sdk.api.retry import DEFAULT_ATTEMPTS, RetryPolicy
from client_sdk.api.wire import Effect, Request
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.rounds.events import Event, RoundMissed, ServerBack, ServerUnreachable, TaskEnded
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import SmallTask, interactions, small_task

SHORT_PAUSES = ClientOptions(retry=RetryPolicy(base_seconds=0.08, cap_seconds=1.0))
"""A third of the pauses that clients make, so that the tests wait less."""
REPEATED_SECONDS = sum(replace(SHORT_PAUSES.retry, jitter=lambda: 1.0).pause(n) for n in range(1, DEFAULT_ATTEMPTS))
"""A request is repeated for so long at most; only a participant that waits for its server goes on after that."""
AWAY_SECONDS = 2.0 * REPEATED_SECONDS
USERS = 6
MASKED = {
    "mechanism": "masked",
    "mechanism_parameters": {"dropout": 0.2},
    "rounds": 1,
    "collect_seconds": 400,
    "stage_seconds": 400,
}
PLAIN = {"mechanism": "plain", "rounds": 1, "collect_seconds": 400}
STAGES = {
    "plain-contribution": (PLAIN, "/contributions/"),
    "advertise": (MASKED, "/stages/advertise/"),
    "share": (MASKED, "/stages/share/"),
    "masked-contribution": (MASKED, "/contributions/"),
    "confirm": (MASKED, "/stages/confirm/"),
    "unmask": (MASKED, "/stages/unmask/"),
}
ANY = Policy(mechanisms=frozenset({"plain", "masked"}))


class HoldingDriver(SyncDriver):
    """Holds back the requests with a body to addresses that contain `part`, until `release` is set."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part
        self.reached, self.release = threading.Event(), threading.Event()

    def _perform(self, effect: Effect) -> object:
        if isinstance(effect, Request) and effect.body and self.part in effect.url:
            self.reached.set()
            assert self.release.wait(300.0)
        return super()._perform(effect)


def restart_after(server: AggregatorProcess, seconds: float) -> None:
    server.stop()
    time.sleep(seconds)
    server.start()


@dataclass
class StagePlay:
    """One task whose client 0 holds back the message of stage `name`. ended: ends the clients when the test fails."""

    name: str
    driver: HoldingDriver
    ended: threading.Event
    events: list[list[Event]] = field(default_factory=lambda: [[] for _ in range(USERS)])
    parts: list[Future[list[RoundReport]]] = field(default_factory=list)

    def start(self, server: AggregatorProcess, operator: Operator, pool: ThreadPoolExecutor) -> None:
        task = small_task(operator, self.name, users=USERS, **STAGES[self.name][0])

        def one(index: int) -> list[RoundReport]:
            with Client(server.url, Identity.generate(), MemoryStore(), ANY, SHORT_PAUSES) as client:
                part = task.join(client, seed=index)
                if index == 0:
                    part._driver = self.driver
                told = self.events[index].append
                return part.take_part(interactions(USERS)[index], told, self.ended.is_set, poll_seconds=5.0)

        self.parts = [pool.submit(one, index) for index in range(USERS)]


@pytest.mark.timeout(600)
def test_the_server_is_away_in_every_stage(tmp_path: Path) -> None:
    ended = threading.Event()
    with (
        running_aggregator(tmp_path / "data") as server,
        ExitStack() as drivers,
        ThreadPoolExecutor(len(STAGES) * USERS) as pool,
    ):
        plays = [
            StagePlay(name, drivers.enter_context(HoldingDriver(part)), ended) for name, (_, part) in STAGES.items()
        ]
        try:
            with Operator(server.url, server.operator_token) as operator:
                for play in plays:
                    play.start(server, operator, pool)
            for play in plays:
                assert play.driver.reached.wait(200.0), play.name
            restart_after(server, AWAY_SECONDS)
            for play in plays:
                play.driver.release.set()
            reports = {play.name: [part.result(timeout=200.0) for part in play.parts] for play in plays}
        finally:
            ended.set()
            for play in plays:
                play.driver.release.set()
    for play in plays:
        assert [[report.round for report in mine] for mine in reports[play.name]] == [[1]] * USERS, play.name
        for mine in play.events[1:]:  # client 0 was held back by the test
            outage = [event for event in mine if isinstance(event, ServerUnreachable | ServerBack)]
            assert isinstance(outage[0], ServerUnreachable), play.name
            assert isinstance(outage[-1], ServerBack), play.name
            assert outage[-1].seconds > AWAY_SECONDS / 2
            assert isinstance(mine[-1], TaskEnded)
            assert not any(isinstance(event, RoundMissed) for event in mine)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path / "data") as running:
        yield running


def waiting_task(server: AggregatorProcess, name: str) -> SmallTask:
    """A task that waits for more members than will come."""
    with Operator(server.url, server.operator_token) as operator:
        return small_task(operator, name, users=3)


def test_patience_and_stop_end_a_participant_without_a_server(server: AggregatorProcess) -> None:
    task = waiting_task(server, "limits")
    with Client(server.url, Identity.generate(), MemoryStore(), ANY) as client:
        participant = client.join("limits", invitation=task.invitation)
        server.stop()
        with pytest.raises(GaveUp):
            participant.take_part(interactions(1)[0], patience=1.0)
        stop = threading.Event()

        def unreachable(event: Event) -> None:
            if isinstance(event, ServerUnreachable):
                stop.set()

        assert participant.take_part(interactions(1)[0], unreachable, stop.is_set) == []
    assert stop.is_set()


def test_async_participants_and_fleets_wait_too(server: AggregatorProcess) -> None:
    task = waiting_task(server, "patient")
    told: list[Event] = []

    async def take_part() -> list[RoundReport]:
        async with AsyncClient(server.url, Identity.generate(), MemoryStore(), ANY, SHORT_PAUSES) as client:
            participant = await client.join("patient", invitation=task.invitation)
            joined.set()
            return await participant.take_part(interactions(1)[0], told.append, poll_seconds=2.0)

    joined, fleet_told = threading.Event(), list[Event]()
    with (
        ThreadPoolExecutor(2) as pool,
        Fleet(
            server.url,
            interactions(2),
            FleetOptions(policy=ANY, seed=1, client=SHORT_PAUSES, progress=fleet_told.append),
        ) as fleet,
    ):
        alone = pool.submit(lambda: asyncio.run(take_part()))
        assert joined.wait(60.0)
        server.stop()
        while not any(isinstance(event, ServerUnreachable) for event in told):
            time.sleep(0.05)
        server.start()
        fleet.enrol(task.invitation)
        rounds = pool.submit(fleet.run)
        time.sleep(1.0)
        restart_after(server, REPEATED_SECONDS + 0.5)
        assert [view.state for view in rounds.result(timeout=200.0)] == ["complete"] * 2
        assert len(alone.result(timeout=60.0)) == 2
    assert isinstance(told[-1], TaskEnded)
