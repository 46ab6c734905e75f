"""The task cache: polls are answered without the database, and never with something out of date."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import event
from sqlalchemy.orm import Session

import aggregator_service.polling.cache as task_cache_module
from aggregator_service.access.principals import Enrolled
from aggregator_service.clock import SystemClock
from aggregator_service.polling.cache import TaskCache
from aggregator_service.polling.notifier import Notifier
from aggregator_service.problems import Problem
from aggregator_service.rounds.interventions import close_task
from aggregator_service.storage.database import Database, Delivery, announce, progress, void_token
from aggregator_service.storage.schema import CohortRow, ContributionRow, RoundRow, TaskRow
from aggregator_service.tasks.membership import revoke_member
from protocols.crypto.sealing import SealingKey
from tests.support.api import Api, TestMember, contribute, services
from tests.support.clock import ManualClock
from tests.support.replicas import wait_until
from tests.support.world import an_operator, client_row, round_row, task_row


def poll(member: TestMember, query: str = "", **headers: str) -> httpx.Response:
    path = f"{member.task.path}/rounds/current{query}"
    return member.task.api.http.get(path, headers={**member.auth, **headers})


def other_process(api: Api, work: Callable[[Session], None]) -> None:
    """Do what the command line does: use a connection of its own, of which the server knows nothing."""
    with closing(Database(api.database_url, connections=1)) as database, database.write() as session:
        work(session)


def started(api: Api, cohort: int = 4) -> list[TestMember]:
    members = api.create_task(cohort=cohort).enrol(cohort)
    members[0].task.wait_round(1, "collecting")
    return members


def check_same_answer(member: TestMember) -> None:
    """A poll, from the cache, says what the round is in the database."""
    answer = poll(member)
    assert poll(member, **{"If-None-Match": f'"other", {answer.headers["etag"]}'}).status_code == 304
    seen, stored = answer.json(), member.view(1)
    seen.pop("seconds_left"), stored.pop("seconds_left")
    assert seen == stored


def answered_from_cache(member: TestMember) -> bool:
    """Whether a poll queries neither clients nor cohorts. The engine and the notifier query other tables meanwhile."""
    queries: list[str] = []

    def record(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        queries.append(statement)

    engine = services(member.task.api).database.engine
    event.listen(engine, "before_cursor_execute", record)
    assert poll(member).status_code == 200
    event.remove(engine, "before_cursor_execute", record)
    return not any("FROM clients" in query or "FROM cohorts" in query for query in queries)


def test_a_poll_from_the_cache_queries_nothing_and_answers_the_same(inside: Api) -> None:
    first, second, *_ = members = started(inside)
    check_same_answer(first)
    wait_until(lambda: answered_from_cache(first), "the cache follows")  # a query may be needed after a slow poll
    assert first.put(1, first.contribution(1, 0.5)).status_code == 201
    for member in (first, second):
        check_same_answer(member)
    assert poll(first).json()["contributed"] is True
    contribute(members[1:], 1, 0.5)
    first.task.wait_round(1, "complete")
    wait_until(lambda: poll(first).json()["state"] == "complete", "the cache follows")
    check_same_answer(first)


def test_a_delivery_is_seen_at_once_and_answers_no_poll(inside: Api) -> None:
    """The client that sent it knows: its next poll waits for what comes after it."""
    first, second, *_ = started(inside)
    before = [poll(member).headers["etag"] for member in (first, second)]
    assert first.put(1, first.contribution(1, 0.5)).status_code == 201
    assert [poll(member).json()["contributed"] for member in (first, second)] == [True, False]
    assert [poll(member).headers["etag"] for member in (first, second)] == before
    assert poll(first, **{"If-None-Match": before[0]}).status_code == 304


def test_a_replaced_token_is_void_at_once(inside: Api) -> None:
    task, keys = inside.create_task(), (Ed25519PrivateKey.generate(), SealingKey.generate())
    invitation = inside.invite(task.id, uses=9)
    found = []
    for renewal in range(2):
        known = inside.enrol(invitation, *keys, renewal=renewal).json()
        found.append(TestMember(task, known["client_id"], known["token"]))
        assert found[-1].get("").status_code == 200
    assert found[0].get("").status_code == 401


def test_what_another_process_revokes_or_closes_is_seen_after_the_next_check(inside: Api) -> None:
    first, second, *_ = started(inside)
    assert poll(first).status_code == poll(second).status_code == 200

    def revoke(session: Session) -> None:
        revoke_member(session, first.task.id, first.client_id, an_operator())

    def close(session: Session) -> None:
        close_task(session, session.get_one(TaskRow, first.task.id), an_operator())

    other_process(inside, revoke)
    wait_until(lambda: poll(first).status_code == 401, "the cache follows")
    assert poll(second).json()["state"] == "collecting"
    other_process(inside, close)
    wait_until(lambda: poll(second).json()["state"] == "failed", "the cache follows")
    assert second.put(1, second.contribution(1, 0.5)).json()["type"].endswith("round-closed")


@pytest.fixture
def database(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    with sqlite.write() as session:
        session.add(task_row("t_1", schedule={"rounds": 1, "cohort_size": 2, "min_clients": 2},
                             recipe_parameters={"items": 5, "dim": 3, "clip": 1.0}))  # fmt: skip
        session.flush()
        session.add_all([client_row("c_1"), client_row("c_2"), round_row(id=1)])
        session.flush()
        session.add_all([CohortRow(round_id=1, client_id="c_1"), CohortRow(round_id=1, client_id="c_2")])
    monkeypatch.setattr(task_cache_module, "_MAX_ROUND_AGE", 300.0)  # nothing expires on a busy machine
    return sqlite


def cache_of(database: Database, monotonic: Callable[[], float] = time.monotonic) -> TaskCache:
    task_cache = TaskCache(database, SystemClock(), recheck=300.0, monotonic=monotonic)
    database.listeners.append(task_cache.committed_here)
    return task_cache


CLIENT = Enrolled("c_1", "t_1", "member")


def test_a_client_whose_token_is_voided_during_the_query_is_not_cached(database: Database) -> None:
    async def scenario() -> tuple[object, object]:
        task_cache = cache_of(database)
        mark = task_cache.read_start()
        with database.write() as session:
            void_token(session, "hash")
        task_cache.remember(mark, "hash", CLIENT, 0)
        late = task_cache.client("hash")
        task_cache.remember(task_cache.read_start(), "hash", CLIENT, 0)
        return late, task_cache.client("hash")

    assert asyncio.run(scenario()) == (None, CLIENT)


def test_a_token_that_another_thread_voids_during_the_look_is_not_found(database: Database) -> None:
    task_cache = cache_of(database)

    class VoidedMeanwhile(str):
        """A token's hash that is voided when the cache has looked for it once."""

        looks = 0

        def __hash__(self) -> int:
            self.looks += 1
            if self.looks == 2:
                with database.write() as session:
                    void_token(session, "hash")
            return super().__hash__()

    task_cache.remember(task_cache.read_start(), "hash", CLIENT, 0)
    assert task_cache.client(VoidedMeanwhile("hash")) in (CLIENT, None)


