"""PostgreSQL: several processes, on several machines, over one database. The only module that knows psycopg.

Writers run at READ COMMITTED and lock the rows they decide on (`storage.rounds`), always in the order task, round,
client, so that deadlocks are rare; one that happens all the same is tried again. Readers see one state (REPEATABLE
READ), which PostgreSQL never refuses to a transaction that only reads.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from protocols.errors import ParameterError

if TYPE_CHECKING:
    import psycopg

__all__ = ["Postgres"]

_LOG = logging.getLogger(__name__)
_TRANSIENT: Final = frozenset({"40001", "40P01"})
"""serialization_failure and deadlock_detected: the transaction is rolled back, and may be done again."""
_CHANNEL: Final = "hushrec"
_SCHEMA_LOCK: Final = 0x6875736872656301
"""Key of the advisory lock that a migration holds ("hushrec" and a one)."""
_LEADER_LOCK: Final = 0x68757368
"""First half of the key of the leader's advisory lock ("hush"); the other one is made of the schema's name."""
_POOL_SECONDS: Final = 10
_LISTEN_SECONDS: Final = 0.5
_RECONNECT_SECONDS: Final = 1.0
# A peer that is gone without a word is noticed within seconds, instead of the kernel's quarter of an hour.
_CONNECT: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "hushrec",
}
# What PRAGMA synchronous and busy_timeout are to SQLite: an acknowledged commit is durable even where the cluster's
# default says otherwise, a lock is waited for so long and no longer, and a forgotten transaction holds up nobody.
_PREPARE: Final = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
    "SET lock_timeout = '15s'",
    "SET idle_in_transaction_session_timeout = '10min'",
)
# A leader's session ends within seconds when its machine has vanished, or when its process stands still and asks no
# more (from PostgreSQL 14 on); with the session goes the lock. `rounds.leadership` gives up before that.
_LEADER: Final = (
    "SET tcp_keepalives_idle = 3",
    "SET tcp_keepalives_interval = 1",
    "SET tcp_keepalives_count = 3",
    "SET tcp_user_timeout = 6000",
    "SELECT set_config(name, '8s', false) FROM pg_settings WHERE name = 'idle_session_timeout'",
)
_TAKE: Final = "SELECT pg_try_advisory_lock(%(key)s, hashtext(coalesce(current_schema(), '')))"
# Asked of the locks themselves: behind a pooler that changes sessions, a lock may be another one's.
_STILL: Final = (
    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
    " AND classid = %(key)s AND objid = hashtext(coalesce(current_schema(), ''))::oid AND objsubid = 2)"
)


class Postgres:
    """See `Dialect`."""

    def create(self, url: URL, connections: int) -> Engine:
        """See `Dialect.create`; what the URL's query says wins over our defaults."""
        arguments = {name: value for name, value in _CONNECT.items() if name not in url.query}
        try:
            engine = create_engine(
                url,
                pool_size=connections,
                max_overflow=4,
                pool_timeout=_POOL_SECONDS,
                pool_pre_ping=True,
                hide_parameters=True,
                connect_args=arguments,
            )
        except ModuleNotFoundError:
            raise ParameterError("PostgreSQL needs the extra `postgres`: pip install 'hushrec[postgres]'") from None
        event.listen(engine, "connect", _prepare)
        return engine

    def readers(self, engine: Engine) -> Engine:
        """See `Dialect.readers`."""
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def writers(self, engine: Engine) -> Engine:
        """See `Dialect.writers`. Whoever waited for a row must see what its holder committed: READ COMMITTED."""
        return engine.execution_options(isolation_level="READ COMMITTED")

    def one_writer(self) -> AbstractContextManager[object]:
        """See `Dialect.one_writer`."""
        return nullcontext()

    def hold_schema(self, connection: Connection) -> None:
        """See `Dialect.hold_schema`."""
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})

    def is_transient(self, error: DBAPIError) -> bool:
        """See `Dialect.is_transient`."""
        return getattr(error.orig, "sqlstate", None) in _TRANSIENT

    def tell(self, session: Session, message: str) -> None:
        """See `Dialect.tell`: PostgreSQL delivers at the commit, or not at all.

        Commits that tell something wait for each other, so it is kept to changes that clients wait for.
        """
        session.execute(text("SELECT pg_notify(:channel, :message)"), {"channel": _CHANNEL, "message": message})

    def listen(self, url: URL, heard: Callable[[str], None]) -> Callable[[], None]:
        """See `Dialect.listen`."""
        listener = _Listener(url, heard)
        listener.start()
        return listener.stop

    def candidacy(self, url: URL) -> _Candidate:
        """See `Dialect.candidacy`."""
        return _Candidate(url)


