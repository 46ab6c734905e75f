"""Uploads that are interrupted by the end of the round, another upload of the same client, or a lost commit."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from aggregator_service.access.principals import Enrolled
from aggregator_service.commits import CommitListeners
from aggregator_service.polling.cache import TaskCache
from aggregator_service.polling.notifier import Notifier
from aggregator_service.rounds.leadership import Leadership
from aggregator_service.storage.database import Database, Effects, announce, discard
from aggregator_service.storage.schema import ChunkRow, TaskRow
from aggregator_service.tasks.creation import add_task
from aggregator_service.tasks.task_views import plan_request
from aggregator_service.uploads.checks import admit
from aggregator_service.uploads.chunks import MOST_CHUNKS, Chunk, store_chunk
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import SyncDriver
from protocols.catalogue import Catalogue
from protocols.messages import TaskRequest
from tests.support.api import Api, TestMember, TestTask, digest_field, piece_fields, refusal
from tests.support.server import AggregatorProcess
from tests.support.signing import enrolled_as, raw_head
from tests.support.world import World, an_operator, request_json

SERVER = {"body_idle_seconds": 5.0}
MISMATCH = "https://iana.org/assignments/http-problem-types#mismatching-upload-offset"


def begun(api: Api, name: str, **how: Any) -> tuple[TestTask, TestMember, TestMember, bytes]:
    """A round of two clients, and the contribution of the first one."""
    task, (first, second) = api.begin(2, name, **how)
    return task, first, second, first.contribution(1, 101.0)


@contextmanager
def half_sent(
    server: AggregatorProcess, member: TestMember, method: str, body: bytes, headers: dict[str, str]
) -> Iterator[socket.socket]:
    """A connection whose request is admitted and has sent the first half of its body."""
    lines = [f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(raw_head(server.url, method, member.path(1), member.token, *lines, "Expect: 100-continue"))
        assert connection.recv(25, socket.MSG_WAITALL) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body[: len(body) // 2])
        yield connection


def bodies(server: AggregatorProcess) -> list[Path]:
    return list((server.data_dir / "uploads").iterdir())


def chunks(server: AggregatorProcess, task: TestTask) -> list[str]:
    return [key for key in server.blobs.keys() if key.startswith(f"chunks/{task.id}-")]  # noqa: SIM118 - a store


def answer_of(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    body = response.read()
    return response.status, json.loads(body) if body else {}


@pytest.mark.parametrize(
    ("last", "wrong", "slug"),
    [(False, False, "round-closed"), (True, False, "round-closed"), (False, True, "bad-digest")],
)
def test_a_round_ends_during_a_chunk(server: AggregatorProcess, api: Api, last: bool, wrong: bool, slug: str) -> None:
    task, member, _, body = begun(api, f"ends-{last}-{wrong}".lower())
    assert member.piece(0, body[:20]).status_code == 204
    rest = body[20:] if last else body[20:40]
    headers = piece_fields(20, rest, body if last else None)
    if wrong:
        headers["Content-Digest"] = digest_field(b"no")
    with half_sent(server, member, "PATCH", rest, headers) as connection:
        task.close()
        connection.sendall(rest[len(rest) // 2 :])
        status, problem = answer_of(connection)
    assert (status, problem["type"]) == (400 if wrong else 409, f"urn:hushrec:problem:{slug}")
    assert not bodies(server)
    assert not chunks(server, task)


def test_a_whole_upload_replaces_a_partial_one(server: AggregatorProcess, api: Api) -> None:
    task, first, second, body = begun(api, "mixed")
    assert first.piece(0, body[:20]).status_code == 204
    with half_sent(server, first, "PATCH", body[20:], piece_fields(20, body[20:], body)) as connection:
        assert first.put(1, body).status_code == 201
        assert not chunks(server, task)  # they are not needed any more
        connection.sendall(body[20:][len(body[20:]) // 2 :])
        assert answer_of(connection)[0] == 200  # the same bytes: the receipt again
    assert second.put(1, second.contribution(1, 103.0)).status_code == 201
    task.assert_sum(1, [101.0, 103.0])


def test_simultaneous_uploads_of_one_client_are_limited(server: AggregatorProcess, api: Api) -> None:
    task, first, second, body = begun(api, "many")
    headers = {"Content-Digest": digest_field(body)}
    with ExitStack() as stack:
        uploads = [stack.enter_context(half_sent(server, first, "PUT", body, headers)) for _ in range(8)]
        answer = first.put(1, body)
        assert refusal(answer) == (429, "too-many-requests")
        assert int(answer.headers["retry-after"]) >= 1
        assert second.put(1, second.contribution(1, 103.0)).status_code == 201  # other uploads are not blocked
        for connection in uploads:
            connection.sendall(body[len(body) // 2 :])
        assert sorted(answer_of(connection)[0] for connection in uploads) == [*[200] * 7, 201]
    task.assert_sum(1, [101.0, 103.0])
    assert not bodies(server)


def test_a_chunk_that_hangs_blocks_no_other_request(server: AggregatorProcess, api: Api) -> None:
    """The connection broke unnoticed: the client sends the same chunk on another connection."""
    task, member, _, body = begun(api, "hangs")
    with half_sent(server, member, "PATCH", body[:40], piece_fields(0, body[:40])) as first:
        assert member.piece(0, body[:40]).status_code == 204
        first.sendall(body[20:40])  # the first connection is alive: its bytes are stored already
        status, problem = answer_of(first)
        assert (status, problem["type"], problem["expected-offset"]) == (409, MISMATCH, 40)
    with half_sent(server, member, "PATCH", body[40:80], piece_fields(40, body[40:80])), SyncDriver() as driver:
        calls = ApiCalls(server.url, chunk_bytes=40).enrolled(*enrolled_as(member.token))
        assert driver.run(calls.contribute(task.id, 1, member.client_id, body)).bytes == len(body)
    assert not chunks(server, task)


def test_of_two_equal_chunks_at_once_one_is_stored(server: AggregatorProcess, api: Api) -> None:
    """Both are complete at the same moment: one is stored, and no blob of the other is left."""
    task, member, _, body = begun(api, "twice")
    fields = piece_fields(0, body[:40])
    with ExitStack() as stack:
        both = [stack.enter_context(half_sent(server, member, "PATCH", body[:40], fields)) for _ in range(2)]
        for connection in both:
            connection.sendall(body[20:40])
        assert sorted(answer_of(connection)[0] for connection in both) == [204, 409]
    assert len(chunks(server, task)) == 1
    assert not bodies(server)


def test_the_number_of_chunks_is_limited(server: AggregatorProcess, api: Api) -> None:
    """Each takes a blob and a row. The last chunk and a whole upload are accepted at the limit."""
    task, member, _, body = begun(api, "crumbs", items=20)
    assert member.piece(0, body[:20]).status_code == 204
    with closing(Database(server.database_url, connections=1)) as database, database.write() as session:
        (row,) = session.scalars(select(ChunkRow).where(ChunkRow.client_id == member.client_id))
        own = {"round_id": row.round_id, "client_id": row.client_id, "bytes": 0, "digest": row.digest, "blob_key": "no"}
        session.add_all(ChunkRow(offset=20 + i, **own) for i in range(MOST_CHUNKS - 1))
    refused = member.piece(20, body[20:40])
    assert refusal(refused) == (400, "bad-request")
    assert "1000 chunks" in refused.json()["detail"]
    assert member.put(1, body).status_code == 201
    assert not chunks(server, task)


@pytest.mark.parametrize("fault", ["lost", "changed"])
def test_a_chunk_that_storage_lost_or_changed_is_sent_again(server: AggregatorProcess, api: Api, fault: str) -> None:
    task, member, _, body = begun(api, f"{fault}-chunk")
    assert member.piece(0, body[:20]).status_code == 204
    (key,) = chunks(server, task)
    server.blobs.delete(key)
    if fault == "changed":
        server.blobs.put(key, bytes(20))
    answer = member.piece(20, body[20:], body)
    # the client is told to start again at offset 0
    assert (answer.status_code, answer.json()["type"], answer.json()["expected-offset"]) == (409, MISMATCH, 0)
    assert member.offset() == 0
    assert member.piece(0, body[:20]).status_code == 204
    assert member.piece(20, body[20:], body).status_code == 201
    assert not chunks(server, task)


def test_a_listener_that_fails_does_not_undo_the_commit(world: World) -> None:
    heard: list[Effects] = []

    def broken(_effects: Effects) -> None:
        raise RuntimeError("a defect")

    task_id = world.task(members=1)
    world.database.listeners += [broken, heard.append]
    with world.database.write() as session:
        announce(session, task_id, "round")
    assert len(heard) == 1


def test_a_commit_of_a_stopping_server_deletes_its_orphans(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The event loop is closed while a thread still commits: no one is woken, the blobs go, and nothing is logged."""
    loop = asyncio.new_event_loop()
    loop.close()
    task_cache = TaskCache(world.database, world.clock, recheck=1.0)
    leadership = Leadership(world.database.candidacy(), lambda _leads: None, lambda: True)
    notifier = Notifier(world.database, task_cache, recheck=1.0)
    listeners = CommitListeners(loop, task_cache, notifier, world.engine, leadership, world.database, world.blobs)
    task_id = world.task(members=1)
    world.blobs.put("envelopes/t_1-0", b"replaced")
    world.database.listeners[:] = [listeners.committed_here]
    with world.database.write() as session:
        announce(session, task_id, "round")
        discard(session, "envelopes/t_1-0")
    assert list(world.blobs.keys()) == []
    assert caplog.records == []


