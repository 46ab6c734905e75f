"""What differs between databases: start of transactions, retries, notifications, leadership; and how SQLite does it.

`storage.database` uses a `Dialect`: `SQLite`, or that of `storage.postgres`. `database_cause` says what an error of
either means for an operator, without names, values or passwords.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final, Protocol

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError, TimeoutError
from sqlalchemy.orm import Session

from aggregator_service.storage.directory import create_for_owner


class Candidacy(Protocol):
    """A process's candidacy to be the leader: the only process that drives the rounds of a database. Calls block."""

    def leads(self, wait: float = 0.0) -> bool:
        """Try to acquire the leader lock, or check that this process still has it; return whether it does.

        Waits `wait` seconds first, or until its connection breaks. False when the database does not answer.
        """

    def resign(self) -> None:
        """Release the lock at once. May be called in any thread, also while `leads` waits for an answer."""


class Dialect:
    """The operations that differ between SQLite and PostgreSQL; by default those of a database on one machine."""

    def create(self, url: URL, connections: int) -> Engine:
        """Return an engine whose commits are durable and whose waits have a time limit."""
        raise NotImplementedError

    def readers(self, engine: Engine) -> Engine:
        """Return the engine for read-only transactions that see one state of the database."""
        return engine

    def single_readers(self, engine: Engine) -> Engine:
        """Return the engine for single statements that read: none begins a transaction."""
        raise NotImplementedError

    def writers(self, engine: Engine) -> Engine:
        """Return the engine for transactions that write."""
        raise NotImplementedError

    def one_writer(self) -> AbstractContextManager[object]:
        """Return a lock to hold while this process writes; it does nothing when the database allows several writers."""
        return nullcontext()

    def lock_schema(self, connection: Connection) -> None:
        """Prevent other processes from migrating this database until the transaction ends."""

    def is_transient(self, error: DBAPIError) -> bool:
        """Whether the transaction was rolled back because of another one, so that it can be tried again."""
        return False

    def time(self, session: Session) -> float | None:
        """Return the database's time in seconds since the epoch; None if its clock is this machine's."""
        return None

    def notify(self, session: Session, message: str) -> None:
        """Send `message` (at most 4,000 bytes) to the processes that listen, when the transaction is committed."""

    def listen(self, url: URL, on_message: Callable[[str], None]) -> Callable[[], None]:
        """Call `on_message`, in a thread of its own, with each message; return a function that stops it.

        Messages are lost while the connection is broken, so listeners must also query the database regularly.
        """
        return lambda: None

    def candidacy(self, url: URL) -> Candidacy:
        """Return this process's candidacy for the leadership."""
        raise NotImplementedError


# --- SQLite ----------------------------------------------------------------------------------------------------------

_BEGIN: Final = "hushrec_begin"
"""Execution option: the statement that begins a transaction, "" for none."""
_BUSY_SECONDS: Final = 15.0
"""Time limit of a writer for the database's lock, and before that for its turn in this process."""
# A small page cache: each connection has its own, and the operating system caches the file anyway.
_PRAGMAS: Final = (
    *("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=4000"),
    *("foreign_keys=ON", f"busy_timeout={_BUSY_SECONDS * 1000:.0f}", "cache_size=-512"),
)


class SQLite(Dialect):
    """One file on one machine. In WAL mode readers never wait; there is one writer at a time.

    There are no row locks: BEGIN IMMEDIATE locks the whole database, also for a migration.
    A transaction sees one state from its first statement on. A writer gets its lock before its transaction begins, so
    that none is rolled back because of another one. Other processes of this machine query the database for changes.
    turn_seconds: time limit of a writer for its turn. Without it, the last of many writers would wait for the time
    limits of all others while another program locks the database.
    """

    def __init__(self, turn_seconds: float = _BUSY_SECONDS) -> None:
        # A lock in the process is fair, and faster than SQLite's busy handler.
        self._lock, self._turn_seconds = threading.Lock(), turn_seconds

    def create(self, url: URL, connections: int) -> Engine:
        if url.database and not url.database.startswith("file:"):
            create_for_owner(Path(url.database))  # SQLite gives its other files to the owner of this one
        engine = create_engine(url, pool_size=connections, max_overflow=6, hide_parameters=True)
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        return engine

    def single_readers(self, engine: Engine) -> Engine:
        return engine.execution_options(**{_BEGIN: ""})

    def writers(self, engine: Engine) -> Engine:
        return engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})

    @contextmanager
    def one_writer(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=self._turn_seconds):
            raise OperationalError("BEGIN IMMEDIATE", None, sqlite3.OperationalError("database is locked"))
        try:
            yield
        finally:
            self._lock.release()

    def candidacy(self, url: URL) -> _Candidate:
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
    statement = connection.get_execution_options().get(_BEGIN, "BEGIN")
    if statement:
        connection.exec_driver_sql(statement)


