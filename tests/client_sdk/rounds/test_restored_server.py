"""A server is restored from a backup while its clients run: they notice that they are ahead of it, and say so."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from client_sdk import Operator, RoundReport
from client_sdk.rounds.events import Event, RoundMissed, ServerRestored, ShareSent
from client_sdk.rounds.loop import _Contributor
from client_sdk.rounds.polling import RoundChanged
from client_sdk.store.signed_sets import SignedSets
from protocols.errors import AlreadySummed
from tests.support.one_member import HISTORY, OneMember, aggregate_of, terms_of
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import TRIAL, interactions, new_client, small_task

USERS, COMMITTEE = 4, 3


@dataclass
class Play:
    """A one-shot task whose committee serves and whose clients take part, each in a thread, until `stop` is set."""

    server: AggregatorProcess
    operator: Operator
    resources: ExitStack
    stop: threading.Event = field(default_factory=threading.Event)
    events: list[list[Event]] = field(default_factory=list)
    """What the members of the committee report, then what the clients do."""
    running: list[Future[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.task = small_task(
            self.operator, "movies", users=USERS, rounds=400, mechanism="oneshot", collect_seconds=6, stage_seconds=6,
            mechanism_parameters={"committee": COMMITTEE, "corrupt": 1}, max_failed_rounds=2,
        )  # fmt: skip
        invitation = self.operator.invite(self.task.task_id, COMMITTEE, "committee").invitation
        pool = self.resources.enter_context(ThreadPoolExecutor(COMMITTEE + USERS))
        self.resources.callback(self.stop.set)
        for place in range(COMMITTEE + USERS):
            client, told = self.resources.enter_context(new_client(self.server.url)), list[Event]()
            if place < COMMITTEE:
                member = client.join(invitation=invitation, certificate=TRIAL.source("committee"))
                play = partial(member.serve, told.append)
            else:
                play = partial(
                    self.task.join(client, seed=place).take_part, interactions(USERS)[place - COMMITTEE], told.append
                )
            self.events.append(told)
            self.running.append(pool.submit(play, self.stop.is_set, 1.0))

    def completed(self) -> int:
        return self.operator.task(self.task.task_id).completed_rounds

    def restore_a_backup(self, folder: Path) -> dict[int, int]:
        """Back the server up after a round and restore it after two more; return the sums of the lost rounds."""
        wait_until(lambda: self.completed() >= 1, "one round")
        self.server.stop()
        shutil.copytree(folder / "data", folder / "backup")
        self.server.start()
        before = self.completed()
        wait_until(lambda: self.completed() >= before + 2, "two more rounds")
        self.server.stop()
        with closing(sqlite3.connect(folder / "data" / "hushrec.db")) as database:
            lost = dict(database.execute("SELECT number, sum_index FROM rounds").fetchall())
        (folder / "data").rename(folder / "lost")
        (folder / "backup").rename(folder / "data")
        self.server.start()
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
        play = Play(server, operator, resources)
        members, clients = play.events[:COMMITTEE], play.events[COMMITTEE:]
        lost = play.restore_a_backup(tmp_path)

        def reports(told: list[Event]) -> int:
            after = since_restored(told) if any(isinstance(one, ServerRestored) for one in told) else []
            return sum(isinstance(one, RoundReport) for one in after)

        wait_until(lambda: min(map(reports, clients)) >= 2, "rounds of sums that nobody took part in", 120)
        play.stop.set()
        for one in play.running:
            one.result(timeout=60)
        task = operator.task(play.task.task_id)
        assert task.state == "open"
        assert task.abandoned_sums >= 2, "the sums of the lost rounds"
        released = {view.number: view.step for view in operator.rounds(play.task.task_id, state="complete")}
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
    assert sum("the server was restored from a backup" in text for text in warnings) == COMMITTEE + USERS


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
    assert contributor.known_round() == 1
    assert then in contributor.on_restored(0)
    member.released, member.last = {}, 0
    member.runner.run(contributor.on_round(RoundChanged(member.asked.model_copy(update={"in_cohort": True}), None)))
    (told,) = member.events
    if mechanism == "plain":
        assert isinstance(told, RoundReport) and len(member.requests("/contributions/")) == 1
        assert member.part.follower.known == 0, "it trained on the model that the server has"
    else:
        assert isinstance(told, RoundMissed) and "an encrypted task cannot go on" in told.reason
        assert member.stated() is None


def test_clients_of_a_masked_task_sign_no_set_for_a_lost_sum_again() -> None:
    member = OneMember(terms_of("masked"), None, {1: b""})
    member.store.keep_signed_sets("t_1", SignedSets(1, frozenset({bytes(16)})))
    assert "no part in sums that it took part" in _Contributor(member.part, HISTORY, None).on_restored(0)
    with pytest.raises(AlreadySummed):
        member.store.signed_sets("t_1").require_open(1)
