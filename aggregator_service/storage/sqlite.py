"""SQLite: one file, one machine. WAL, so that readers never wait; one writer at a time."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

__all__ = ["SQLite"]

_WRITES: Final = "hushrec_writes"
# A small page cache, since each connection has its own and the system's holds the file anyway.
_PRAGMAS: Final = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=15000", "cache_size=-512")


class SQLite:
    """See `Dialect`. Row locks do not exist here: BEGIN IMMEDIATE locks the whole database, which is stronger."""

    def __init__(self) -> None:
        # Waiting on a lock of our own is fair and quicker than SQLite's busy handler.
        self._lock = threading.Lock()

    def create(self, url: URL, connections: int) -> Engine:
        """See `Dialect.create`."""
        engine = create_engine(url, pool_size=connections, max_overflow=4, hide_parameters=True)
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        return engine

    def readers(self, engine: Engine) -> Engine:
        """A SQLite transaction sees one state from its first statement on."""
        return engine

    def writers(self, engine: Engine) -> Engine:
        """See `Dialect.writers`."""
        return engine.execution_options(**{_WRITES: True})

    def one_writer(self) -> threading.Lock:
        """See `Dialect.one_writer`."""
        return self._lock

    def hold_schema(self, connection: Connection) -> None:
        """BEGIN IMMEDIATE has done it."""

    def is_transient(self, error: DBAPIError) -> bool:
        """Never: who may write is settled before a transaction begins."""
        return False

    def tell(self, session: Session, message: str) -> None:
        """There is no channel: other processes (the command line) are noticed by looking at versions."""

    def listen(self, url: URL, heard: Callable[[str], None]) -> Callable[[], None]:
        """Nothing is ever heard."""
        return _nothing

    def candidacy(self, url: URL) -> _Candidate:
        """See `Dialect.candidacy`."""
        return _Candidate(Path(f"{Path(url.database or '').resolve()}-leader"))


class _Candidate:
    """See `Candidacy`: whoever holds the lock of a file beside the database leads, until its process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._resigned = threading.Event()

    def leads(self, wait: float = 0.0) -> bool:
        """See `Candidacy.leads`. The kernel takes the lock from nobody who lives, so it need not be asked again."""
        self._resigned.clear()
        if wait and self._resigned.wait(wait):
            return False
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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


def _nothing() -> None:
    return


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # BEGIN is ours: the driver's own would start no transaction for a SELECT
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A writer takes the lock at once: a reader that turns writer could meet SQLITE_BUSY with no way to retry.
    immediate = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
