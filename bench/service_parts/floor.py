"""What an upload costs at least: one signature, and a row that is durable before the answer.

The bare server does this work in routes of its own, with as little code as possible around it, so that a target of
bench/service.py can be compared with the cost that no service in this framework avoids. Nothing is imported from the
service: a change of the service does not move the figure.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["DATABASE", "DurableStore", "SignedMessage"]

DATABASE: Final = "floor.db"
"""Name of the store's file in its folder."""
_MESSAGE_BYTES: Final = 400
"""About the length of what a client signs for a request."""
_GATHER_SECONDS: Final = 0.002
_SETUP: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "CREATE TABLE bodies (key TEXT PRIMARY KEY, body BLOB)",
    "CREATE TABLE contributions (round INTEGER, client TEXT, digest TEXT, length INTEGER, time REAL, key TEXT,"
    " PRIMARY KEY (round, client))",
)
_INSERT_BODY: Final = "INSERT INTO bodies VALUES (?, ?)"
_INSERT_CONTRIBUTION: Final = "INSERT INTO contributions VALUES (1, ?, ?, ?, ?, ?)"


class SignedMessage:
    """A message that is signed once, with a new key, and then verified any number of times."""

    def __init__(self) -> None:
        key = Ed25519PrivateKey.generate()
        self._message = bytes(_MESSAGE_BYTES)
        self._public, self._signature = key.public_key(), key.sign(self._message)

    def verify(self) -> None:
        """Verify the signature; nothing is remembered, so that every call costs the same."""
        self._public.verify(self._signature, self._message)


@dataclass(eq=False)
class _Write:
    """A body that waits for its commit, and the future that its request awaits."""

    body: bytes
    digest: str
    committed: asyncio.Future[None]


_Group = tuple[asyncio.AbstractEventLoop, list[_Write]]


class DurableStore:
    """Bodies and their contributions in a SQLite database, committed in groups by one thread.

    Groups form as in the service (aggregator_service/storage/group_commit.py): while one is committed, the writes that
    arrive wait for the next one, which waits for up to 2 ms until it has as many as were in flight at the last commit.
    The file and the thread begin with the first write: a process that stores nothing has neither.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / DATABASE
        self._waiting: list[_Write] = []
        self._expected = 1
        self._committing = False
        self._timer: asyncio.TimerHandle | None = None
        self._groups: SimpleQueue[_Group | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def store(self, body: bytes, digest: str) -> None:
        """Store a body as the contribution of a new client; return after the commit, raise what it raises."""
        write = _Write(body, digest, asyncio.get_running_loop().create_future())
        self._waiting.append(write)
        if not self._committing:
            self._gather()
        await write.committed

    def close(self) -> None:
        """Wait for the groups that were begun, and end the thread."""
        if self._thread is not None:
            self._groups.put(None)
            self._thread.join()
            self._thread = None

    def _gather(self) -> None:
        """Commit what waits: at once if it is as many as expected, else 2 ms after the first of them at the latest."""
        if len(self._waiting) >= self._expected:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._execute, name="floor", daemon=True)
            self._thread.start()
        group, self._waiting, self._committing = self._waiting, [], True
        self._groups.put((asyncio.get_running_loop(), group))

    def _end(self, group: list[_Write], failure: Exception | None) -> None:
        """Report the end of a commit to the requests of its group, and begin the next one."""
        for write in group:
            if write.committed.done():  # its request was cancelled
                continue
            if failure is None:
                write.committed.set_result(None)
            else:
                write.committed.set_exception(failure)
        self._expected = len(group) + len(self._waiting)
        self._committing = False
        if self._waiting:
            self._gather()

    def _execute(self) -> None:
        """Commit one group after the other, until there is a None."""
        connection: sqlite3.Connection | None = None
        while (found := self._groups.get()) is not None:
            loop, group = found
            failure: Exception | None = None
            try:
                connection = connection or _opened(self._file)
                _commit(connection, group)
            except Exception as error:
                failure = error
            with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._end, group, failure)
        if connection is not None:
            connection.close()


def _opened(file: Path) -> sqlite3.Connection:
    """A connection to a new database whose transactions are written out; commits are durable."""
    connection = sqlite3.connect(file, isolation_level=None)
    for statement in _SETUP:
        connection.execute(statement)
    return connection


def _commit(connection: sqlite3.Connection, group: list[_Write]) -> None:
    """Two rows for each write of the group, in one transaction."""
    with connection:  # commits, or rolls back
        connection.execute("BEGIN IMMEDIATE")
        for write in group:
            key = token_hex(16)
            connection.execute(_INSERT_BODY, (key, write.body))
            row = token_hex(10), write.digest, len(write.body), time.time(), key
            connection.execute(_INSERT_CONTRIBUTION, row)
