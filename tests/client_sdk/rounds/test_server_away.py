"""The server is away in every stage of a round, and no participant ends: each round still completes.

One client of each task holds back the message of a stage. While the round waits for it, the server is ended, started
again after twice the time that a request is repeated for, and only then the message is sent.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest

from client_sdk import AsyncClient, Client, ClientOptions, GaveUp, Identity, MemoryStore, Operator, Policy, RoundReport
from client_sdk.api.http import SyncDriver
from client_sdk.api.retry import DEFAULT_ATTEMPTS, RetryPolicy
from client_sdk.api.wire import Effect, Request
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.rounds.events import Event, RoundMissed, ServerBack, ServerUnreachable, TaskEnded
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import SmallTask, interactions, joined, new_client, small_task, take_part_together

SHORT_PAUSES = ClientOptions(retry=RetryPolicy(base_seconds=0.08, cap_seconds=1.0))
"""A third of the pauses that clients make, so that the tests wait less."""
REPEATED_SECONDS = sum(replace(SHORT_PAUSES.retry, jitter=lambda: 1.0).pause(n) for n in range(1, DEFAULT_ATTEMPTS))
"""A request is repeated for so long at most; only a participant that waits for its server goes on after that."""
AWAY_SECONDS = 2.0 * REPEATED_SECONDS
USERS = 3
MASKED = {
    "mechanism": "masked",
    "mechanism_parameters": {"dropout": 0.0},
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
            with new_client(server.url, ANY, SHORT_PAUSES) as client:
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
            server.stop()
            time.sleep(AWAY_SECONDS)
            server.start()
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


def waiting_task(server: AggregatorProcess, name: str) -> SmallTask:
    """A task that waits for more members than will come."""
    with Operator(server.url, server.operator_token) as operator:
        return small_task(operator, name, users=3)


def test_patience_and_stop_end_a_participant_without_a_server(tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data") as server, new_client(server.url, ANY, SHORT_PAUSES) as client:
        participant = waiting_task(server, "limits").join(client)
        server.stop()
        with pytest.raises(GaveUp):
            participant.take_part(interactions(1)[0], patience=1.0)
        stop = threading.Event()

        def unreachable(event: Event) -> None:
            if isinstance(event, ServerUnreachable):
                stop.set()

        assert participant.take_part(interactions(1)[0], unreachable, stop.is_set) == []
    assert stop.is_set()


def test_an_async_participant_and_a_fleet_wait_too(tmp_path: Path) -> None:
    told, fleet_told, joined_one = list[Event](), list[Event](), threading.Event()
    options = FleetOptions(policy=ANY, seed=1, client=SHORT_PAUSES, progress=fleet_told.append)
    with (
        running_aggregator(tmp_path / "data") as server,
        ThreadPoolExecutor(2) as pool,
        Fleet(server.url, interactions(2), options) as fleet,
    ):
        task = waiting_task(server, "patient")

        async def take_part() -> list[RoundReport]:
            async with AsyncClient(server.url, Identity.generate(), MemoryStore(), ANY, SHORT_PAUSES) as client:
                participant = await client.join("patient", invitation=task.invitation)
                joined_one.set()
                return await participant.take_part(interactions(1)[0], told.append, poll_seconds=2.0)

        alone = pool.submit(lambda: asyncio.run(take_part()))
        assert joined_one.wait(60.0)
        fleet.enrol(task.invitation)
        server.stop()
        rounds = pool.submit(fleet.run)
        wait_until(
            lambda: all(any(isinstance(one, ServerUnreachable) for one in seen) for seen in (told, fleet_told)),
            "both notice that the server is away",
        )
        server.start()
        assert [view.state for view in rounds.result(timeout=200.0)] == ["complete"] * 2
        assert len(alone.result(timeout=60.0)) == 2
    assert isinstance(told[-1], TaskEnded)


# --- a contribution whose connection breaks --------------------------------------------------------------------------


class Cutting(httpx.HTTPTransport):
    """Breaks the connection of the first upload: before the server has the body, or before its answer is here."""

    def __init__(self, is_answer_lost: bool) -> None:
        super().__init__()
        self.is_answer_lost = is_answer_lost
        self.uploads: list[tuple[str, int]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if "/contributions/" not in request.url.path:
            return super().handle_request(request)
        self.uploads.append((request.method, len(request.content)))
        if len(self.uploads) > 1:
            return super().handle_request(request)
        if not self.is_answer_lost:
            raise httpx.WriteError("cut")
        assert super().handle_request(request).read()
        raise httpx.ReadError("cut")


@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_a_contribution_that_was_cut_is_resumed_at_the_servers_offset(
    server: AggregatorProcess, operator: Operator, is_answer_lost: bool
) -> None:
    task, transport = small_task(operator, f"cut-{is_answer_lost}".lower(), users=3, rounds=1), Cutting(is_answer_lost)
    with (
        SyncDriver(transport=transport) as driver,
        joined(server.url, task, 2, ANY) as others,
        Client(server.url, Identity.generate(), MemoryStore(), ANY, driver=driver) as client,
    ):
        (report,), *_ = take_part_together([task.join(client), *others], interactions(3))
    length = report.contribution_bytes
    assert transport.uploads == [("PUT", length), ("HEAD", 0), ("PATCH", 0 if is_answer_lost else length)]
    assert report.bytes_up >= length