class _Listener:
    """One connection of its own that waits for notifications, and connects again when it breaks."""

    def __init__(self, url: URL, heard: Callable[[str], None]) -> None:
        self._arguments = _arguments(url)
        self._heard = heard
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="database listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        import psycopg

        while not self._over.is_set():
            try:
                with psycopg.connect(**self._arguments, autocommit=True) as connection:
                    connection.execute(f"LISTEN {_CHANNEL}")
                    self._attend(connection)
            except psycopg.Error as error:
                _LOG.warning("what other processes tell is not heard: %s; trying again", type(error).__name__)
                self._over.wait(_RECONNECT_SECONDS)

    def _attend(self, connection: psycopg.Connection[Any]) -> None:
        while not self._over.is_set():
            for notice in connection.notifies(timeout=_LISTEN_SECONDS):
                self._heard(notice.payload)


class _Candidate:
    """See `Candidacy`: a session-level advisory lock on a connection of its own, which goes with its session."""

    def __init__(self, url: URL) -> None:
        self._arguments = _arguments(url) | {"application_name": "hushrec leadership"}
        self._connection: psycopg.Connection[Any] | None = None
        self._asking = threading.Lock()
        self._wire = threading.Lock()  # a descriptor is not closed while it is being shut down
        self._leads = self._silent = False

    def leads(self, wait: float = 0.0) -> bool:
        """See `Candidacy.leads`."""
        import psycopg

        with self._asking:
            try:
                connection = self._connected()
                if wait:  # an idle connection has something to say only when it breaks
                    select.select([connection.fileno()], [], [], wait)
                answer = connection.execute(_STILL if self._leads else _TAKE, {"key": _LEADER_LOCK}).fetchone()
                self._leads = answer is not None and answer[0] is True
                self._silent = False
            except (psycopg.Error, OSError, ValueError) as error:  # ValueError: resigned while it waited
                if not self._silent:
                    _LOG.warning("who leads cannot be asked: %s; trying again", type(error).__name__)
                self._silent = True
                self._drop()
            return self._leads

    def resign(self) -> None:
        """See `Candidacy.resign`. The server ends the session, and frees the lock, when the connection closes."""
        self._silent = True
        with self._wire, suppress(OSError, ValueError):
            if self._connection is not None and not self._connection.closed:
                with socket.socket(fileno=os.dup(self._connection.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)
        if self._asking.acquire(blocking=False):  # otherwise whoever asks finds the connection broken, and drops it
            try:
                self._drop()
            finally:
                self._asking.release()

    def _connected(self) -> psycopg.Connection[Any]:
        import psycopg

        if self._connection is None:
            self._connection = psycopg.connect(**self._arguments, autocommit=True)
            for statement in _LEADER:
                self._connection.execute(statement)
        return self._connection

    def _drop(self) -> None:
        self._leads = False
        with self._wire:
            if self._connection is not None:
                self._connection.close()
            self._connection = None


def _arguments(url: URL) -> dict[str, Any]:
    """What psycopg connects by; what the URL's query says wins over our defaults."""
    arguments = {**_CONNECT, **{name: value for name, value in url.query.items() if isinstance(value, str)}}
    named = {"host": url.host, "port": url.port, "user": url.username, "password": url.password}
    named["dbname"] = url.database
    return arguments | {name: value for name, value in named.items() if value}


def _prepare(connection: psycopg.Connection[Any], _record: object) -> None:
    connection.autocommit = True  # a SET within a transaction would go with its rollback
    for statement in _PREPARE:
        connection.execute(statement)
    connection.autocommit = False
