"""Group commit: small writes of many requests share one transaction, and so one sync of the disk.

While one group is being committed, the writes that arrive wait, and the next group takes all of them. Each caller gets
its result only after the commit, so what is acknowledged is durable, exactly as with a transaction of its own.

The commit itself costs more than a write. Clients whose writes were committed together tend to send their next ones at
the same time, so a group waits for up to 2 ms until it has as many writes as were in flight at the end of the last one.
Writes that come one after the other never wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sqlalchemy.orm import Session

from aggregator_service.storage.database import Database
from aggregator_service.storage.writer_thread import WriterThread

__all__ = ["GroupCommit"]

_MOST: Final = 64
"""Most writes of one transaction: it bounds how long a SQLite database is locked."""
_GATHER_SECONDS: Final = 0.002
"""Longest time that a group waits for more writes: less than a commit takes on most disks."""
Result = TypeVar("Result")


@dataclass(eq=False)
class _Write:
    """A write that waits for its group. failure: what it raised, if it did."""

    database: Database
    work: Callable[[Session], Any]
    future: asyncio.Future[Any]
    context: Context
    result: Any = None
    failure: BaseException | None = None


@dataclass
class GroupCommit:
    """Commits small writes in groups. Use it in the event loop of one process."""

    _waiting: list[_Write] = field(default_factory=list)
    _committing: asyncio.Task[None] | None = None
    _expected: int = 1
    """Writes that were in flight at the end of the last commit: in its group, or waiting for the next one."""
    _complete: asyncio.Event = field(default_factory=asyncio.Event)
    _thread: WriterThread = field(default_factory=WriterThread)

    async def run(self, database: Database, work: Callable[[Session], Result]) -> Result:
        """Call `work` in a transaction that it may share with others; return its result after the commit.

        `work` must be fit for `Database.transact`: it only reads and writes rows, and may be called again. It uses
        SQL statements, not mapped objects, because the session may be shared. When a write of the group raises, the
        group is rolled back and each write gets a transaction of its own. Raises what `work` or the commit raises.
        """
        write = _Write(database, work, asyncio.get_running_loop().create_future(), copy_context())
        self._waiting.append(write)
        if self._committing is None:
            self._begin()
        elif len(self._waiting) >= self._expected:
            self._complete.set()
        return await write.future  # type: ignore[no-any-return]

    def close(self) -> None:
        """Wait for the commit in progress, and end the thread that commits."""
        self._thread.close()

    def _begin(self) -> None:
        """Start to commit what waits, in a copy of the context of the request that has waited longest."""
        self._committing = asyncio.create_task(self._commit(), context=self._waiting[0].context.copy())

    async def _gather(self) -> None:
        """Wait for as many writes as were in flight before."""
        if _GATHER_SECONDS and len(self._waiting) < self._expected:
            self._complete.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_GATHER_SECONDS):
                    await self._complete.wait()

    async def _commit(self) -> None:
        await self._gather()
        group, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
        try:
            await self._thread.run(_commit, group)
        except BaseException as error:
            for write in group:
                write.failure = write.failure or error
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            _resolve(group)
            self._expected = min(_MOST, len(group) + len(self._waiting))
            self._committing = None
            if self._waiting:
                self._begin()


def _resolve(group: list[_Write]) -> None:
    for write in group:
        if write.future.done():  # its request was cancelled
            continue
        if write.failure is None:
            write.future.set_result(write.result)
        elif isinstance(write.failure, asyncio.CancelledError):
            write.future.cancel()
        else:
            write.future.set_exception(write.failure)


def _commit(group: list[_Write]) -> None:
    """Execute a group; set the result or the failure of each write."""
    if len(group) == 1:
        _commit_alone(group[0])
        return
    ready = False
    try:
        with group[0].database.write() as session:
            for write in group:
                write.result = write.context.run(write.work, session)
            ready = True
    except Exception as error:
        if not ready or group[0].database.is_transient(error):  # rolled back for certain
            for write in group:
                _commit_alone(write)
        else:  # the commit itself failed: it may have taken effect, so nothing may be tried again
            for write in group:
                write.failure = error


def _commit_alone(write: _Write) -> None:
    try:
        write.result = write.context.run(write.database.transact, write.work)
    except Exception as error:
        write.failure = error
