"""SQLite: one file, one machine. WAL, so that readers never wait; one writer at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
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
        engine = create_engine(url, pool_size=connections, max_overflow=4, pool_pre_ping=True, hide_parameters=True)
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
    connection.execute(text("BEGIN IMMEDIATE" if immediate else "BEGIN"))
