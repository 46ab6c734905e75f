"""PostgreSQL: one database for several processes on several machines. The only module that imports psycopg.

Writers run at READ COMMITTED and lock the rows they depend on (`storage.round_rows`), always in the order task, round,
client, so that deadlocks are rare; a transaction that meets one is tried again. Readers run at REPEATABLE READ and see
one state; PostgreSQL never aborts a read-only transaction at this level.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from aggregator_service.storage.dialects import Dialect
from protocols.errors import missing_extra

if TYPE_CHECKING:
    import psycopg

_LOG = logging.getLogger(__name__)
_STOOD_STILL: Final = "25P03"
"""idle_in_transaction_session_timeout: this process hung, and its session was ended."""
_TRANSIENT: Final = frozenset({"40001", "40P01", _STOOD_STILL})
"""With serialization_failure and deadlock_detected: the transaction is rolled back and can be tried again."""
_CHANNEL: Final = "hushrec"
_SCHEMA_LOCK: Final = 0x6875736872656301
"""Key of the advisory lock of migrations: "hushrec" and a 1."""
_LEADER_LOCK: Final = 0x68757368
"""First half of the key of the leader's advisory lock: "hush". The second half is a hash of the schema's name."""
_POOL_SECONDS: Final = 10
_LISTEN_SECONDS: Final = 0.5
_RECONNECT_SECONDS: Final = 1.0
# Detect a peer that disappeared within seconds; the kernel's default is a quarter of an hour.
_CONNECT: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "hushrec",
}
# As PRAGMA synchronous and busy_timeout for SQLite: commits are durable even when the cluster's default is not, and
# waiting for a lock has a time limit. PostgreSQL ends the transaction of a process that hangs, or takes no answer, as
# soon as a leader's session: otherwise the next leader would wait for its locks. Whoever waits for one waits longer.
_PREPARE: Final = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
    "SET lock_timeout = '15s'",
    "SET idle_in_transaction_session_timeout = '8s'",
    "SET tcp_user_timeout = 8000",
)
# The session of a leader ends within seconds when its machine disappears, or when its process hangs and sends no query
# (from PostgreSQL 14 on). The lock ends with the session. `rounds.leadership` stops leading before that.
_LEADER: Final = (
    "SET tcp_keepalives_idle = 3",
    "SET tcp_keepalives_interval = 1",
    "SET tcp_keepalives_count = 3",
    "SET tcp_user_timeout = 6000",
    "SELECT set_config(name, '8s', false) FROM pg_settings WHERE name = 'idle_session_timeout'",
)
_ACQUIRE: Final = "SELECT pg_try_advisory_lock(%(key)s, hashtext(coalesce(current_schema(), '')))"
# Reads the table of locks: behind a pooler that changes sessions, another session may hold the lock.
_IS_HELD: Final = (
    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
    " AND classid = %(key)s AND objid = hashtext(coalesce(current_schema(), ''))::oid AND objsubid = 2)"
)


class Postgres(Dialect):
    def create(self, url: URL, connections: int) -> Engine:
        """See `Dialect.create`. Parameters in the URL's query override our defaults."""
        arguments = {name: value for name, value in _CONNECT.items() if name not in url.query}
        try:
            engine = create_engine(
                url,
                pool_size=connections,
                max_overflow=6,
                pool_timeout=_POOL_SECONDS,
                pool_pre_ping=True,
                hide_parameters=True,
                connect_args=arguments,
            )
        except ModuleNotFoundError:
            raise missing_extra("PostgreSQL needs", "postgres") from None
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "handle_error", _as_lost_connection)
        return engine

    def readers(self, engine: Engine) -> Engine:
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def single_readers(self, engine: Engine) -> Engine:
        """See `Dialect.single_readers`. BEGIN and ROLLBACK would cost as much as the statement between them."""
        return engine.execution_options(isolation_level="AUTOCOMMIT")

    def writers(self, engine: Engine) -> Engine:
        """See `Dialect.writers`. At READ COMMITTED a transaction that waited for a row sees its committed change."""
        return engine.execution_options(isolation_level="READ COMMITTED")

    def lock_schema(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})

    def is_transient(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) in _TRANSIENT

    def time(self, session: Session) -> float:
        return float(session.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def notify(self, session: Session, message: str) -> None:
        """See `Dialect.notify`: PostgreSQL sends the message at the commit.

        It runs commits with notifications one after the other, so only changes that clients wait for are sent.
        """
        session.execute(text("SELECT pg_notify(:channel, :message)"), {"channel": _CHANNEL, "message": message})

    def listen(self, url: URL, on_message: Callable[[str], None]) -> Callable[[], None]:
        stopped = threading.Event()
        thread = threading.Thread(
            target=_listen, args=(_arguments(url), on_message, stopped), name="database listener", daemon=True
        )

        def stop() -> None:
            stopped.set()
            thread.join()

        thread.start()
        return stop

    def candidacy(self, url: URL) -> _Candidate:
        return _Candidate(url)


def _listen(arguments: dict[str, Any], on_message: Callable[[str], None], stopped: threading.Event) -> None:
    """Receive notifications on a connection of its own until `stopped`; connects again when it breaks."""
    import psycopg

    while not stopped.is_set():
        try:
            with psycopg.connect(**arguments, autocommit=True) as connection:
                connection.execute(f"LISTEN {_CHANNEL}")
                while not stopped.is_set():
                    for notice in connection.notifies(timeout=_LISTEN_SECONDS):
                        on_message(notice.payload)
        except psycopg.Error as error:
            _LOG.warning("cannot receive notifications of other processes: %s; reconnecting", type(error).__name__)
            stopped.wait(_RECONNECT_SECONDS)


class _Candidate:
    """See `Candidacy`: a session-level advisory lock on a connection of its own."""

    def __init__(self, url: URL) -> None:
        self._arguments = _arguments(url) | {"application_name": "hushrec leadership"}
        self._connection: psycopg.Connection[Any] | None = None
        self._query_lock = threading.Lock()
        self._close_lock = threading.Lock()  # do not close a descriptor while it is shut down
        self._leads = self._failure_logged = False

    def leads(self, wait: float = 0.0) -> bool:
        import psycopg

        with self._query_lock:
            try:
                connection = self._connected()
                if wait:  # an idle connection becomes readable only when it breaks
                    select.select([connection.fileno()], [], [], wait)
                answer = connection.execute(_IS_HELD if self._leads else _ACQUIRE, {"key": _LEADER_LOCK}).fetchone()
                self._leads = answer is not None and answer[0] is True
                self._failure_logged = False
            except (psycopg.Error, OSError, ValueError) as error:  # ValueError: `resign` closed it meanwhile
                if not self._failure_logged:
                    _LOG.warning("cannot query the leader lock: %s; trying again", type(error).__name__)
                self._failure_logged = True
                self._drop_connection()
            return self._leads

    def resign(self) -> None:
        """See `Candidacy.resign`. Closing the connection ends the session, which releases the lock."""
        self._failure_logged = True
        with self._close_lock, suppress(OSError, ValueError):
            if self._connection is not None and not self._connection.closed:
                with socket.socket(fileno=os.dup(self._connection.fileno())) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
        if self._query_lock.acquire(blocking=False):  # otherwise the thread in `leads` finds the connection broken
            try:
                self._drop_connection()
            finally:
                self._query_lock.release()

    def _connected(self) -> psycopg.Connection[Any]:
        import psycopg

        if self._connection is None:
            self._connection = psycopg.connect(**self._arguments, autocommit=True)
            for statement in _LEADER:
                self._connection.execute(statement)
        return self._connection

    def _drop_connection(self) -> None:
        self._leads = False
        with self._close_lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None


def _arguments(url: URL) -> dict[str, Any]:
    """Return the connection arguments of psycopg. Parameters in the URL's query override our defaults."""
    given = {name: value for name, value in url.query.items() if isinstance(value, str)}
    return {**_CONNECT, **given, **url.translate_connect_args(username="user", database="dbname")}


def _prepare(connection: psycopg.Connection[Any], _record: object) -> None:
    connection.autocommit = True  # a rollback would undo a SET in its transaction
    for statement in _PREPARE:
        connection.execute(statement)
    connection.autocommit = False


def _as_lost_connection(context: ExceptionContext) -> OperationalError | None:
    """Return the error of a session that was ended as that of a lost connection; psycopg calls it an internal error."""
    error = context.original_exception
    if getattr(error, "sqlstate", None) != _STOOD_STILL:
        return None
    return OperationalError(context.statement, None, error, hide_parameters=True)
