"""The database: short transactions, and what may happen only after they are committed.

A transaction collects *effects*: topics that waiting clients should hear of, and blobs that nothing names any more.
They take place after the commit; a crash in between is harmless, since waiting clients ask again and orphaned blobs
are collected at the next start.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from sqlalchemy import Connection, CursorResult, Engine, Executable, select, update
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, TimeoutError
from sqlalchemy.orm import Session

from aggregator_service.storage.dialects import Candidacy, dialect_of
from aggregator_service.storage.schema import TaskRow

__all__ = [
    "DATABASE_GONE",
    "Announcement",
    "Database",
    "Delivery",
    "Effects",
    "announce",
    "changed_rows",
    "count_dropouts",
    "count_outcome",
    "discard",
    "progress",
    "void_token",
]

_LOG = logging.getLogger(__name__)
_EFFECTS: Final = "effects"
_ATTEMPTS: Final = 6
_PAUSE: Final = 0.02
_BROADCAST: Final = 3000

DATABASE_GONE: Final = (OperationalError, InterfaceError, TimeoutError)
"""What is raised when the database does not answer, or only too late: trying again later is right."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Announcement:
    """Something about a task changed. `version` is null for mere progress, which only the round engine hears of."""

    task_id: str
    topics: tuple[str, ...]
    version: int | None


@dataclass(frozen=True)
class Delivery:
    """A client delivered its `part` of a round (`storage.stages.Part`)."""

    task_id: str
    round_id: int
    part: str
    client_id: str


@dataclass
class Effects:
    """What follows a commit. voided: hashes of tokens that are good no more. Only counted: outcomes of rounds, and
    (phase, clients that it waited for in vain).
    """

    announcements: list[Announcement] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    voided: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    dropouts: list[tuple[str, int]] = field(default_factory=list)


class Database:
    """One engine, sessions that read and sessions that write. Safe to share between threads.

    `ParameterError` when the URL is of no database that is supported.
    """

    def __init__(self, url: str, connections: int = 16) -> None:
        self._dialect, self._url = dialect_of(url)
        self._engine = self._dialect.create(self._url, connections)
        self._reading = self._dialect.readers(self._engine)
        self._writing = self._dialect.writers(self._engine)
        self._origin = secrets.token_hex(8)  # tells our own broadcasts from those of others
        self.listeners: list[Callable[[Effects], None]] = []

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine."""
        return self._engine

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one state of the database and changes nothing."""
        with Session(self._reading, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction: committed (durably) when the block ends, rolled back when it raises.

        For what locks no rows that others lock too; `transact` is for the rest. A listener that fails afterwards is
        logged: to the caller it must not look as if the commit had failed.
        """
        with Session(self._writing, expire_on_commit=False) as session:
            effects = session.info[_EFFECTS] = Effects()
            with self._dialect.one_writer(), session.begin():
                yield session
                self._broadcast(session, effects)
        for listener in self.listeners:
            try:
                listener(effects)
            except Exception:
                _LOG.exception("a transaction is committed, but what follows it failed")

    def transact(self, work: Callable[[Session], Result]) -> Result:
        """`work` in a transaction, and its result once that is committed.

        `work` is done again when the database rolled the transaction back for the sake of another one (a deadlock, a
        serialization failure): it must do nothing but read and write rows, and make the rows it adds itself.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self.write() as session:
                    return work(session)
            except DBAPIError as error:
                if attempt == _ATTEMPTS or not self._dialect.is_transient(error):
                    raise
                _LOG.info("a transaction gave way to another one and is done again (attempt %d)", attempt)
            time.sleep(_PAUSE * 2**attempt * (0.5 + secrets.randbelow(1000) / 1000))
        raise AssertionError("unreachable")

    def migrating(self, work: Callable[[Connection], None]) -> None:
        """`work` on a connection, in a transaction during which no other process migrates."""
        with self._dialect.one_writer(), self._writing.begin() as connection:
            self._dialect.hold_schema(connection)
            work(connection)

    def listen(self, heard: Callable[[Announcement], None]) -> Callable[[], None]:
        """Call `heard` in a thread with what other processes announce, as far as the database can tell; the answer
        ends it. What is missed is found by looking (`longpoll.Notifier.watch`)."""

        def hear(message: str) -> None:
            origin, task_id, topics, version = json.loads(message)
            if origin != self._origin:
                heard(Announcement(task_id, tuple(topics), version))

        return self._dialect.listen(self._url, hear)

    def candidacy(self) -> Candidacy:
        """This process as one of those that may drive this database's rounds."""
        return self._dialect.candidacy(self._url)

    def tell_progress(self, tasks: Iterable[str]) -> None:
        """Let the round engine of another process look at these tasks, as far as the database can tell it."""
        with self.write() as session:
            for task_id in tasks:
                self._tell(session, Announcement(task_id, (), None))

    def _broadcast(self, session: Session, effects: Effects) -> None:
        for told in effects.announcements:
            if told.version is not None:  # of mere progress the leader is told afterwards (`rounds.herald`)
                self._tell(session, told)

    def _tell(self, session: Session, told: Announcement) -> None:
        message = json.dumps([self._origin, told.task_id, told.topics, told.version])
        if len(message) <= _BROADCAST:
            self._dialect.tell(session, message)

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


def progress(session: Session, delivery: Delivery) -> None:
    """After the commit, let the round engine look at this task."""
    effects = _effects(session)
    effects.announcements.append(Announcement(delivery.task_id, (), None))
    effects.deliveries.append(delivery)


def void_token(session: Session, token_hash: str) -> None:
    """After the commit, nobody in this process takes this token any more; announce "tokens" for the others."""
    _effects(session).voided.append(token_hash)


def discard(session: Session, key: str | None) -> None:
    """After the commit, delete a blob that no row names any more."""
    if key is not None:
        _effects(session).orphans.append(key)


def count_outcome(session: Session, outcome: str) -> None:
    """After the commit, count a round that ended."""
    _effects(session).outcomes.append(outcome)


def count_dropouts(session: Session, phase: str, clients: int) -> None:
    """After the commit, count the clients that a phase waited for in vain."""
    if clients > 0:
        _effects(session).dropouts.append((phase, clients))


def changed_rows(session: Session, statement: Executable, parameters: Mapping[str, Any] | None = None) -> int:
    """Execute an INSERT, UPDATE or DELETE and say how many rows it met: the guard of every optimistic change."""
    options = {"synchronize_session": False, "preserve_rowcount": True}  # which is else not kept of an INSERT
    result = session.execute(statement, parameters, execution_options=options)
    return cast("CursorResult[Any]", result).rowcount


def _effects(session: Session) -> Effects:
    return cast(Effects, session.info[_EFFECTS])