# --- what errors mean ------------------------------------------------------------------------------------------------

_URL: Final = "HUSHREC_DATABASE_URL"
DISK_FULL: Final = "the disk of the database is full: free space there"
_BY_STATE: Final = {
    "53100": DISK_FULL,
    "53300": "the database has no connection left: raise its max_connections, or lower HUSHREC_THREADS",
    "55P03": "another session of the database keeps a lock (pg_locks shows which): it ends with its transaction",
    "25P03": "the database ended a transaction that stood still: this process hung",
    "40001": "the transaction conflicts with another one: try again",
    "40P01": "the transaction and another one waited for each other: try again",
    "42501": f"the role of {_URL} lacks a permission: let it own the database",
    "25006": f"the database is read-only: name its primary server in {_URL}",
}
"""SQLSTATE: cause and remedy."""
_PASSWORD: Final = f"check the user and the password in {_URL}, PGPASSWORD or the file that PGPASSFILE names"
_BY_TEXT: Final = (
    ("password authentication failed", f"the database refuses the password: {_PASSWORD}"),
    ("no password supplied", f"the database asks for a password, and none is set: {_PASSWORD}"),
    (r"pg_hba\.conf", "the database refuses this machine, user or lack of TLS: see its pg_hba.conf"),
    (
        'database ".*" does not exist',
        f"the database does not exist: create it (createdb), or correct its name in {_URL}",
    ),
    ('role ".*" does not exist', f"the role (user) does not exist in the database: create it, or correct it in {_URL}"),
    ("too many|remaining connection slots", _BY_STATE["53300"]),
    ("the database system is", "the database is starting or stopping: try again"),
    ("not currently accepting connections", "the database accepts no connections at present: try again"),
    ("root certificate", f"the file of CA certificates cannot be read: check sslrootcert in {_URL}, or PGSSLROOTCERT"),
    ("certificate", f"the TLS certificate of the database is not trusted: check sslrootcert and the host in {_URL}"),
    ("does not support ssl", f"the database does not speak TLS: turn it on there, or change sslmode in {_URL}"),
    ("invalid sslmode", f"sslmode in {_URL} is not one of PostgreSQL's"),
    ("resolve host", f"the host name of the database is unknown: correct it in {_URL}, or check the name service"),
    ("translate host", f"the host name of the database is unknown: correct it in {_URL}, or check the name service"),
    ("connection refused", f"nothing listens at the host and port of {_URL}: start the database, or correct them"),
    ("on socket", f"no database listens at that socket: start it, or name a host in {_URL}"),
    ("no route to host", f"the host of {_URL} cannot be reached: check host, network and firewall"),
    ("network is unreachable", f"the host of {_URL} cannot be reached: check host, network and firewall"),
    ("timeout expired", f"the host of {_URL} does not answer: check host, port and firewall"),
    ("received invalid response", f"what answers at the host and port of {_URL} is no PostgreSQL: correct them"),
    ("invalid (uri query parameter|connection option)", f"{_URL} has a parameter that PostgreSQL does not know"),
    ("server closed the connection", "the database closed the connection: it restarts, or ended the session"),
    ("terminating connection", "the database closed the connection: it restarts, or ended the session"),
    ("database or disk is full|no space left", DISK_FULL),
    ("unable to open database file", f"the SQLite file of {_URL} or --data-dir cannot be opened: is its folder there?"),
    ("readonly database", "the SQLite file, or its folder, is not writable by this user: correct its owner"),
    ("file is not a database", f"the file that {_URL} or --data-dir names is no SQLite database"),
    ("disk i/o error", "the disk of the SQLite file does not work (I/O error)"),
    ("database is locked", "another process holds the SQLite file for too long: try again"),
)
"""Pattern in the driver's text (lower case): cause and remedy. PostgreSQL gives no SQLSTATE for a failed connection."""


def database_cause(error: Exception) -> str:
    """Return cause and remedy of an error. For an unknown cause: the driver's type, and what to check.

    The driver's own text is not part of it: it may contain names of hosts and users, and values.
    """
    if isinstance(error, TimeoutError):
        return "all connections to the database are in use: raise HUSHREC_THREADS, or add a replica"
    driver = getattr(error, "orig", None) or error
    known = _BY_STATE.get(str(getattr(driver, "sqlstate", None)))
    if known is not None:
        return known
    text = str(driver).lower()
    for pattern, cause in _BY_TEXT:
        if re.search(pattern, text):
            return cause
    return f"database error ({type(driver).__name__}): check {_URL} and that the database runs"
