"""Writes that are committed in groups: durable before the answer, and one bad write harms no other."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from aggregator_service.migrations.migrate import migrate
from aggregator_service.storage.bodies import add_small_body, new_small_key
from aggregator_service.storage.database import Announcement, Database, Delivery, Effects, announce, discard, progress
from aggregator_service.storage.group_commit import GroupCommit
from aggregator_service.storage.schema import SmallBodyRow
from tests.support.replicas import TestDatabase
from tests.support.world import task_row

NAME: ContextVar[str] = ContextVar("name", default="nobody")
KEYS = [new_small_key("t_1") for _ in range(6)]


def stored(database: Database) -> set[str]:
    with database.read() as session:
        return set(session.scalars(select(SmallBodyRow.key)))


def adding(key: str, seen: list[set[str]], database: Database) -> Callable[[Session], set[str]]:
    """A write that adds a body, and returns what other connections see at that moment."""

    def work(session: Session) -> set[str]:
        add_small_body(session, key, b"body")
        seen.append(stored(database))
        return seen[-1]

    return work


def commits(database: Database) -> list[Effects]:
    counted: list[Effects] = []
    database.listeners.append(counted.append)
    return counted


def at_once(database: Database, *works: Callable[[Session], Any]) -> list[Any]:
    """What writes of one group returned or raised."""
    group = GroupCommit(database)

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(group.run(work) for work in works), return_exceptions=True)

    try:
        return asyncio.run(all_of_them())
    finally:
        group.close()


def test_writes_that_wait_share_a_transaction_and_are_durable_before_their_answer(database: Database) -> None:
    group, counted, seen = GroupCommit(database), commits(database), list[set[str]]()

    async def write(key: str) -> bool:
        await group.run(adding(key, seen, database))
        return key in stored(database)

    async def all_at_once() -> list[bool]:
        return await asyncio.gather(*(write(key) for key in KEYS))

    assert all(asyncio.run(all_at_once()))
    assert stored(database) == set(KEYS)
    assert len(counted) == 1  # all six waited when the thread began
    assert seen == [set()] * 6  # nobody saw a part of the group


def test_after_a_group_of_several_the_next_one_waits_for_more(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, counted, gathering = GroupCommit(database), commits(database), list[asyncio.Event]()

    async def gather(_group: GroupCommit) -> None:
        gathering.append(asyncio.Event())
        await gathering[-1].wait()

    monkeypatch.setattr(GroupCommit, "_gather", gather)

    def write(key: str) -> asyncio.Task[None]:
        return asyncio.create_task(group.run(lambda session: add_small_body(session, key, b"body")))

    async def scenario() -> None:
        await write(KEYS[0])  # after nothing, and after a write that was alone, a group begins at once
        await asyncio.gather(write(KEYS[1]), write(KEYS[2]))
        assert (len(counted), len(gathering)) == (2, 0)
        first = write(KEYS[3])
        async with asyncio.timeout(60):
            while not gathering:
                await asyncio.sleep(0)
        second = write(KEYS[4])
        await asyncio.sleep(0)
        assert len(counted) == 2
        gathering[0].set()
        await asyncio.gather(first, second)
        assert (len(counted), len(gathering)) == (3, 1)

    try:
        asyncio.run(scenario())
    finally:
        group.close()
    assert stored(database) == set(KEYS[:5])


def test_writes_of_a_group_announce_a_change_once(database: Database) -> None:
    with database.write() as session:
        session.add(task_row("t_1"))
    counted = commits(database)

    def announcing(name: str) -> Callable[[Session], int]:
        return lambda session: announce(session, "t_1", "members", name)

    versions = at_once(database, announcing("a"), announcing("b"))
    assert versions == [1, 1]
    assert [effects.announcements for effects in counted] == [[Announcement("t_1", ("members", "a", "b"), 1)]]


def test_a_write_that_raises_or_breaks_a_constraint_harms_no_other_and_has_no_effect(database: Database) -> None:
    """Neither its rows nor its announcements and deliveries: a waiting client would be told of what is not stored."""
    counted, seen = commits(database), list[set[str]]()

    def refused(session: Session) -> None:
        add_small_body(session, "rows/t_1-lost", b"body")
        progress(session, Delivery("t_1", 1, "contribute", "c_lost"))
        discard(session, "contributions/t_1/needed")
        raise LookupError("refused")

    def accepted(session: Session) -> None:
        progress(session, Delivery("t_1", 1, "contribute", "c_kept"))

    twice = [adding(key, seen, database) for key in (KEYS[0], KEYS[0])]
    answers = at_once(database, *twice, refused, accepted, adding(KEYS[1], seen, database))
    errors = [type(answer) if isinstance(answer, Exception) else None for answer in answers]
    assert errors == [None, IntegrityError, LookupError, None, None]
    assert stored(database) == {KEYS[0], KEYS[1]}
    (effects,) = counted
    assert ([one.client_id for one in effects.deliveries], list(effects.orphans)) == (["c_kept"], [])


def test_writes_of_a_group_see_the_rows_and_not_the_objects_of_others(sqlite: Database) -> None:
    def add(session: Session) -> None:
        session.add(SmallBodyRow(key="rows/a", body=b"first"))

    def change(session: Session) -> None:
        session.get_one(SmallBodyRow, "rows/a").body = b"second"

    def read(session: Session) -> bytes:
        assert not session.identity_map
        return session.get_one(SmallBodyRow, "rows/a").body

    assert at_once(sqlite, add, change, read)[2] == b"second"


def test_a_refusal_of_a_single_write_is_final_and_an_error_of_the_database_is_not(sqlite: Database) -> None:
    group, calls = GroupCommit(sqlite), list[str]()

    def refuse(_: Session) -> None:
        calls.append("refuse")
        raise LookupError("refused")

    def break_once(_: Session) -> str:
        calls.append("break")
        if calls.count("break") == 1:
            raise OperationalError("INSERT", None, ConnectionError("the connection broke"))
        return "stored"

    with pytest.raises(LookupError, match="refused"):
        asyncio.run(group.run(refuse))
    assert asyncio.run(group.run(break_once)) == "stored"
    assert calls == ["refuse", "break", "break"]


def test_a_database_that_does_not_begin_a_transaction_is_tried_once_for_all_that_wait(sqlite: Database) -> None:
    """Each attempt takes the whole time limit, and the writes of 64 requests wait for one thread."""
    attempts = list[str]()

    def watch(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA busy_timeout=1")
        connection.set_trace_callback(attempts.append)

    event.listen(sqlite.engine, "connect", watch)
    works = [partial(add_small_body, key=f"rows/{index}", body=b"body") for index in range(70)]
    with closing(sqlite3.connect(str(sqlite.engine.url.database))) as other:
        other.execute("BEGIN IMMEDIATE")
        answers = at_once(sqlite, *works)
    assert [type(answer) for answer in answers] == [OperationalError] * 70
    assert attempts == ["BEGIN IMMEDIATE"]
    assert at_once(sqlite, *works) == [None] * 70


def test_writes_after_one_that_the_database_does_not_answer_get_the_same_error(sqlite: Database) -> None:
    calls, gone = list[int](), OperationalError("INSERT", None, ConnectionError("the connection broke"))

    def write(session: Session, number: int) -> int:
        calls.append(number)
        add_small_body(session, KEYS[number], b"body")
        if number == 1:
            raise gone
        return number

    answers = at_once(sqlite, *[partial(write, number=number) for number in range(5)])
    assert answers == [0, gone, gone, gone, gone]
    assert calls == [0, 1, 0, 1]
    assert stored(sqlite) == {KEYS[0]}


def test_a_write_has_the_context_of_its_request(sqlite: Database) -> None:
    group, seen = GroupCommit(sqlite), list[str]()

    async def request(name: str) -> None:
        NAME.set(name)
        await group.run(lambda _: seen.append(NAME.get()))

    async def two() -> None:
        await asyncio.gather(request("first"), request("second"))

    asyncio.run(two())
    assert (seen, NAME.get()) == (["first", "second"], "nobody")


def test_nothing_is_tried_again_when_the_commit_itself_fails(sqlite: Database) -> None:
    """It may have taken effect: a second attempt would find its own row."""
    calls = list[str]()

    def lose_the_answer(_: Session) -> None:
        calls.append("commit")
        raise OperationalError("COMMIT", None, ConnectionError("the connection broke"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "_notify_all", lambda session, _: lose_the_answer(session))
        answers = at_once(sqlite, *[lambda _: calls.append("work")] * 3)
    assert all(isinstance(answer, OperationalError) for answer in answers)
    assert calls == ["work"] * 3 + ["commit"]


def test_a_request_that_is_cancelled_does_not_stop_the_others(sqlite: Database) -> None:
    group, seen, started, go_on = GroupCommit(sqlite), list[set[str]](), threading.Event(), threading.Event()

    def slow(_: Session) -> None:
        started.set()
        assert go_on.wait(30)

    async def cancel_one() -> None:
        first = asyncio.create_task(group.run(slow))
        while not started.is_set():
            await asyncio.sleep(0.001)
        cancelled = asyncio.create_task(group.run(adding(KEYS[0], seen, sqlite)))
        other = asyncio.create_task(group.run(adding(KEYS[1], seen, sqlite)))
        await asyncio.sleep(0)
        cancelled.cancel()
        go_on.set()
        await asyncio.gather(first, other)
        assert cancelled.cancelled() or cancelled.cancelling()

    asyncio.run(cancel_one())
    assert KEYS[1] in stored(sqlite)


def test_writes_over_an_ended_connection_are_made(postgres: TestDatabase, caplog: pytest.LogCaptureFixture) -> None:
    database = Database(str(postgres.schema()), connections=3)
    migrate(database)
    group = GroupCommit(database)

    async def two_groups() -> None:
        for name in "ab":
            writes = [partial(add_small_body, key=f"rows/{name}{index}", body=b"body") for index in range(3)]
            await asyncio.gather(*(group.run(write) for write in writes))
            postgres.cut_off()

    asyncio.run(two_groups())
    assert stored(database) == {"rows/a0", "rows/a1", "rows/a2", "rows/b0", "rows/b1", "rows/b2"}
    group.close()
    database.close()
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
