"""The database: short transactions, and effects that happen only after their commit.

A transaction collects *effects*: announcements for waiting clients, blobs that no row names any more, counts for
metrics. A crash between commit and effects is harmless: clients ask again, and orphaned blobs are deleted later.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any, Final, TypeVar, TypeVarTuple, cast

from sqlalchemy import (
    URL,
    Connection,
    CursorResult,
    ExceptionContext,
    Executable,
    Row,
    Select,
    Table,
    bindparam,
    event,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, TimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from aggregator_service.storage.bodies import delete_small_body, is_small
from aggregator_service.storage.dialects import DISK_FULL, Candidacy, Dialect, SQLite, database_cause
from aggregator_service.storage.postgres import Postgres
from aggregator_service.storage.schema import TaskRow
from protocols.errors import ParameterError

_LOG = logging.getLogger(__name__)
_EFFECTS: Final = "effects"
_ATTEMPTS: Final = 6
_PAUSE: Final = 0.02
_MOST_KEPT: Final = 2
"""Of the connections that the pool has besides those of threads (`max_overflow`), two are these, two are those of group
commits, and two are left for the watch of the clock, the metrics and the checks of uploads, which have threads of their
own and need one for a moment."""
_MAX_NOTIFICATION: Final = 3000
_MOST_PARAMETERS: Final = 500
_HIGHEST_PORT: Final = 65_535
_TASKS: Final = cast(Table, TaskRow.__table__)  # an ORM update takes several times as long
_RAISE_VERSION: Final = (
    update(_TASKS)
    .where(_TASKS.c.id == bindparam("task"))
    .values(version=_TASKS.c.version + 1)
    .returning(_TASKS.c.version)
)

DATABASE_GONE: Final = (OperationalError, InterfaceError, TimeoutError)
"""Raised when the database does not answer in time: try again later."""

Result = TypeVar("Result")
Columns = TypeVarTuple("Columns")


@dataclass(frozen=True)
class Announcement:
    """A change of a task, and the topics that it concerns."""

    task_id: str
    topics: tuple[str, ...]
    version: int | None
    """None for progress that only the engine needs."""


@dataclass(frozen=True)
class Delivery:
    """A client sent its `part` of a round (`storage.stage_rows.StagePart`)."""

    task_id: str
    round_id: int
    part: str
    client_id: str


@dataclass
class Effects:
    """What follows a commit."""

    announcements: list[Announcement] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    voided: list[str] = field(default_factory=list)
    """Hashes of tokens that are void."""
    orphans: list[str] = field(default_factory=list)
    """Keys of blobs to delete."""
    outcomes: list[str] = field(default_factory=list)
    """Of rounds that ended, for metrics."""
    dropouts: list[tuple[str, int]] = field(default_factory=list)
    """Round state and number of clients whose message did not arrive, for metrics."""


_FULL_SECONDS: Final = 30.0
"""While a disk is full, some writes succeed that need no new page: so it counts as full for so long."""


class Database:
    """A database with sessions that read and sessions that write. Thread-safe.

    url: a SQLAlchemy URL; `ParameterError` unless it is of SQLite or PostgreSQL. connections: size of the pool.
    listeners: called with the effects of each commit, in the committing thread. engine: SQLAlchemy's.
    """

    def __init__(self, url: str, connections: int = 16) -> None:
        self._dialect, self._url = dialect_of(url)
        self.engine = self._dialect.create(self._url, connections)
        self._reading = self._dialect.readers(self.engine)
        self._reading_once = self._dialect.single_readers(self.engine)
        self._kept, self._closed = deque[Connection](), False
        self._writing = self._dialect.writers(self.engine)
        self._origin = secrets.token_hex(8)  # distinguishes our notifications from those of other processes
        self.listeners: list[Callable[[Effects], None]] = []
        self._full_at = -math.inf
        event.listen(self.engine, "handle_error", self._note_error)

    @property
    def is_full(self) -> bool:
        """Whether a write failed in the last 30 seconds because the database's disk is full."""
        return time.monotonic() - self._full_at < _FULL_SECONDS

    def _note_error(self, context: ExceptionContext) -> None:
        error = context.original_exception
        if isinstance(error, Exception) and database_cause(error) == DISK_FULL:
            self._full_at = time.monotonic()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Return a read-only session that sees one state of the database."""
        with Session(self._reading, expire_on_commit=False) as session:
            yield session

    def rows(self, statement: Select[*Columns], parameters: Mapping[str, Any]) -> Sequence[Row[*Columns]]:
        """Return the rows that one statement finds, in a fraction of the time that a session of `read` takes.

        Two connections are kept for this, untested. One that the database closed meanwhile is found by its statement,
        which is then sent again over another one.
        """
        connection = self._kept_one()
        if connection is not None:
            try:
                return self._rows_over(connection, statement, parameters)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                self._close_kept()  # the others are as old: to wait for the answer of each would take as long again
        return self._rows_over(self._reading_once.connect(), statement, parameters)

    def _rows_over(
        self, connection: Connection, statement: Select[*Columns], parameters: Mapping[str, Any]
    ) -> Sequence[Row[*Columns]]:
        """Return the rows, and keep the connection for the next statement."""
        try:
            found = connection.execute(statement, parameters).all()
        except BaseException:
            connection.close()
            raise
        if self._closed or len(self._kept) >= _MOST_KEPT:
            connection.close()
        else:
            self._kept.append(connection)
        return found

    def _kept_one(self) -> Connection | None:
        try:
            return self._kept.pop()
        except IndexError:  # not asked before: other threads take some, too
            return None

    def _close_kept(self) -> None:
        while (connection := self._kept_one()) is not None:
            connection.close()

    def writer(self) -> Connection:
        """Return a connection for one `write` after the other, to be closed: most of what a short transaction costs is
        to get one."""
        return self._writing.connect()

    @contextmanager
    def write(self, connection: Connection | None = None) -> Iterator[Session]:
        """Return a session in a transaction: committed durably at the end of the block, rolled back when it raises.

        Use `transact` for work that locks rows which others lock too. An exception of a listener is logged, not raised:
        the transaction is committed. connection: a `writer`; None for one of the pool.
        """
        with Session(connection or self._writing, expire_on_commit=False) as session:
            effects = session.info[_EFFECTS] = Effects()
            with self._dialect.one_writer(), session.begin():
                yield session
                self._notify_all(session, effects)
        for listener in self.listeners:
            try:
                listener(effects)
            except Exception:
                _LOG.exception("a listener failed after a commit")

    def transact(self, work: Callable[[Session], Result]) -> Result:
        """Call `work` in a transaction; return its result after the commit.

        `work` is called again when the database rolled the transaction back because of another one (a deadlock, a
        serialization failure). So it must only read and write rows, and create the rows that it adds.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self.write() as session:
                    return work(session)
            except DBAPIError as error:
                if attempt == _ATTEMPTS or not self._dialect.is_transient(error):
                    raise
                _LOG.info("transaction conflict (attempt %d of %d); trying again", attempt, _ATTEMPTS)
            time.sleep(_PAUSE * 2**attempt * (0.5 + secrets.randbelow(1000) / 1000))
        raise AssertionError("unreachable")

    def is_transient(self, error: BaseException) -> bool:
        """Whether a transaction was rolled back because of another one, and can be tried again."""
        return isinstance(error, DBAPIError) and self._dialect.is_transient(error)

    def migrating(self, work: Callable[[Connection], Result]) -> Result:
        """Return `work(connection)`, called in a transaction during which no other process migrates the schema."""
        with self._dialect.one_writer(), self._writing.begin() as connection:
            self._dialect.lock_schema(connection)
            return work(connection)

    def listen(self, on_announcement: Callable[[Announcement], None]) -> Callable[[], None]:
        """Call `on_announcement` in a thread with what other processes announce; return a function that stops it.

        Over SQLite nothing is announced, and over PostgreSQL messages may be lost: `polling.notifier.Notifier.watch`
        finds what is missing.
        """

        def receive(message: str) -> None:
            origin, task_id, topics, version = json.loads(message)
            if origin != self._origin:
                on_announcement(Announcement(task_id, tuple(topics), version))

        return self._dialect.listen(self._url, receive)

    def candidacy(self) -> Candidacy:
        """Return this process's candidacy for the leadership over this database's rounds."""
        return self._dialect.candidacy(self._url)

    def notify_progress(self, tasks: Iterable[str]) -> None:
        """Notify the round engine of another process of progress in these tasks."""
        with self.write() as session:
            for task_id in tasks:
                self._notify(session, Announcement(task_id, (), None))

    def _notify_all(self, session: Session, effects: Effects) -> None:
        for announcement in effects.announcements:
            if announcement.version is not None:  # `rounds.leadership` notifies of progress, after the commit
                self._notify(session, announcement)

    def _notify(self, session: Session, announcement: Announcement) -> None:
        content = [self._origin, announcement.task_id, announcement.topics, announcement.version]
        message = json.dumps(content)
        if len(message) <= _MAX_NOTIFICATION:
            self._dialect.notify(session, message)

    def ping(self) -> None:
        """Raise a SQLAlchemy error when the database does not answer or has no tables."""
        with self.read() as session:
            session.execute(select(TaskRow.id).limit(1)).all()

    def time(self) -> float | None:
        """Return the database's time in seconds since the epoch; None if its clock is this machine's (SQLite)."""
        with self.read() as session:
            return self._dialect.time(session)

    def close(self) -> None:
        """Close all connections; one that a thread still uses is closed when it is returned."""
        event.listen(self.engine, "checkin", _close_returned)  # the pool would keep it open, and be forgotten with it
        self._closed = True
        self._close_kept()
        self.engine.dispose()


