"""SQLite: one file on one machine. In WAL mode readers never wait; there is one writer at a time."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from aggregator_service.storage.checkpoints import MOST_PAGES, Checkpoints
from aggregator_service.storage.local_channel import LocalChannel
from aggregator_service.storage.prepared import run_plainly

__all__ = ["SQLite"]

_WRITES: Final = "hushrec_writes"
_MESSAGES: Final = "messages"
_WAIT_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.0005
# A small page cache: each connection has its own, and the operating system caches the file anyway.
_PRAGMAS: Final = (
    *("journal_mode=WAL", "synchronous=FULL", f"wal_autocheckpoint={MOST_PAGES}"),
    *("foreign_keys=ON", "busy_timeout=15000", "cache_size=-512"),
)


class SQLite:
    """See `Dialect`. There are no row locks: BEGIN IMMEDIATE locks the whole database."""

    def __init__(self, channel: LocalChannel | None = None) -> None:
        """channel: to the other API processes of this server, if there are any."""
        self._channel = channel
        # A lock in the process is fair, and faster than SQLite's busy handler.
        self._lock: AbstractContextManager[object] = threading.Lock()
        self._checkpoints: Checkpoints | None = None

    @property
    def has_others(self) -> bool:
        """See `Dialect.has_others`."""
        return self._channel is not None

    def create(self, url: URL, connections: int) -> Engine:
        """See `Dialect.create`."""
        if self._channel is not None:
            self._lock = _SharedLock(Path(f"{Path(url.database or '').resolve()}-writer"))
        self._checkpoints = Checkpoints(Path(url.database or ""))
        engine = create_engine(url, pool_size=connections, max_overflow=4, hide_parameters=True)
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        return engine

    def readers(self, engine: Engine) -> Engine:
        """See `Dialect.readers`: a SQLite transaction sees one state from its first statement on."""
        return engine

    def writers(self, engine: Engine) -> Engine:
        """See `Dialect.writers`."""
        return engine.execution_options(**{_WRITES: True})

    def one_writer(self) -> AbstractContextManager[object]:
        """See `Dialect.one_writer`."""
        return self._lock

    def lock_schema(self, connection: Connection) -> None:
        """Does nothing: BEGIN IMMEDIATE has locked the database."""

    def is_transient(self, error: DBAPIError) -> bool:
        """Always false: a writer gets its lock before its transaction begins."""
        return False

    def notify(self, session: Session, message: str) -> None:
        """See `Dialect.notify`. SQLite has no notifications: the message goes to this server's other processes only."""
        session.info.setdefault(_MESSAGES, []).append(message)

    def committed(self, session: Session, writes: int) -> None:
        """See `Dialect.committed`: send the messages, and count the writes for the next checkpoint."""
        if self._checkpoints is not None:
            self._checkpoints.count(writes)
        if self._channel is not None:
            for message in session.info.pop(_MESSAGES, ()):
                self._channel.send(message)

    def listen(self, url: URL, on_message: Callable[[str], None]) -> Callable[[], None]:
        """See `Dialect.listen`. A server of one process never gets a message."""
        return _do_nothing if self._channel is None else self._channel.listen(on_message)

    def close(self) -> None:
        """See `Dialect.close`: end the thread that checkpoints."""
        if self._checkpoints is not None:
            self._checkpoints.close()

    def candidacy(self, url: URL) -> _Candidate:
        """See `Dialect.candidacy`."""
        return _Candidate(Path(f"{Path(url.database or '').resolve()}-leader"))


class _SharedLock:
    """The lock of the one writer among several processes: the lock of a file, taken in turn with other threads here.

    SQLite's busy handler sleeps for longer and longer, so a process that writes often would keep the others out. When
    the lock is not free for `_WAIT_SECONDS`, SQLite decides, whose own lock is the one that counts.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._threads = path, threading.Lock()
        self._descriptor: int | None = None

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock_file(self._descriptor)
        except BaseException:
            self._threads.release()
            raise

    def _lock_file(self, descriptor: int) -> None:
        end = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    return
                time.sleep(_PAUSE_SECONDS)
            else:
                return

    def __exit__(self, *_: object) -> None:
        try:
            if self._descriptor is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()


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


def _do_nothing() -> None:
    return


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # we send BEGIN ourselves: the driver starts no transaction for a SELECT
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A writer locks at once: a reader that becomes a writer could get SQLITE_BUSY and could not retry.
    immediate = connection.get_execution_options().get(_WRITES, False)
    run_plainly(connection, "BEGIN IMMEDIATE" if immediate else "BEGIN")
