"""Writes that are committed in groups: durable before the answer, and one bad write harms no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import ClassVar, Self

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from aggregator_service.migrations.migrate import migrate
from aggregator_service.storage import group_commit
from aggregator_service.storage.database import Database, Effects
from aggregator_service.storage.group_commit import GroupCommit, JointWork
from aggregator_service.storage.schema import SmallBodyRow
from aggregator_service.storage.small_bodies import add_small_bodies, add_small_body, new_small_key

NAME: ContextVar[str] = ContextVar("name", default="nobody")
KEYS = [new_small_key("t_1") for _ in range(6)]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path / 'group.db'}", connections=4)
    migrate(made)
    yield made
    made.close()


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


def test_a_write_that_raises_is_rolled_back_alone(database: Database) -> None:
    group, seen = GroupCommit(database), list[set[str]]()

    def fail(session: Session) -> set[str]:
        add_small_body(session, "rows/t_1-lost", b"body")
        raise LookupError("refused")

    async def all_at_once() -> list[set[str] | BaseException]:
        works = [adding(KEYS[0], seen, database), fail, adding(KEYS[1], seen, database)]
        return await asyncio.gather(*(group.run(work) for work in works), return_exceptions=True)

    answers = asyncio.run(all_at_once())
    assert [isinstance(answer, LookupError) for answer in answers] == [False, True, False]
    assert stored(database) == {KEYS[0], KEYS[1]}


class Adding(JointWork[str]):
    """Adds a body under a key; together only keys without "odd" in them. calls: what was executed."""

    calls: ClassVar[list[list[str]]] = []

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, session: Session) -> str:
        Adding.calls.append([self.key])
        add_small_body(session, self.key, b"body")
        return self.key

    @classmethod
    def together(cls, session: Session, works: Sequence[Self]) -> list[str]:
        keys = [work.key for work in works]
        cls.calls.append(keys)
        add_small_bodies(session, dict.fromkeys(keys, b"body"))
        if any("odd" in key for key in keys):
            raise LookupError("not together")
        return keys


@pytest.mark.parametrize("keys", [["rows/1"], ["rows/1", "rows/2", "rows/3"], ["rows/1", "rows/odd", "rows/3"]])
def test_writes_of_one_kind_are_executed_together_where_possible(database: Database, keys: list[str]) -> None:
    group, counted, seen = GroupCommit(database), commits(database), list[set[str]]()
    Adding.calls.clear()

    async def all_at_once() -> list[object]:
        return await asyncio.gather(
            *(group.run(Adding(key)) for key in keys[:2]),
            group.run(adding(KEYS[0], seen, database)),
            *(group.run(Adding(key)) for key in keys[2:]),
        )

    answers = asyncio.run(all_at_once())
    assert [answer for answer in answers if isinstance(answer, str)] == keys
    assert stored(database) == {*keys, KEYS[0]}
    alone = [[key] for key in keys]
    assert Adding.calls == ([keys, *alone] if "rows/odd" in keys else [keys])
    assert len(counted) == (len(keys) + 1 if "rows/odd" in keys else 1)


def test_a_write_without_others_is_executed_alone(database: Database) -> None:
    group = GroupCommit(database)
    Adding.calls.clear()

    async def one() -> str:
        return await group.run(Adding("rows/odd"))

    assert asyncio.run(one()) == "rows/odd"
    assert stored(database) == {"rows/odd"}


def test_a_refusal_of_a_single_write_is_final_and_an_error_of_the_database_is_not(database: Database) -> None:
    group, calls = GroupCommit(database), list[str]()

    def refuse(_: Session) -> None:
        calls.append("refuse")
        raise LookupError("refused")

    def break_once(_: Session) -> str:
        calls.append("break")
        if calls.count("break") == 1:
            raise OperationalError("INSERT", None, ConnectionError("the connection broke"))
        return "stored"

    async def one_after_the_other() -> str:
        with pytest.raises(LookupError, match="refused"):
            await group.run(refuse)
        return await group.run(break_once)

    assert asyncio.run(one_after_the_other()) == "stored"
    assert calls == ["refuse", "break", "break"]


def test_a_write_has_the_context_of_its_request(database: Database) -> None:
    group, seen = GroupCommit(database), list[str]()

    async def request(name: str) -> None:
        NAME.set(name)
        await group.run(lambda _: seen.append(NAME.get()))

    async def two() -> None:
        await asyncio.gather(request("first"), request("second"))
        await request("third")

    asyncio.run(two())
    assert (seen, NAME.get()) == (["first", "second", "third"], "nobody")


def test_nothing_is_tried_again_when_the_commit_itself_fails(database: Database) -> None:
    """It may have taken effect: a second attempt would find its own row."""
    group, calls = GroupCommit(database), list[str]()

    def lose_the_answer(_: Session) -> None:
        calls.append("commit")
        raise OperationalError("COMMIT", None, ConnectionError("the connection broke"))

    async def all_at_once() -> list[None | BaseException]:
        def work(_: Session) -> None:
            calls.append("work")

        return await asyncio.gather(*(group.run(work) for _ in range(3)), return_exceptions=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_notify_all", lambda session, _: lose_the_answer(session))
        answers = asyncio.run(all_at_once())
    assert all(isinstance(answer, OperationalError) for answer in answers)
    assert calls == ["work"] * 3 + ["commit"]


def test_a_request_that_is_cancelled_does_not_stop_the_others(database: Database) -> None:
    group, seen, started, go_on = GroupCommit(database), list[set[str]](), threading.Event(), threading.Event()

    def slow(_: Session) -> None:
        started.set()
        assert go_on.wait(30)

    async def cancel_one() -> None:
        first = asyncio.create_task(group.run(slow))
        while not started.is_set():
            await asyncio.sleep(0.001)
        cancelled = asyncio.create_task(group.run(adding(KEYS[0], seen, database)))
        other = asyncio.create_task(group.run(adding(KEYS[1], seen, database)))
        await asyncio.sleep(0)
        cancelled.cancel()
        go_on.set()
        await asyncio.gather(first, other)
        assert cancelled.cancelled() or cancelled.cancelling()

    asyncio.run(cancel_one())
    assert KEYS[1] in stored(database)


def test_clients_that_answer_at_the_same_time_stay_in_one_group(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a commit of four, the next group waits until the four have sent their next writes."""
    monkeypatch.setattr(group_commit, "_GATHER_SECONDS", 60.0)
    group, counted, seen = GroupCommit(database), commits(database), list[set[str]]()
    rounds = [[f"rows/t_1-{turn}-{index}" for index in range(4)] for turn in range(5)]

    async def client(index: int) -> None:
        for keys in rounds:
            await group.run(adding(keys[index], seen, database))
            for _ in range(index):  # the clients need different times for their next request
                await asyncio.sleep(0)

    async def all_clients() -> None:
        await asyncio.gather(*(client(index) for index in range(4)))

    asyncio.run(all_clients())
    assert stored(database) == {key for keys in rounds for key in keys}
    assert len(counted) == len(rounds)


def test_writes_one_after_the_other_wait_for_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "_GATHER_SECONDS", 3600.0)
    group, seen = GroupCommit(database), list[set[str]]()

    async def one_after_the_other() -> None:
        for key in KEYS:
            await group.run(adding(key, seen, database))

    asyncio.run(asyncio.wait_for(one_after_the_other(), 60))
    assert stored(database) == set(KEYS)
