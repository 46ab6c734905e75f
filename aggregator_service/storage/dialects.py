"""What differs between the databases, behind one interface: how transactions begin, what is tried again, who is told.

`storage.database` is written against `Dialect`; `storage.sqlite` and `storage.postgres` are the two there are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session

from aggregator_service.storage.postgres import Postgres
from aggregator_service.storage.sqlite import SQLite
from protocols.errors import ParameterError

__all__ = ["Candidacy", "Dialect", "dialect_of"]


class Candidacy(Protocol):
    """One process's candidacy to lead: to be the only one that drives rounds over a database. Its calls block."""

    def leads(self, wait: float = 0.0) -> bool:
        """Whether this process leads now: it takes the lead when that is free, or asks whether it still has it.

        It waits `wait` seconds first, or until its connection breaks. False when the database cannot be asked.
        """

    def resign(self) -> None:
        """Leave the lead to others at once; from any thread, also while `leads` waits for an answer."""


class Dialect(Protocol):
    """One kind of database."""

    def create(self, url: URL, connections: int) -> Engine:
        """An engine whose connections are durable and give up waiting in the end."""

    def readers(self, engine: Engine) -> Engine:
        """The same engine for transactions that see one state of the database and change nothing."""

    def writers(self, engine: Engine) -> Engine:
        """The same engine for transactions that write."""

    def one_writer(self) -> AbstractContextManager[object]:
        """Held while this process writes; does nothing where the database takes several writers."""

    def hold_schema(self, connection: Connection) -> None:
        """Until the transaction ends, no other process migrates this database."""

    def is_transient(self, error: DBAPIError) -> bool:
        """Whether the transaction was rolled back for the sake of another one: trying again is right."""

    def tell(self, session: Session, message: str) -> None:
        """When the transaction is committed, other processes that listen hear `message` (at most 4,000 bytes)."""

    def listen(self, url: URL, heard: Callable[[str], None]) -> Callable[[], None]:
        """Call `heard`, in a thread of its own, with what others tell; the answer ends it.

        Messages may be lost when the connection breaks, so listeners look for themselves every now and then.
        """

    def candidacy(self, url: URL) -> Candidacy:
        """This process as one of those that may lead."""


def dialect_of(url: str) -> tuple[Dialect, URL]:
    """The dialect of a SQLAlchemy URL, and the URL with our driver; `ParameterError` for any other database."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ParameterError("the database URL is none: it looks like postgresql://user@host/name") from None
    match parsed.get_backend_name():
        case "sqlite" if parsed.database in (None, "", ":memory:"):
            raise ParameterError("the SQLite database must be a file: sqlite:////path/to/file")
        case "sqlite":
            return SQLite(), parsed
        case "postgresql" | "postgres":
            return Postgres(), parsed.set(drivername="postgresql+psycopg")
        case other:
            raise ParameterError(f"{other} is not a database that is supported: SQLite and PostgreSQL are")
