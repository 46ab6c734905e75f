"""The bare server of bench/service.py: what its routes with unavoidable work do, and what they leave behind."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature

from bench.service_parts import floor
from bench.service_parts.bare import Bare
from bench.service_parts.floor import DATABASE, DurableStore, SignedMessage
from bench.service_parts.wire import closed_loop, request_bytes

BODIES = [bytes([number]) * 100 for number in range(40)]


def _run(store: DurableStore, work: Coroutine[object, object, None]) -> None:
    """Finish `work`, then end the store's thread."""
    try:
        asyncio.run(work)
    finally:
        store.close()


def _rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(folder / DATABASE)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def test_a_signature_is_verified() -> None:
    signed = SignedMessage()
    signed.verify()
    signed._message = b"another"
    with pytest.raises(InvalidSignature):
        signed.verify()


def test_a_body_is_committed_before_its_request_continues(tmp_path: Path) -> None:
    store = DurableStore(tmp_path)
    query = "SELECT length, body FROM contributions JOIN bodies USING (key) WHERE digest = '{}'"

    async def put(body: bytes) -> None:
        digest = hashlib.sha256(body).hexdigest()
        await store.store(body, digest)
        assert _rows(tmp_path, query.format(digest)) == [(100, body)]

    async def work() -> None:
        await asyncio.gather(*(put(body) for body in BODIES))

    _run(store, work())
    assert _rows(tmp_path, "SELECT count(*), count(DISTINCT client) FROM contributions") == [(40, 40)]
    assert _rows(tmp_path, "PRAGMA journal_mode") == [("wal",)]


def test_writes_in_flight_at_once_share_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    commit = floor._commit

    def counted(connection: sqlite3.Connection, group: list[floor._Write]) -> None:
        sizes.append(len(group))
        commit(connection, group)

    monkeypatch.setattr(floor, "_commit", counted)
    monkeypatch.setattr(floor, "_GATHER_SECONDS", 30.0)  # a group that is not complete would wait for a timeout
    store = DurableStore(tmp_path)

    async def work() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(*(store.store(b"", "") for _ in range(4)))

    monkeypatch.setattr(store, "_expected", 4)
    _run(store, work())
    assert sizes == [4]


def test_a_group_that_does_not_become_complete_is_committed_after_a_while(tmp_path: Path) -> None:
    store = DurableStore(tmp_path)
    store._expected = 4
    _run(store, store.store(b"", ""))
    assert _rows(tmp_path, "SELECT count(*) FROM bodies") == [(1,)]
    assert store._expected == 1


def test_a_failed_commit_is_raised_and_the_next_one_is_tried(tmp_path: Path) -> None:
    store = DurableStore(tmp_path / "later")

    async def work() -> None:
        with pytest.raises(sqlite3.OperationalError):
            await store.store(b"", "")
        (tmp_path / "later").mkdir()
        await store.store(b"", "")

    _run(store, work())
    assert _rows(tmp_path / "later", "SELECT count(*) FROM bodies") == [(1,)]


def test_nothing_is_started_before_the_first_write(tmp_path: Path) -> None:
    threads = threading.active_count()
    DurableStore(tmp_path).close()
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


def test_the_routes_of_the_bare_server() -> None:
    with Bare() as bare:
        for target in ("/bare", "/checked"):
            closed_loop(bare.port, [request_bytes("GET", target, {})] * 8, 4).expect(200)
        closed_loop(bare.port, [request_bytes("PUT", "/discard", {}, body) for body in BODIES], 4).expect(201)
        assert list(bare.folder.iterdir()) == []
        closed_loop(bare.port, [request_bytes("PUT", "/durable", {}, body) for body in BODIES], 4).expect(201)
        assert sorted(body for (body,) in _rows(bare.folder, "SELECT body FROM bodies")) == BODIES
    assert not bare.folder.exists()