def test_a_page_of_rounds_takes_as_many_queries_as_one_round(inside: Api) -> None:
    task = inside.create_task(cohort=2, rounds=4)
    members = task.begin(2)
    for number in (1, 2, 3):
        task.wait_round(number, "collecting")
        contribute(members, number)
        task.wait_round(number, "complete")
    queries: list[str] = []

    def record(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "contributions" in statement and "count" in statement:
            queries.append(statement)

    engine, counts = services(inside).database.engine, list[int]()
    task.wait_round(4, "collecting")
    event.listen(engine, "before_cursor_execute", record)
    for limit in (1, 3):
        queries.clear()
        page = inside.found(f"{task.path}/rounds", limit=limit)
        counts.append(len([one for one in queries if "GROUP BY contributions.round_id" in one]))
        assert [round_["received"] for round_ in page["rounds"]] == [2] * limit
    event.remove(engine, "before_cursor_execute", record)
    assert counts == [1, 1]


def test_a_client_waits_in_eight_polls_at_most_and_others_are_not_kept_from_waiting(database: Database) -> None:
    async def nothing() -> None:
        return None

    async def scenario() -> None:
        notifier = Notifier(database, cache_of(database), recheck=300.0)

        def poll_of(client: str | None, wait: float) -> Coroutine[Any, Any, None]:
            return notifier.follow("t_1", "round", wait, nothing, asked_by=client, scope={})

        waiting = [asyncio.create_task(poll_of("c_1", 300.0)) for _ in range(8)]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="too-many-requests"):
            await poll_of("c_1", 300.0)
        for client, wait in (("c_1", 0.0), ("c_2", 0.01), (None, 0.01)):  # what does not wait; others; operators
            assert await poll_of(client, wait) is None
        notifier.close()
        assert await asyncio.gather(*waiting) == [None] * 8
        assert await poll_of("c_1", 0.01) is None

    asyncio.run(scenario())