def dialect_of(url: str) -> tuple[Dialect, URL]:
    """Return the dialect of a SQLAlchemy URL, and the URL with our driver.

    Raises `ParameterError` for an invalid URL and for a database that is not supported.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # a port that is no number
        raise ParameterError(
            "HUSHREC_DATABASE_URL is no database URL: expected postgresql://user@host/name or sqlite:////path/to/file"
        ) from None
    if parsed.port is not None and not 1 <= parsed.port <= _HIGHEST_PORT:
        raise ParameterError(f"HUSHREC_DATABASE_URL: the port must be a number from 1 to {_HIGHEST_PORT}")
    match parsed.get_backend_name():
        case "sqlite" if parsed.database in (None, "", ":memory:"):
            raise ParameterError("HUSHREC_DATABASE_URL: the SQLite database must be a file: sqlite:////path/to/file")
        case "sqlite":
            return SQLite(), parsed
        case "postgresql" | "postgres":
            return Postgres(), parsed.set(drivername="postgresql+psycopg")
        case other:
            raise ParameterError(
                f"HUSHREC_DATABASE_URL: the database {other} is not supported: use SQLite or PostgreSQL"
            )


def database_place(url: str) -> str:
    """Return where the database of a SQLAlchemy URL is, for logs: without user, password and parameters.

    Raises `ParameterError` as `dialect_of` does.
    """
    parsed = dialect_of(url)[1]
    if parsed.get_backend_name() == "sqlite":
        return f"SQLite {parsed.database}"
    host = parsed.host or parsed.query.get("host") or os.environ.get("PGHOST") or "this machine"
    return f"PostgreSQL {parsed.database or ''} on {host}{f':{parsed.port}' if parsed.port else ''}"


def announce(session: Session, task_id: str, *topics: str) -> int:
    """Raise the task's version and, after the commit, wake those that wait for its `topics` in any process.

    Returns the version. A transaction raises it once, also if many writes share it (`GroupCommit`).
    """
    announced = _effects(session).announcements
    for place, one in enumerate(announced):
        if one.task_id == task_id and one.version is not None:
            announced[place] = replace(one, topics=tuple(dict.fromkeys((*one.topics, *topics))))
            return one.version
    version: int = session.execute(_RAISE_VERSION, {"task": task_id}).scalar_one()
    announced.append(Announcement(task_id, topics, version))
    return version


@contextmanager
def savepoint(session: Session) -> Iterator[None]:
    """Undo what the block wrote, and its effects, when it raises. Mapped objects of the block are detached after it."""
    effects, of_block = _effects(session), Effects()
    session.info[_EFFECTS] = of_block
    try:
        with session.begin_nested():
            yield
    finally:
        session.info[_EFFECTS] = effects
        session.expunge_all()
    for one in fields(Effects):
        getattr(effects, one.name).extend(getattr(of_block, one.name))


def progress(session: Session, delivery: Delivery) -> None:
    """After the commit, notify the round engine that a client sent something."""
    _effects(session).deliveries.append(delivery)


def void_token(session: Session, token_hash: str) -> None:
    """After the commit, remove this token from the cache of this process. For others, announce "tokens"."""
    _effects(session).voided.append(token_hash)


def discard(session: Session, key: str | None) -> None:
    """Delete a small body, or after the commit a blob, that no row names any more. Does nothing for None."""
    if key is not None and is_small(key):
        delete_small_body(session, key)
    elif key is not None:
        _effects(session).orphans.append(key)


def count_outcome(session: Session, outcome: str) -> None:
    """After the commit, count the outcome of a round in the metrics."""
    _effects(session).outcomes.append(outcome)


def count_dropouts(session: Session, state: str, clients: int) -> None:
    """After the commit, add the clients whose message did not arrive in a round state to the metrics."""
    if clients > 0:
        _effects(session).dropouts.append((state, clients))


def changed_rows(session: Session, statement: Executable, parameters: Mapping[str, Any] | None = None) -> int:
    """Execute an INSERT, UPDATE or DELETE; return the number of rows that it changed."""
    # SQLAlchemy drops the row count of an INSERT unless it is told to preserve it.
    options = {"synchronize_session": False, "preserve_rowcount": True}
    result = session.execute(statement, parameters, execution_options=options)
    return cast("CursorResult[Any]", result).rowcount


def in_batches(values: Iterable[str]) -> Iterator[list[str]]:
    """Yield the values in ascending order, at most 500 at once: databases limit the number of bound parameters.

    Transactions that change the same rows change them in the same order, so that deadlocks are rare.
    """
    ordered = iter(sorted(values))
    while batch := list(islice(ordered, _MOST_PARAMETERS)):
        yield batch


def _close_returned(_connection: object, record: ConnectionPoolEntry) -> None:
    record.invalidate()


def _effects(session: Session) -> Effects:
    return cast(Effects, session.info[_EFFECTS])
