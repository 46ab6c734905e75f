"""SQLite: one file on one machine. In WAL mode readers never wait; there is one writer at a time."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, Engine, create_engine, event

from aggregator_service.storage.dialects import Dialect
from aggregator_service.storage.directory import create_for_owner

_WRITES: Final = "hushrec_writes"
# A small page cache: each connection has its own, and the operating system caches the file anyway.
_PRAGMAS: Final = (
    *("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=4000"),
    *("foreign_keys=ON", "busy_timeout=15000", "cache_size=-512"),
)


class SQLite(Dialect):
    """There are no row locks: BEGIN IMMEDIATE locks the whole database, also for a migration.

    A transaction sees one state from its first statement on. A writer gets its lock before its transaction begins, so
    that none is rolled back because of another one. Other processes of this machine query the database for changes.
    """

    def __init__(self) -> None:
        # A lock in the process is fair, and faster than SQLite's busy handler.
        self._lock = threading.Lock()

    def create(self, url: URL, connections: int) -> Engine:
        """See `Dialect.create`."""
        if url.database and not url.database.startswith("file:"):
            create_for_owner(Path(url.database))  # SQLite gives its other files to the owner of this one
        engine = create_engine(url, pool_size=connections, max_overflow=4, hide_parameters=True)
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        return engine

    def writers(self, engine: Engine) -> Engine:
        """See `Dialect.writers`."""
        return engine.execution_options(**{_WRITES: True})

    def one_writer(self) -> AbstractContextManager[object]:
        """See `Dialect.one_writer`."""
        return self._lock

    def candidacy(self, url: URL) -> _Candidate:
        """See `Dialect.candidacy`."""
        return _Candidate(Path(f"{Path(url.database or '').resolve()}-leader"))


class _Candidate:
    """See `Candidacy`: the leader is the process that holds the lock of a file beside the database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._resigned = threading.Event()

    def leads(self, wait: float = 0.0) -> bool:
        """See `Candidacy.leads`. A process keeps the lock until it ends, so the lock is not checked again."""
        self._resigned.clear()
        if wait and self._resigned.wait(wait):
            return False
        if self._descriptor is not None:
            return True
        create_for_owner(self._path)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def resign(self) -> None:
        """See `Candidacy.resign`."""
        self._resigned.set()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # we send BEGIN ourselves: the driver starts no transaction for a SELECT
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A writer locks at once: a reader that becomes a writer could get SQLITE_BUSY and could not retry.
    immediate = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
