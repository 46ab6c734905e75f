"""The interface for what differs between databases: start of transactions, retries, notifications, leadership.

`storage.database` uses `Dialect`; `storage.sqlite` and `storage.postgres` implement it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session

from aggregator_service.storage.postgres import Postgres
from aggregator_service.storage.sqlite import SQLite
from protocols.errors import ParameterError

__all__ = ["Candidacy", "Dialect", "database_place", "dialect_of"]

_HIGHEST_PORT: Final = 65_535


class Candidacy(Protocol):
    """A process's candidacy to be the leader: the only process that drives the rounds of a database. Calls block."""

    def leads(self, wait: float = 0.0) -> bool:
        """Try to acquire the leader lock, or check that this process still has it; return whether it does.

        Waits `wait` seconds first, or until its connection breaks. False when the database does not answer.
        """

    def resign(self) -> None:
        """Release the lock at once. May be called in any thread, also while `leads` waits for an answer."""


class Dialect(Protocol):
    """The operations that differ between SQLite and PostgreSQL."""

    @property
    def has_others(self) -> bool:
        """Whether other processes may use the database, which are notified of changes."""

    def create(self, url: URL, connections: int) -> Engine:
        """Return an engine whose commits are durable and whose waits have a time limit."""

    def readers(self, engine: Engine) -> Engine:
        """Return the engine for read-only transactions that see one state of the database."""

    def writers(self, engine: Engine) -> Engine:
        """Return the engine for transactions that write."""

    def one_writer(self) -> AbstractContextManager[object]:
        """Return a lock to hold while this process writes; it does nothing when the database allows several writers."""

    def lock_schema(self, connection: Connection) -> None:
        """Prevent other processes from migrating this database until the transaction ends."""

    def is_transient(self, error: DBAPIError) -> bool:
        """Whether the transaction was rolled back because of another one, so that it can be tried again."""

    def time(self, session: Session) -> float | None:
        """Return the database's time in seconds since the epoch; None if its clock is this machine's."""

    def notify(self, session: Session, message: str) -> None:
        """Send `message` (at most 4,000 bytes) to the processes that listen, when the transaction is committed."""

    def listen(self, url: URL, on_message: Callable[[str], None]) -> Callable[[], None]:
        """Call `on_message`, in a thread of its own, with each message; return a function that stops it.

        Messages are lost while the connection is broken, so listeners must also query the database regularly.
        """

    def candidacy(self, url: URL) -> Candidacy:
        """Return this process's candidacy for the leadership."""


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
