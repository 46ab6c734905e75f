"""A server is restored from a backup while its clients run: they notice that they are ahead of it, and say so."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from client_sdk import Operator, Policy, RoundReport
from client_sdk.agreement.terms import TaskTerms
from client_sdk.rounds.events import Event, RoundMissed, ServerRestored, ShareSent
from client_sdk.rounds.loop import _Contributor
from client_sdk.rounds.polling import RoundChanged
from client_sdk.store.signed_sets import SignedSets
from client_sdk.task import Task
from protocols.errors import AlreadySummed
from tests.support.one_member import HISTORY, OneMember, aggregate_of, terms_of
from tests.support.programs import task_view
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import TRIAL, interactions, new_client, small_task

USERS = 4
ANY = Policy(mechanisms=frozenset({"plain", "masked", "oneshot", "ckks"}), snapshot_every=0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path / "data") as running:
        yield running


class Play:
    """A task whose clients take part, each in a thread, until it ends or `stop` is set."""

    def __init__(self, server: AggregatorProcess, resources: ExitStack, **task: Any) -> None:
        self.server, self.stop = server, threading.Event()
        self.operator = resources.enter_context(Operator(server.url, server.operator_token))
        self.task = small_task(self.operator, "movies", users=USERS, **task)
        self.events: list[list[Event]] = [[] for _ in range(USERS)]
        self._resources = resources
        self.parts: list[Task] = []
        self.lost: dict[int, int] = {}  # round -> sum, before the restore
        self.running: list[Future[list[RoundReport]]] = []
        self._pool = resources.enter_context(ThreadPoolExecutor(USERS))
        resources.callback(self.stop.set)

    def _join(self, index: int) -> Task:
        client = self._resources.enter_context(new_client(self.server.url, ANY))
        return self.task.join(client, index, seed=index)

    def start(self, *indices: int) -> None:
        """Enrol these clients, and let them take part."""
        self.parts += [self._join(index) for index in indices]
        for index in indices:
            told = self.events[index].append
            items = interactions(USERS)[index]
            self.running.append(self._pool.submit(self.parts[index].take_part, items, told, self.stop.is_set, 1.0))

    def start_committee(self, size: int) -> list[list[Event]]:
        """Let a committee serve, each member in a thread; return what its members report."""
        invitation = self.operator.invite(self.task.task_id, size, "committee").invitation
        told: list[list[Event]] = [[] for _ in range(size)]
        pool = self._resources.enter_context(ThreadPoolExecutor(size))
        self._resources.callback(self.stop.set)
        for events in told:
            client = self._resources.enter_context(new_client(self.server.url, ANY))
            member = client.join(invitation=invitation, certificate=TRIAL.source("committee"))
            pool.submit(member.serve, events.append, self.stop.is_set, 1.0)
        return told

    def all_told(self) -> bool:
        return all(any(isinstance(one, ServerRestored) for one in events) for events in self.events)

    def sums(self) -> dict[int, int]:
        """Round -> sum, of the released rounds that the server knows now."""
        return {view.number: view.step for view in self.operator.rounds(self.task.task_id, state="complete")}

    def completed(self) -> int:
        return self.operator.task(self.task.task_id).completed_rounds

    def restore_a_backup(self, tmp_path: Path) -> None:
        """Stop the server after a round for a backup, and restore it after two rounds more."""
        wait_until(lambda: self.completed() >= 1, "one round")
        self.server.stop()
        shutil.copytree(tmp_path / "data", tmp_path / "backup")
        self.server.start()
        before = self.completed()
        wait_until(lambda: self.completed() >= before + 2, "two more rounds")
        self.server.stop()
        with closing(sqlite3.connect(tmp_path / "data" / "hushrec.db")) as database:
            self.lost = dict(database.execute("SELECT number, sum_index FROM rounds").fetchall())
        (tmp_path / "data").rename(tmp_path / "lost")
        (tmp_path / "backup").rename(tmp_path / "data")
        self.server.start()

    def restored(self, index: int) -> tuple[ServerRestored, list[Event]]:
        """Return the event of a client, and the events after it."""
        events = self.events[index]
        place = next(place for place, event in enumerate(events) if isinstance(event, ServerRestored))
        event = events[place]
        assert isinstance(event, ServerRestored)
        return event, events[place + 1 :]


def test_clients_of_a_plain_task_say_so_and_go_on_at_once(
    server: AggregatorProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as resources:
        play = Play(server, resources, rounds=16, min_clients=3, start_clients=3, collect_seconds=100)
        play.start(0, 1, 2)
        play.restore_a_backup(tmp_path)
        wait_until(lambda: play.completed() >= 6, "six rounds")
        play.start(3)  # it has not seen the lost rounds
        for one in play.running:
            one.result(timeout=200)
        for index in range(3):
            event, after = play.restored(index)
            assert event.round <= event.known
            reports = [one.round for one in after if isinstance(one, RoundReport)]
            assert reports[0] <= event.known, "it took part in a round that it had seen before"
            assert sum(isinstance(one, ServerRestored) for one in play.events[index]) == 1
        models = [part.model() for part in play.parts]
        assert len({model.round_number for model in models}) == 1
        assert len({part.terms.recipe.encode_state(model) for part, model in zip(play.parts, models, strict=True)}) == 1
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert sum("the server was restored from a backup" in text for text in warnings) == 3


def goes_on(play: Play) -> None:
    """Check that the task goes on, and that no client contributes twice to a sum that was released."""

    def reports(index: int) -> int:
        return sum(isinstance(one, RoundReport) for one in play.restored(index)[1])

    wait_until(lambda: min(map(reports, range(USERS))) >= 2, "rounds of sums that nobody took part in", 60)
    play.stop.set()
    for one in play.running:
        one.result(timeout=60)
    task = play.operator.task(play.task.task_id)
    assert task.state == "open"
    assert task.abandoned_sums >= 2, "the sums of the lost rounds"
    released = play.sums()
    for index in range(USERS):
        event, after = play.restored(index)
        assert "no part in sums that it took part in before" in event.then
        missed = [one.reason for one in after if isinstance(one, RoundMissed)]
        assert any("the server repeats sum" in reason for reason in missed), missed
        sums = [released[one.round] for one in after if isinstance(one, RoundReport) and one.round in released]
        before = {play.lost[one.round] for one in play.events[index][: -len(after)] if isinstance(one, RoundReport)}
        assert sums
        assert not before.intersection(sums)


def test_clients_and_committee_leave_out_the_sums_that_they_took_part_in_before_and_go_on(
    server: AggregatorProcess, tmp_path: Path
) -> None:
    with ExitStack() as resources:
        play = Play(
            server, resources, rounds=400, mechanism="oneshot", mechanism_parameters={"committee": 3, "corrupt": 1},
            collect_seconds=6, stage_seconds=6, max_failed_rounds=2,
        )  # fmt: skip
        committee = play.start_committee(3)
        play.start(*range(USERS))
        play.restore_a_backup(tmp_path)
        wait_until(play.all_told, "every client says so", 60)
        goes_on(play)
        for events in committee:
            (event,) = (one for one in events if isinstance(one, ServerRestored))
            assert "publishes new keys" in event.then
            place = events.index(event)
            assert any(isinstance(one, ShareSent) for one in events[place:])


def test_members_of_an_encrypted_task_say_that_it_cannot_go_on() -> None:
    """Without a server: the member holds the sum of round 1, and is asked in a round 1 once more."""
    terms = terms_of("ckks")
    keyring = terms.mechanism.generate_keyring(terms.sum_plan)
    member = OneMember(terms, keyring, {1: aggregate_of(terms, keyring)})
    member.runner.run(member.part.follower.follow(1))
    contributor = _Contributor(member.part, HISTORY, member.events.append)
    assert contributor.known_round() == 1
    assert "its operator closes it" in contributor.on_restored(0)
    asked = member.view(1).model_copy(update={"state": "collecting", "in_cohort": True})
    member.runner.run(contributor.on_round(RoundChanged(asked, None)))
    (missed,) = member.events
    assert isinstance(missed, RoundMissed)
    assert "an encrypted task cannot go on" in missed.reason
    assert member.stated() is None


def test_clients_of_a_masked_task_sign_no_set_for_a_lost_sum_again() -> None:
    terms = TaskTerms.of(task_view("fedmf", {"items": 6, "dim": 2}, "masked"))
    member = OneMember(terms, None, {1: b""})
    member.store.keep_signed_sets("t_1", SignedSets(1, frozenset({bytes(16)})))
    assert "no part in sums that it took part" in _Contributor(member.part, HISTORY, None).on_restored(0)
    with pytest.raises(AlreadySummed):
        member.store.signed_sets("t_1").require_open(1)