def test_the_cache_expires_when_versions_are_not_confirmed(database: Database) -> None:
    clock = ManualClock(100.0)

    async def scenario() -> list[bool]:
        task_cache = cache_of(database, clock.now)
        task_cache.remember(task_cache.read_start(), "hash", CLIENT, 0)
        await task_cache.current_round("t_1")
        found = [task_cache.client("hash") is not None, task_cache.cached_round("t_1") is not None]
        clock.advance(3600.0)
        return [*found, task_cache.client("hash") is not None, task_cache.cached_round("t_1") is not None]

    assert asyncio.run(scenario()) == [True, True, False, False]


Meanwhile = Callable[[Callable[[Session], None]], None]


@pytest.fixture
def meanwhile(database: Database, monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Lets each query of a round see it before a commit, and return after it."""
    read = TaskCache._read

    def set_up(commit: Callable[[Session], None]) -> None:
        def read_then_commit(*of: Any) -> object:
            found = read(*of)
            with database.write() as session:
                commit(session)
            return found

        monkeypatch.setattr(TaskCache, "_read", read_then_commit)

    return set_up


def test_a_round_that_changes_while_it_is_read_is_not_cached(database: Database, meanwhile: Meanwhile) -> None:
    def fold(session: Session) -> None:
        session.get_one(RoundRow, 1).state = "folding"
        announce(session, "t_1", "round")

    async def scenario() -> tuple[object, str]:
        task_cache = cache_of(database)
        await task_cache.current_round("t_1")
        kept = task_cache.cached_round("t_1")
        meanwhile(lambda _: None)
        cached_round = await task_cache.current_round("t_1")
        return kept, cached_round.view(cached_round.status("c_1"), 0.0).state

    meanwhile(fold)
    assert asyncio.run(scenario()) == (None, "folding")


def test_a_delivery_during_the_query_is_added_to_the_round(database: Database, meanwhile: Meanwhile) -> None:
    async def scenario() -> list[bool]:
        task_cache = cache_of(database)
        cached_round = await task_cache.current_round("t_1")
        assert task_cache.cached_round("t_1") is cached_round
        return [cached_round.status(client).contributed for client in ("c_1", "c_2")]

    meanwhile(lambda session: progress(session, Delivery("t_1", 1, "contribute", "c_1")))
    assert asyncio.run(scenario()) == [True, False]


def test_ids_are_read_again_of_the_parts_that_more_clients_did(database: Database) -> None:
    """What other processes stored since the round was read is found when it is read again."""
    clock, queries = ManualClock(100.0), list[str]()

    async def scenario() -> list[bool]:
        task_cache = cache_of(database, clock.now)
        await task_cache.current_round("t_1")
        with closing(Database(str(database.engine.url), connections=1)) as other, other.write() as session:
            session.add(ContributionRow(round_id=1, client_id="c_2", digest="", bytes=1, stored_at=0.0))
        clock.advance(task_cache_module._MAX_ROUND_AGE + 1.0)
        event.listen(database.engine, "before_cursor_execute", lambda _c, _cursor, text, *_: queries.append(text))
        cached_round = await task_cache.current_round("t_1")
        return [cached_round.status(client).contributed for client in ("c_1", "c_2")]

    assert asyncio.run(scenario()) == [False, True]
    ids = [text for text in queries if text.startswith("SELECT") and "client_id" in text.partition("FROM")[0]]
    assert len([text for text in ids if "FROM contributions" in text and "count" not in text]) == 1
    assert not [text for text in ids if "FROM cohorts" in text and "count" not in text]


def test_simultaneous_requests_share_one_query(database: Database, meanwhile: Meanwhile) -> None:
    async def scenario() -> None:
        task_cache = cache_of(database)
        await asyncio.gather(*(task_cache.current_round("t_1") for _ in range(50)))

    reads = list[int]()
    meanwhile(lambda _: reads.append(1))
    asyncio.run(scenario())
    assert reads == [1]
