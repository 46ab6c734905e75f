"""One connection for one transaction after the other.

To take a connection from the pool, to begin an ORM session's transaction, and to reset and return the connection takes
several times as long as the two or three statements of a short request. A `KeptConnection` does so once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from aggregator_service.storage.prepared import use_connection

__all__ = ["KeptConnection"]

_IDLE_SECONDS: Final = 1.0
"""A connection that was not used for this long is returned: the pool checks it before the next use."""


class KeptConnection:
    """Transactions over one connection of `engine`, which is taken with the first. One thread at a time may use it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session: Session | None = None
        self._connection: Connection | None = None
        self._used = 0.0

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """Return a session in a transaction: committed at the end of the block, rolled back when it raises.

        After an exception the connection is returned to the pool, which finds out whether it still works.
        """
        session, connection = self._ready()
        try:
            with connection.begin():
                use_connection(session, connection)
                yield session
                if session.in_transaction():  # a mapped object was used: this writes what is pending, and no more
                    session.commit()
        except BaseException:
            self.close()
            raise
        self._used = time.monotonic()

    def close(self) -> None:
        """Return the connection to the pool. The next transaction takes one again."""
        session, connection = self._session, self._connection
        self._session = self._connection = None
        if session is not None:
            session.close()
        if connection is not None:
            connection.close()

    def _ready(self) -> tuple[Session, Connection]:
        """Return the session, without what it holds of earlier transactions, and the connection."""
        if time.monotonic() - self._used > _IDLE_SECONDS:
            self.close()
        if self._session is None or self._connection is None:
            self._connection = self._engine.connect()
            self._session = Session(self._connection, expire_on_commit=False, join_transaction_mode="rollback_only")
        if self._session.identity_map:
            self._session.expunge_all()
        self._session.info.clear()
        return self._session, self._connection
