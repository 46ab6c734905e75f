"""The server is away in a stage of a round, or restored from a backup: no participant ends, and all say so.

One client of each task holds back the message of a stage. While the round waits for it, the server is ended, started
again after twice the time that a request is repeated for, and only then the message is sent.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from client_sdk import AsyncClient, Client, ClientOptions, GaveUp, Identity, MemoryStore, Operator, Policy, RoundReport
from client_sdk.api.calls import ApiCalls, RoundChanged
from client_sdk.api.http import SyncDriver
from client_sdk.api.retry import DEFAULT_ATTEMPTS, RetryPolicy
from client_sdk.api.wire import Program, Request, Response
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.rounds.events import (
    Event,
    Progress,
    RoundMissed,
    ServerBack,
    ServerRestored,
    ServerUnreachable,
    ShareSent,
    TaskEnded,
)
from client_sdk.rounds.loop import _Contributor
from client_sdk.rounds.polling import RoundChange, SeenRounds, follow_rounds
from client_sdk.store.states import SignedSets
from protocols.errors import AlreadySummed
from tests.support.one_member import HISTORY, OneMember, aggregate_of, terms_of
from tests.support.programs import ProgramRunner, round_view
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import TRIAL, interactions, new_client, small_task

SHORT_PAUSES = ClientOptions(retry=RetryPolicy(base_seconds=0.08, cap_seconds=1.0))
"""A third of the pauses that clients make, so that the tests wait less."""
REPEATED_SECONDS = sum(replace(SHORT_PAUSES.retry, jitter=lambda: 1.0).pause(n) for n in range(1, DEFAULT_ATTEMPTS))
"""A request is repeated for so long at most; only a participant that waits for its server goes on after that."""
AWAY_SECONDS = 2.0 * REPEATED_SECONDS
USERS = 3
PLAIN = {"mechanism": "plain", "rounds": 1, "collect_seconds": 400}
MASKED = {**PLAIN, "mechanism": "masked", "mechanism_parameters": {"dropout": 0.0}, "stage_seconds": 400}
STAGES = {
    "plain-contribution": (PLAIN, "/contributions/"),
    "advertise": (MASKED, "/stages/advertise/"),
    "masked-contribution": (MASKED, "/contributions/"),
    "unmask": (MASKED, "/stages/unmask/"),
}
"""A message of each kind; those of the stages between take the same way."""
ANY = Policy(mechanisms=frozenset({"plain", "masked", "oneshot"}), trust_models=True)


class HoldingDriver(SyncDriver):
    """Holds back the requests with a body to addresses that contain `part`, until `release` is set."""

    def __init__(self, part: str) -> None:
        super().__init__()
        self.part = part
        self.reached, self.release = threading.Event(), threading.Event()

    def _send(self, request: Request) -> Response:
        if request.body and self.part in request.url:
            self.reached.set()
            assert self.release.wait(300.0)
        return super()._send(request)


@dataclass
class Crowd:
    """Participants of tasks, each in a thread, until `stop` is set at the latest: when `resources` end."""

    server: AggregatorProcess
    resources: ExitStack
    size: int
    stop: threading.Event = field(default_factory=threading.Event)
    events: list[list[Event]] = field(default_factory=list)
    running: list[Future[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pool = self.resources.enter_context(ThreadPoolExecutor(self.size))
        self.resources.callback(self.stop.set)

    def client(self) -> Client:
        return self.resources.enter_context(new_client(self.server.url, ANY, SHORT_PAUSES))

    def add(self, take_part: Callable[[Progress, Callable[[], bool], float], Any]) -> None:
        told = list[Event]()
        self.events.append(told)
        self.running.append(self._pool.submit(take_part, told.append, self.stop.is_set, 1.0))

    def ended(self) -> list[Any]:
        return [one.result(timeout=200.0) for one in self.running]


@pytest.mark.timeout(600)
def test_the_server_is_away_in_a_stage(tmp_path: Path) -> None:
    with (
        running_aggregator(tmp_path / "data") as server,
        Operator(server.url, server.operator_token) as operator,
        ExitStack() as resources,
    ):
        crowd, drivers = Crowd(server, resources, len(STAGES) * USERS), list[HoldingDriver]()
        for name, (how, part) in STAGES.items():
            task = small_task(operator, name, users=USERS, **how)
            drivers.append(resources.enter_context(HoldingDriver(part)))
            resources.callback(drivers[-1].release.set)
            for index, mine in enumerate(interactions(USERS)):
                member = task.join(crowd.client(), seed=index)
                if index == 0:
                    member._driver = drivers[-1]
                crowd.add(partial(member.take_part, mine))
        for driver in drivers:
            assert driver.reached.wait(200.0), driver.part
        server.stop()
        time.sleep(AWAY_SECONDS)
        server.start()
        for driver in drivers:
            driver.release.set()
        reports = crowd.ended()
    assert [[report.round for report in mine] for mine in reports] == [[1]] * USERS * len(STAGES)
    for number, told in enumerate(crowd.events):
        if number % USERS == 0:  # held back by the test
            continue
        outage = [event for event in told if isinstance(event, ServerUnreachable | ServerBack)]
        assert isinstance(outage[0], ServerUnreachable) and isinstance(outage[-1], ServerBack), (number, told)
        assert outage[-1].seconds > AWAY_SECONDS / 2
        assert isinstance(told[-1], TaskEnded)
        assert not any(isinstance(event, RoundMissed) for event in told)


def test_an_async_participant_and_a_fleet_wait_too_until_patience_or_stop_ends_it(tmp_path: Path) -> None:
    told, fleet_told, joined_one = list[Event](), list[Event](), threading.Event()
    options = FleetOptions(policy=ANY, seed=1, client=SHORT_PAUSES, progress=fleet_told.append)
    with (
        running_aggregator(tmp_path / "data") as server,
        Operator(server.url, server.operator_token) as operator,
        ThreadPoolExecutor(2) as pool,
        Fleet(server.url, interactions(2), options) as fleet,
        new_client(server.url, ANY, SHORT_PAUSES) as client,
    ):
        task, impatient = small_task(operator, "patient", users=3), small_task(operator, "limits", users=3).join(client)

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
        with pytest.raises(GaveUp):
            impatient.take_part(interactions(1)[0], patience=1.0)
        stop, seen = threading.Event(), list[Event]()

        def unreachable(event: Event) -> None:
            seen.append(event)
            stop.set()

        assert impatient.take_part(interactions(1)[0], unreachable, stop.is_set) == []
        assert isinstance(seen[0], ServerUnreachable)
        server.start()
        assert [view.state for view in rounds.result(timeout=200.0)] == ["complete"] * 2
        assert len(alone.result(timeout=60.0)) == 2
    assert isinstance(told[-1], TaskEnded)


# --- a server that is restored from a backup while its clients run ----------------------------------------------------

CLIENTS, COMMITTEE = 3, 3


def restore_a_backup(server: AggregatorProcess, folder: Path, completed: Callable[[], int]) -> dict[int, int]:
    """Back the server up after a round and restore it after two more; return the sums of the lost rounds."""
    wait_until(lambda: completed() >= 1, "one round")
    server.stop()
    shutil.copytree(folder / "data", folder / "backup")
    server.start()
    before = completed()
    wait_until(lambda: completed() >= before + 2, "two more rounds")
    server.stop()
    with closing(sqlite3.connect(folder / "data" / "hushrec.db")) as database:
        lost = dict(database.execute("SELECT number, sum_index FROM rounds").fetchall())
    (folder / "data").rename(folder / "lost")
    (folder / "backup").rename(folder / "data")
    server.start()
    return lost


def since_restored(events: list[Event]) -> list[Event]:
    """The one event that says that the server was restored, and those after it."""
    (place,) = (place for place, event in enumerate(events) if isinstance(event, ServerRestored))
    return events[place:]


def test_clients_and_committee_leave_out_the_sums_that_they_took_part_in_before_and_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        running_aggregator(tmp_path / "data") as server,
        Operator(server.url, server.operator_token) as operator,
        ExitStack() as resources,
    ):
        crowd = Crowd(server, resources, COMMITTEE + CLIENTS)
        asked = small_task(
            operator, "movies", users=CLIENTS, rounds=400, mechanism="oneshot", collect_seconds=6, stage_seconds=6,
            mechanism_parameters={"committee": COMMITTEE, "corrupt": 1}, max_failed_rounds=2,
        )  # fmt: skip
        invitation = operator.invite(asked.task_id, COMMITTEE, "committee").invitation
        for _ in range(COMMITTEE):
            crowd.add(crowd.client().join(invitation=invitation, certificate=TRIAL.source("committee")).serve)
        for place, mine in enumerate(interactions(CLIENTS)):
            crowd.add(partial(asked.join(crowd.client(), seed=place).take_part, mine))
        members, clients = crowd.events[:COMMITTEE], crowd.events[COMMITTEE:]
        lost = restore_a_backup(server, tmp_path, lambda: operator.task(asked.task_id).completed_rounds)

        def reported(told: list[Event]) -> set[int]:
            after = since_restored(told) if any(isinstance(one, ServerRestored) for one in told) else []
            return {one.round for one in after if isinstance(one, RoundReport)}

        def summed() -> int:
            complete = {view.number for view in operator.rounds(asked.task_id, state="complete")}
            return min(len(complete & reported(told)) for told in clients)

        wait_until(lambda: summed() >= 2, "rounds of sums that nobody took part in", 120)
        crowd.stop.set()
        crowd.ended()
        task = operator.task(asked.task_id)
        assert task.state == "open"
        assert task.abandoned_sums >= 2, "the sums of the lost rounds"
        released = {view.number: view.step for view in operator.rounds(asked.task_id, state="complete")}
    for told in clients:
        event, *after = since_restored(told)
        assert isinstance(event, ServerRestored) and "no part in sums that it took part in before" in event.then
        missed = [one.reason for one in after if isinstance(one, RoundMissed)]
        assert any("the server repeats sum" in reason for reason in missed), missed
        sums = {released[one.round] for one in after if isinstance(one, RoundReport) and one.round in released}
        before = {lost[one.round] for one in told[: -len(after)] if isinstance(one, RoundReport)}
        assert sums and not before & sums
    for told in members:
        event, *after = since_restored(told)
        assert isinstance(event, ServerRestored) and "publishes new keys" in event.then
        assert any(isinstance(one, ShareSent) for one in after)
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert sum("the server was restored from a backup" in text for text in warnings) == COMMITTEE + CLIENTS


# --- without a server: a member that holds the sum of round 1 is asked in a round 1 once more ------------------------


@pytest.mark.parametrize(
    ("mechanism", "then"), [("plain", "takes over the server's model and goes on"), ("ckks", "its operator closes it")]
)
def test_members_of_a_plain_task_go_on_at_once_and_those_of_an_encrypted_one_cannot(mechanism: str, then: str) -> None:
    terms = terms_of(mechanism)
    keyring = terms.mechanism.generate_keyring(terms.sum_plan) if mechanism == "ckks" else None
    member = OneMember(terms, keyring, {1: aggregate_of(terms, keyring)})
    member.runner.run(member.part.follower.follow(1))
    contributor = _Contributor(member.part, HISTORY, member.events.append)
    assert contributor.known_rounds() == (1, 1)
    assert then in contributor.on_restored(0)
    member.released, member.last = {}, 0
    opened = member.asked.model_copy(update={"in_cohort": True})
    member.runner.run(contributor.on_round(RoundChanged(opened, None)))
    (told,) = member.events
    if mechanism == "plain":
        assert isinstance(told, RoundReport) and len(member.requests("/contributions/")) == 1
        assert member.part.follower.known == 0, "it trained on the model that the server has"
    else:
        assert isinstance(told, RoundMissed) and "an encrypted task cannot go on" in told.reason
        assert member.stated() is None


@pytest.mark.parametrize("over", [True, False], ids=["over", "newest"])
@pytest.mark.parametrize("restored", [True, False], ids=["restored", "slow-replica"])
def test_a_restored_server_that_overtakes_a_client_in_its_pause_is_told_from_a_replica(
    restored: bool, over: bool
) -> None:
    """In the pause the server came to a round that the client did not know: only the rounds before tell them apart."""
    terms, events = terms_of("plain"), list[Event]()
    seen = round_view(3, "complete" if over else "collecting", aggregate=b"a sum")
    other = seen.model_copy(update={"aggregate_digest": 64 * "0"} if over else {"step": 2})
    newest = iter([seen, round_view(2, "collecting"), round_view(4, "collecting", cohort=5)])

    def answer(request: Request) -> Response:
        path = urlsplit(request.url).path.removeprefix("/v1/tasks/t_1")
        if path == "":
            return Response(200, {}, terms.view.model_dump_json().encode())
        current = path == "/rounds/current"
        assert current or path == "/rounds/3"
        view = next(newest) if current else other if restored else seen.model_copy(update={"state": "complete"})
        return Response(200, {"etag": f"{view.number}"}, view.model_dump_json().encode())

    def polls(rounds: SeenRounds) -> Program[RoundChange]:
        change: RoundChange | None = None
        for _ in range(2):
            change = yield from rounds.checked((yield from follow_rounds(rounds.calls, "t_1", change, 0.0)))
        assert change is not None
        return change

    runner = ProgramRunner(answer)
    rounds = SeenRounds(ApiCalls("https://server.example", "t"), terms, lambda: (0, 0), lambda _: "ok", events.append)
    change = runner.run(polls(rounds))
    assert isinstance(change, RoundChanged) and change.view.number == 4
    assert runner.pauses == [3.0]
    assert events == ([ServerRestored(4, 3, "ok")] if restored else [])
    assert (rounds.number, rounds.completed) == (4, 3)


def test_clients_of_a_masked_task_sign_no_set_for_a_lost_sum_again() -> None:
    member = OneMember(terms_of("masked"), None, {1: b""})
    member.store.keep_signed_sets("t_1", SignedSets(1, frozenset({bytes(16)})))
    assert "no part in sums that it took part" in _Contributor(member.part, HISTORY, print).on_restored(0)
    with pytest.raises(AlreadySummed):
        member.store.signed_sets("t_1").require_open(1)