class _LosesAnswers(Database):
    """A database whose connection breaks once: before the commit, or right after it."""

    breaks: str | None = None

    @contextmanager
    def write(self) -> Iterator[Session]:
        broken = OperationalError("COMMIT", None, ConnectionError("server closed the connection"))
        with super().write() as session:
            yield session
            if self.breaks == "before":
                raise broken
        if self.breaks == "after":
            raise broken


@pytest.mark.parametrize("breaks", ["before", "after"])
def test_a_commit_whose_answer_is_lost_keeps_its_blob(tmp_path: Path, world: World, breaks: str) -> None:
    task_id = world.task(members=4)
    world.run(task_id)
    client = world.cohort(task_id)[0]
    path = tmp_path / "body"
    path.write_bytes(b"12345")
    with closing(_LosesAnswers(f"sqlite:///{tmp_path / 'test.db'}", connections=2)) as database:
        admission = admit(database, Enrolled(client, task_id, "member"), task_id, 1, client)
        database.breaks = breaks
        with pytest.raises(OperationalError):
            store_chunk(database, world.blobs, admission, Chunk(path, 0, 5, "00" * 32))
    with world.database.read() as session:
        named = list(session.scalars(select(ChunkRow.blob_key)))
    assert len(named) == (1 if breaks == "after" else 0)
    assert list(world.blobs.keys()) == named  # no row names a missing blob, and no orphan is left


@pytest.mark.parametrize("breaks", ["before", "after"])
def test_a_task_whose_commit_loses_its_answer_keeps_its_catalogue(tmp_path: Path, world: World, breaks: str) -> None:
    catalogue = Catalogue(("a", "b"), ("", ""))
    recipe = "fedmf", {"items": 2, "dim": 2, "clip": 1.0}
    request = TaskRequest.model_validate(
        request_json("kept", *recipe, catalogue_digest=catalogue.digest, cohort_size=4)
    )
    with closing(_LosesAnswers(f"sqlite:///{tmp_path / 'test.db'}", connections=2)) as database:
        database.breaks = breaks
        with pytest.raises(OperationalError):
            add_task(
                database,
                world.blobs,
                request,
                plan_request(request),
                an_operator(),
                "off",
                catalogue=catalogue,
            )
    with world.database.read() as session:
        named = list(session.scalars(select(TaskRow.catalogue_key)))
    assert len(named) == (1 if breaks == "after" else 0)
    assert list(world.blobs.keys()) == named
