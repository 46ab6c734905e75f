"""Uploads that are interrupted by the end of the round, another upload of the same client, or a lost commit."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from aggregator_service.access.principals import Enrolled
from aggregator_service.clock import ManualClock
from aggregator_service.migrations.migrate import migrate
from aggregator_service.services import Services
from aggregator_service.storage.database import Database, Effects, announce
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.rounds import find_contribution
from aggregator_service.storage.schema import ChunkRow, CohortRow
from aggregator_service.tasks.tasks import create_task, plan_request
from aggregator_service.uploads.admission import admit
from aggregator_service.uploads.chunks import MOST_CHUNKS
from aggregator_service.uploads.contributions import store_contribution_file
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import SyncDriver
from protocols.messages import TaskRequest
from tests.support.api import Api, TestMember, TestTask, digest_field
from tests.support.server import AggregatorProcess
from tests.support.signing import enrolled_as, raw_head
from tests.support.world import client_row, round_row

SERVER = {"body_idle_seconds": 5.0}
MISMATCH = "https://iana.org/assignments/http-problem-types#mismatching-upload-offset"


def chunk_headers(start: int, chunk: bytes, whole: bytes | None = None, digest: str | None = None) -> dict[str, str]:
    return {
        "Content-Type": "application/partial-upload",
        "Upload-Offset": str(start),
        "Upload-Complete": "?0" if whole is None else "?1",
        "Content-Digest": digest or digest_field(chunk),
        **({} if whole is None else {"Repr-Digest": digest_field(whole)}),
    }


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
    """The files of bodies that the server is receiving."""
    return list((server.data_dir / "uploads").iterdir())


def chunks(server: AggregatorProcess, task: TestTask) -> list[str]:
    """The keys of all stored chunks."""
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
def test_the_round_ends_while_a_chunk_arrives(
    server: AggregatorProcess, api: Api, last: bool, wrong: bool, slug: str
) -> None:
    task = api.create_task(f"ends-{last}-{wrong}".lower(), cohort=2)
    member, _ = task.begin(2)
    body = member.contribution(1, 5.0)
    assert member.piece(0, body[:20]).status_code == 204
    rest = body[20:] if last else body[20:40]
    headers = chunk_headers(20, rest, body if last else None, digest_field(b"no") if wrong else None)
    with half_sent(server, member, "PATCH", rest, headers) as connection:
        task.close()
        connection.sendall(rest[len(rest) // 2 :])
        status, problem = answer_of(connection)
    assert (status, problem["type"]) == (400 if wrong else 409, f"urn:hushrec:problem:{slug}")
    assert not bodies(server)
    assert not chunks(server, task)


def test_a_whole_upload_replaces_a_partial_one(server: AggregatorProcess, api: Api) -> None:
    task = api.create_task("mixed", cohort=2)
    members = task.begin(2)
    body = members[0].contribution(1, 101.0)
    assert members[0].piece(0, body[:20]).status_code == 204
    headers = chunk_headers(20, body[20:], body)
    with half_sent(server, members[0], "PATCH", body[20:], headers) as connection:
        assert members[0].put(1, body).status_code == 201
        assert not chunks(server, task)  # they are not needed any more
        connection.sendall(body[20:][len(body[20:]) // 2 :])
        assert answer_of(connection)[0] == 200  # the same bytes: the receipt again
    assert members[1].put(1, members[1].contribution(1, 103.0)).status_code == 201
    assert task.wait_round(1, "complete")["survivors"] == 2
    assert task.opened(1)[0] == 204.0


def test_simultaneous_uploads_of_one_client_are_limited(server: AggregatorProcess, api: Api) -> None:
    task = api.create_task("many", cohort=2)
    members = task.begin(2)
    body = members[0].contribution(1, 101.0)
    headers = {"Content-Digest": digest_field(body)}
    with ExitStack() as stack:
        begun = [stack.enter_context(half_sent(server, members[0], "PUT", body, headers)) for _ in range(8)]
        answer = members[0].put(1, body)
        assert (answer.status_code, answer.json()["type"]) == (429, "urn:hushrec:problem:too-many-requests")
        assert int(answer.headers["retry-after"]) >= 1
        assert members[1].put(1, members[1].contribution(1, 103.0)).status_code == 201  # other uploads are not blocked
        codes = []
        for connection in begun:
            connection.sendall(body[len(body) // 2 :])
            codes.append(answer_of(connection)[0])
    assert sorted(codes) == [*[200] * 7, 201]
    task.wait_round(1, "complete")
    assert task.opened(1)[0] == 204.0
    assert not bodies(server)


def test_a_chunk_that_hangs_blocks_no_other_request(server: AggregatorProcess, api: Api) -> None:
    """The connection broke unnoticed: the client sends the same chunk on another connection."""
    task = api.create_task("hangs", cohort=2)
    member, _ = task.begin(2)
    body = member.contribution(1, 101.0)
    with half_sent(server, member, "PATCH", body[:40], chunk_headers(0, body[:40])) as first:
        assert member.piece(0, body[:40]).status_code == 204
        first.sendall(body[20:40])  # the first connection is alive: its bytes are stored already
        status, problem = answer_of(first)
        assert (status, problem["type"]) == (409, MISMATCH)
        assert problem["expected-offset"] == 40
    with half_sent(server, member, "PATCH", body[40:80], chunk_headers(40, body[40:80])):
        calls = ApiCalls(server.url, chunk_bytes=40).enrolled(*enrolled_as(member.token))
        with SyncDriver() as driver:
            assert driver.run(calls.contribute(task.id, 1, member.client_id, body)).bytes == len(body)
    assert not chunks(server, task)


def test_of_two_equal_chunks_at_once_one_is_stored(server: AggregatorProcess, api: Api) -> None:
    """Both are complete at the same moment: one is stored, and no blob of the other is left."""
    task = api.create_task("twice", cohort=2)
    member, _ = task.begin(2)
    body = member.contribution(1, 101.0)
    with ExitStack() as stack:
        headers = chunk_headers(0, body[:40])
        both = [stack.enter_context(half_sent(server, member, "PATCH", body[:40], headers)) for _ in range(2)]
        for connection in both:
            connection.sendall(body[20:40])
        assert sorted(answer_of(connection)[0] for connection in both) == [204, 409]
    assert len(chunks(server, task)) == 1
    assert not bodies(server)


def test_the_number_of_chunks_is_limited(server: AggregatorProcess, api: Api) -> None:
    """Each takes a blob and a row. The last chunk and a whole upload are accepted at the limit."""
    task = api.create_task("crumbs", cohort=2, items=20)
    member, _ = task.begin(2)
    body = member.contribution(1, 5.0)
    database = Database(server.database_url, connections=1)
    assert member.piece(0, body[:20]).status_code == 204
    with database.write() as session:
        (row,) = session.scalars(select(ChunkRow).where(ChunkRow.client_id == member.client_id))
        session.add_all(
            ChunkRow(
                round_id=row.round_id, client_id=row.client_id, offset=20 + i, bytes=0, digest=row.digest, blob_key="no"
            )
            for i in range(MOST_CHUNKS - 1)
        )
    database.close()
    refused = member.piece(20, body[20:40])
    assert (refused.status_code, refused.json()["type"]) == (400, "urn:hushrec:problem:bad-request")
    assert "1000 chunks" in refused.json()["detail"]
    assert member.put(1, body).status_code == 201
    assert not chunks(server, task)


def test_a_listener_that_fails_does_not_undo_the_commit(tmp_path: Path) -> None:
    """The loop is closed, or a blob cannot be deleted: the transaction is committed all the same."""
    database = Database(f"sqlite:///{tmp_path / 'test.db'}", connections=2)
    migrate(database)
    heard: list[Effects] = []

    def broken(_effects: Effects) -> None:
        raise RuntimeError("Event loop is closed")

    database.listeners += [broken, heard.append]
    with database.write() as session:
        task_id = create_task(session, _plain_task(), plan_request(_plain_task()), 0.0).id
        announce(session, task_id, "round")
    assert len(heard) == 1
    database.close()


def _plain_task() -> TaskRequest:
    return TaskRequest.model_validate(
        {
            "name": "lost",
            "recipe": {"name": "fedmf", "parameters": {"items": 2, "dim": 2, "clip": 100.0}},
            "mechanism": {"name": "plain"},
            "schedule": {"cohort_size": 2, "min_clients": 2},
        }
    )


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


@pytest.mark.parametrize("fault", ["lost", "changed"])
def test_a_chunk_that_the_storage_lost_or_changed_is_sent_again(
    server: AggregatorProcess, api: Api, fault: str
) -> None:
    task = api.create_task(f"{fault}-chunk", cohort=2)
    member, _ = task.begin(2)
    body = member.contribution(1, 5.0)
    assert member.piece(0, body[:20]).status_code == 204
    (key,) = chunks(server, task)
    server.blobs.delete(key)
    if fault == "changed":
        server.blobs.put(key, bytes(20))
    answer = member.piece(20, body[20:], body)
    assert (answer.status_code, answer.json()["type"]) == (409, MISMATCH)
    # the client is told to start again at offset 0
    assert answer.json()["expected-offset"] == 0
    assert member.offset() == 0
    assert member.piece(0, body[:20]).status_code == 204
    assert member.piece(20, body[20:], body).status_code == 201
    assert not chunks(server, task)


@pytest.mark.parametrize("breaks", ["before", "after"])
def test_a_commit_whose_answer_is_lost_keeps_its_blob(tmp_path: Path, breaks: str) -> None:
    database = _LosesAnswers(f"sqlite:///{tmp_path / 'test.db'}", connections=2)
    migrate(database)
    blobs = DirectoryBlobs(tmp_path / "blobs")
    blobs.prepare()
    with database.write() as session:
        task = create_task(session, _plain_task(), plan_request(_plain_task()), 0.0)
        round_ = round_row(task.id)
        session.add_all([round_, client_row("c_1", task.id)])
        session.flush()
        session.add(CohortRow(round_id=round_.id, client_id="c_1"))
    services = cast(Services, SimpleNamespace(database=database, blobs=blobs, clock=ManualClock(), checking=_NoQueue()))
    admission = admit(services, Enrolled("c_1", task.id, "member"), task.id, 1, "c_1")
    path = tmp_path / "body"
    path.write_bytes(bytes(admission.length))
    digest = "00" * 32
    database.breaks = breaks
    with pytest.raises(OperationalError):
        asyncio.run(store_contribution_file(services, admission, path, digest))
    with database.read() as session:
        stored = find_contribution(session, round_.id, "c_1")
    named = [] if stored is None else [stored.blob_key]
    assert len(named) == (1 if breaks == "after" else 0)
    assert list(blobs.keys()) == named  # no row names a missing blob, and no orphan is left
    database.close()


class _NoQueue:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...
