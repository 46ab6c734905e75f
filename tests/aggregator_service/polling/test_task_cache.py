"""Clients and rounds that are remembered: nothing out of date is ever told, whoever changed it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from sqlalchemy import event

import aggregator_service.polling.task_cache as task_cache_module
from aggregator_service.access.principals import Enrolled
from aggregator_service.clock import SystemClock
from aggregator_service.migrations.migrate import migrate
from aggregator_service.polling.task_cache import TaskCache
from aggregator_service.rounds.transactions import close_task
from aggregator_service.storage.database import Database, Delivery, announce, progress, void_token
from aggregator_service.storage.schema import CohortRow, RoundRow, TaskRow
from aggregator_service.tasks.members import revoke_member
from tests.support.api import Api, TestMember, signed_enrolment
from tests.support.inside import aggregator_inside, services
from tests.support.rows import client_row, round_row, task_row
from tests.support.signing import UNSIGNED, know

ROUTED = "?wait=0e0"
"""No wait, written in a way that only the route understands."""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with aggregator_inside(tmp_path / "data") as inside:
        yield inside


def poll(member: TestMember, query: str = "", **headers: str) -> httpx.Response:
    path = f"{member.task.path}/rounds/current{query}"
    return member.task.api.http.get(path, headers={**member.auth, **headers})


@contextmanager
def statements(api: Api) -> Iterator[list[str]]:
    """What the database is asked meanwhile, but for the looks of the engine and the notifier."""
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "FROM clients" in statement or "FROM cohorts" in statement:
            asked.append(statement)

    engine = services(api).database.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(engine, "before_cursor_execute", note)


def other_process(api: Api, work: Callable[[Database], None]) -> None:
    """What a command line does: it has a database of its own, and the server hears nothing of it."""
    database = Database(services(api).settings.database, connections=1)
    try:
        work(database)
    finally:
        database.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.02)


def started(api: Api, cohort: int = 4) -> list[TestMember]:
    members = api.create_task(cohort=cohort).enrol(cohort)
    members[0].task.wait_round(1, "collecting")
    return members


def same_answer(member: TestMember) -> None:
    quick, routed = poll(member), poll(member, ROUTED)
    assert quick.status_code == routed.status_code == 200
    seen, expected = quick.json(), routed.json()
    seen.pop("seconds_left"), expected.pop("seconds_left")
    assert seen == expected
    assert _lasting(quick.headers) == _lasting(routed.headers)
    known = {"If-None-Match": quick.headers["etag"]}
    quick, routed = poll(member, **known), poll(member, ROUTED, **known)
    assert quick.status_code == routed.status_code == 304
    assert _lasting(quick.headers) == _lasting(routed.headers)
    shown = member.task.api.http.get(f"{member.task.path}/rounds/1", headers=member.auth).json()
    shown.pop("seconds_left")
    assert seen == shown, "memory and database tell different things"


def _lasting(headers: httpx.Headers) -> dict[str, str]:
    """All but what differs from one answer to the next; the seconds that are left have more or fewer digits."""
    return {name: value for name, value in headers.items() if name not in ("x-request-id", "content-length")}


def asks_nothing(member: TestMember) -> bool:
    with statements(member.task.api) as asked:
        assert poll(member).status_code == 200
    return not asked


def test_a_poll_that_memory_answers_asks_nothing_and_says_the_same(api: Api) -> None:
    first, second, *_ = members = started(api)
    same_answer(first)
    until(lambda: asks_nothing(first))  # unless it takes seconds, for which nothing is remembered
    assert first.put(1, first.contribution(1, 0.5)).status_code == 201
    for member in (first, second):
        same_answer(member)
    assert poll(first).json()["contributed"] is True
    for member in members[1:]:
        assert member.put(1, member.contribution(1, 0.5)).status_code == 201
    first.task.wait_round(1, "complete")
    until(lambda: poll(first).json()["state"] == "complete")
    same_answer(first)


def test_polls_are_counted_all_of_them_and_logged_where_something_has_changed(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    member = started(api)[0]
    until(lambda: asks_nothing(member))
    etag = poll(member).headers["etag"]
    logger = "aggregator_service.observability.requests"
    for level, expected in (("INFO", [200]), ("DEBUG", [200, 304])):
        caplog.clear()
        with caplog.at_level(level, logger):
            figures = [_polls_counted(api, status) for status in (200, 304)]
            assert poll(member, **{"X-Request-Id": "poll-1"}).headers["x-request-id"] == "poll-1"
            assert poll(member, **{"If-None-Match": etag}).status_code == 304
            assert [_polls_counted(api, status) for status in (200, 304)] == [figures[0] + 1, figures[1] + 1]
        told = [vars(record)["hushrec_fields"] for record in caplog.records if record.name == logger]
        assert [one["status"] for one in told if one["route"].endswith("/current")] == expected


def _polls_counted(api: Api, status: int) -> float:
    name = f'hushrec_requests_total{{method="GET",route="/v1/tasks/{{task}}/rounds/current",status="{status}"}} '
    text = api.http.get("/metrics", headers=api.operator).text
    return float(next((line.removeprefix(name) for line in text.splitlines() if line.startswith(name)), 0))


def test_a_delivery_changes_what_its_client_polls_at_once(api: Api) -> None:
    first, second, *_ = started(api)
    before = [poll(member).headers["etag"] for member in (first, second)]
    assert first.put(1, first.contribution(1, 0.5)).status_code == 201
    after = [poll(member).headers["etag"] for member in (first, second)]
    assert after[0] != before[0]
    assert after[1] == before[1], "what others deliver wakes nobody"


def test_memory_is_for_signed_requests_within_their_task(api: Api) -> None:
    first, second, *_ = started(api)
    assert poll(first).status_code == 200
    assert poll(first, **UNSIGNED).status_code == 401
    stranger = TestMember(first.task, second.client_id, second.token)
    know(first.token, first.client_id, Ed25519PrivateKey.generate())
    assert poll(first).json()["type"].endswith("bad-signature")
    assert poll(stranger).status_code == 200
    other = api.create_task("other").enrol(1)[0]
    away = api.http.get(f"{first.task.path}/rounds/current", headers=other.auth)
    assert away.status_code == 404


def test_a_membership_that_is_revoked_is_void_at_once(api: Api) -> None:
    first, second, *_ = started(api)
    assert poll(first).status_code == poll(second).status_code == 200
    answer = api.http.delete(f"{first.task.path}/members/{first.client_id}", headers=api.operator)
    assert answer.status_code == 200
    assert (poll(first).status_code, poll(second).status_code) == (401, 200)


def test_a_token_that_was_replaced_is_void_at_once(api: Api) -> None:
    task = api.create_task()
    identity, mailbox = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    body = signed_enrolment(api.invite(task.id, uses=9), identity, mailbox)
    tokens = [api.http.post("/v1/enrolments", json=body).json() for _ in range(1)]
    old = TestMember(task, tokens[0]["client_id"], tokens[0]["token"])
    assert api.http.get(task.path, headers=old.auth).status_code == 200
    new = api.http.post("/v1/enrolments", json=body).json()
    assert api.http.get(task.path, headers=old.auth).status_code == 401
    assert api.http.get(task.path, headers=TestMember(task, old.client_id, new["token"]).auth).status_code == 200


def test_what_another_process_revokes_is_void_within_a_look(api: Api) -> None:
    first, second, *_ = started(api)
    assert poll(first).status_code == poll(second).status_code == 200

    def revoke(database: Database) -> None:
        with database.write() as session:
            revoke_member(session, first.task.id, first.client_id, 0.0)

    other_process(api, revoke)
    until(lambda: poll(first).status_code == 401)
    assert poll(second).status_code == 200


def test_what_another_process_ends_is_seen_within_a_look(api: Api) -> None:
    first, *_ = started(api)
    assert poll(first).json()["state"] == "collecting"

    def close(database: Database) -> None:
        with database.write() as session:
            close_task(session, session.get_one(TaskRow, first.task.id), 0.0)

    other_process(api, close)
    until(lambda: poll(first).json()["state"] == "failed")
    assert first.put(1, first.contribution(1, 0.5)).json()["type"].endswith("round-closed")


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'test.db'}", connections=4)
    migrate(database)
    with database.write() as session:
        session.add(task_row("t_1", schedule={"rounds": 1, "cohort_size": 2, "min_clients": 2},
                             recipe_parameters={"items": 5, "dim": 3, "clip": 1.0}))  # fmt: skip
        session.flush()
        session.add_all([client_row("c_1"), client_row("c_2"), round_row(id=1)])
        session.flush()
        session.add_all([CohortRow(round_id=1, client_id="c_1"), CohortRow(round_id=1, client_id="c_2")])
    monkeypatch.setattr(task_cache_module, "_OLDEST", 300.0)  # a busy machine makes nothing old here
    yield database
    database.close()


def remembering(database: Database) -> TaskCache:
    task_cache = TaskCache(database, SystemClock(), recheck=300.0)
    database.listeners.append(task_cache.committed)
    return task_cache


CLIENT = Enrolled("c_1", "t_1", "member")


def test_who_was_voided_while_being_looked_up_is_not_remembered(database: Database) -> None:
    async def scenario() -> tuple[object, object]:
        task_cache = remembering(database)
        mark = task_cache.mark()
        with database.write() as session:
            void_token(session, "hash")
        task_cache.remember(mark, "hash", CLIENT, 0)
        late = task_cache.client("hash")
        task_cache.remember(task_cache.mark(), "hash", CLIENT, 0)
        return late, task_cache.client("hash")

    assert asyncio.run(scenario()) == (None, CLIENT)


def test_nothing_is_remembered_once_looks_fail(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> list[bool]:
        task_cache = remembering(database)
        task_cache.remember(task_cache.mark(), "hash", CLIENT, 0)
        await task_cache.look("t_1")
        found = [task_cache.client("hash") is not None, task_cache.cached_round("t_1") is not None]
        later = asyncio.get_running_loop().time() + 3600.0
        monkeypatch.setattr(task_cache_module, "_now", lambda: later)
        return [*found, task_cache.client("hash") is not None, task_cache.cached_round("t_1") is not None]

    assert asyncio.run(scenario()) == [True, True, False, False]


def test_a_board_that_is_read_while_the_round_moves_is_not_kept(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has seen the round as it was; the commit comes before the reader is back."""
    read = TaskCache._read

    def slowly(task_cache: TaskCache, task_id: str) -> object:
        found = read(task_cache, task_id)
        with database.write() as session:
            session.get_one(RoundRow, 1).state = "folding"
            announce(session, "t_1", "round")
        return found

    async def scenario() -> tuple[object, str]:
        task_cache = remembering(database)
        monkeypatch.setattr(TaskCache, "_read", slowly)
        await task_cache.look("t_1")
        monkeypatch.setattr(TaskCache, "_read", read)
        kept = task_cache.cached_round("t_1")
        cached_round = await task_cache.look("t_1")
        assert cached_round is not None
        return kept, cached_round.view(cached_round.status("c_1"), 0.0).state

    assert asyncio.run(scenario()) == (None, "folding")


def test_a_delivery_that_comes_while_a_board_is_read_is_on_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = TaskCache._read

    def slowly(task_cache: TaskCache, task_id: str) -> object:
        found = read(task_cache, task_id)
        with database.write() as session:
            progress(session, Delivery("t_1", 1, "contribute", "c_1"))
        return found

    async def scenario() -> list[bool]:
        task_cache = remembering(database)
        monkeypatch.setattr(TaskCache, "_read", slowly)
        cached_round = await task_cache.look("t_1")
        assert cached_round is not None
        assert task_cache.cached_round("t_1") is cached_round
        return [cached_round.status(client).contributed for client in ("c_1", "c_2")]

    assert asyncio.run(scenario()) == [True, False]


def test_those_who_ask_together_read_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reads = TaskCache._read, [0]

    def counted(task_cache: TaskCache, task_id: str) -> object:
        reads[0] += 1
        return read(task_cache, task_id)

    async def scenario() -> None:
        task_cache = remembering(database)
        monkeypatch.setattr(TaskCache, "_read", counted)
        await asyncio.gather(*(task_cache.look("t_1") for _ in range(50)))

    asyncio.run(scenario())
    assert reads == [1]
