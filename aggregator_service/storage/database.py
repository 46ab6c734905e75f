"""The database: short transactions, and what may happen only after they are committed.

A transaction collects *effects*: topics that waiting clients should hear of, and blobs that nothing names any more.
They take place after the commit; a crash in between is harmless, since waiting clients ask again and orphaned blobs
are collected at the next start.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, cast

from sqlalchemy import Connection, CursorResult, Engine, Executable, create_engine, event, select, text, update
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import TaskRow

__all__ = [
    "Announcement",
    "Database",
    "Effects",
    "announce",
    "changed_rows",
    "count_dropouts",
    "count_outcome",
    "discard",
    "discard_body",
    "progress",
]

_LOG = logging.getLogger(__name__)
_EFFECTS: Final = "effects"
_WRITES: Final = "hushrec_writes"


@dataclass(frozen=True)
class Announcement:
    """Something about a task changed. `version` is null for mere progress, which only the round engine hears of."""

    task_id: str
    topics: tuple[str, ...]
    version: int | None


@dataclass
class Effects:
    """What follows a commit. Only counted: outcomes of rounds, and (phase, clients that it waited for in vain)."""

    announcements: list[Announcement] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    dropouts: list[tuple[str, int]] = field(default_factory=list)


class Database:
    """One engine, sessions that read and sessions that write. Safe to share between threads."""

    def __init__(self, url: str, connections: int = 16) -> None:
        self._engine = create_engine(
            url, pool_size=connections, max_overflow=4, pool_pre_ping=True, hide_parameters=True
        )
        self.is_sqlite = self._engine.dialect.name == "sqlite"
        if self.is_sqlite:
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        self._writing = self._engine.execution_options(**{_WRITES: True})
        # SQLite has one writer at a time; waiting on a lock of our own is fair and quicker than its busy handler.
        self._lock = threading.Lock() if self.is_sqlite else nullcontext()
        self.listeners: list[Callable[[Effects], None]] = []

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine, for migrations."""
        return self._engine

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one state of the database and changes nothing."""
        with Session(self._engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction: committed (durably) when the block ends, rolled back when it raises.

        A listener that fails afterwards is logged: to the caller it must not look as if the commit had failed.
        """
        with Session(self._writing, expire_on_commit=False) as session:
            effects = session.info[_EFFECTS] = Effects()
            with self._lock, session.begin():
                yield session
        for listener in self.listeners:
            try:
                listener(effects)
            except Exception:
                _LOG.exception("a transaction is committed, but what follows it failed")

    def ping(self) -> None:
        """Raise when the database does not answer or has no tables."""
        with self.read() as session:
            session.execute(select(TaskRow.id).limit(1)).all()

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()


def announce(session: Session, task_id: str, *topics: str) -> None:
    """After the commit, wake the clients that wait for `topics` of this task, here and in other processes."""
    bump = update(TaskRow).where(TaskRow.id == task_id).values(version=TaskRow.version + 1).returning(TaskRow.version)
    version = session.execute(bump.execution_options(synchronize_session=False)).scalar_one()
    _effects(session).announcements.append(Announcement(task_id, topics, version))


def progress(session: Session, task_id: str) -> None:
    """After the commit, let the round engine look at this task."""
    _effects(session).announcements.append(Announcement(task_id, (), None))


def discard(session: Session, key: str | None) -> None:
    """After the commit, delete a blob that no row names any more."""
    if key is not None:
        _effects(session).orphans.append(key)


def discard_body(session: Session, file_name: str) -> None:
    """After the commit, delete what has arrived of an upload that nobody needs any more."""
    _effects(session).bodies.append(file_name)


def count_outcome(session: Session, outcome: str) -> None:
    """After the commit, count a round that ended."""
    _effects(session).outcomes.append(outcome)


def count_dropouts(session: Session, phase: str, clients: int) -> None:
    """After the commit, count the clients that a phase waited for in vain."""
    if clients > 0:
        _effects(session).dropouts.append((phase, clients))


def changed_rows(session: Session, statement: Executable) -> int:
    """Execute an UPDATE or DELETE and say how many rows it met: the guard of every optimistic change."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount


def _effects(session: Session) -> Effects:
    return cast(Effects, session.info[_EFFECTS])


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # BEGIN is ours: the driver's own would start no transaction for a SELECT
    cursor = connection.cursor()
    # A small page cache, since each connection has its own and the system's holds the file anyway.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=15000", "cache_size=-512"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes the lock at once: a reader that turns writer could meet SQLITE_BUSY with no way to retry.
    immediate = connection.get_execution_options().get(_WRITES, False)
    connection.execute(text("BEGIN IMMEDIATE" if immediate else "BEGIN"))
