"""Group commit: small writes of many requests share one transaction, and so one sync of the disk.

While one group is being committed, the writes that arrive wait, and the next group takes all of them. Each caller gets
its result only after the commit, so what is acknowledged is durable, exactly as with a transaction of its own.

The commit itself costs more than a write. Clients whose writes were committed together tend to send their next ones at
the same time, so a group waits for up to 2 ms until it has as many writes as were in flight at the end of the last one.
Writes that come one after the other never wait.

Writes of one kind (`JointWork`) are executed together, with one call of the driver for each statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from aggregator_service.storage.database import Database
from aggregator_service.storage.writer_thread import WriterThread

__all__ = ["GroupCommit", "JointWork"]

_MOST: Final = 64
"""Most writes of one transaction: it bounds how long a SQLite database is locked."""
_GATHER_SECONDS: Final = 0.002
"""Longest time that a group waits for more writes: less than a commit takes on most disks."""
Result = TypeVar("Result")


class JointWork(Generic[Result]):
    """A write of a kind of which a group executes several together."""

    def __call__(self, session: Session) -> Result:
        """Execute this write alone."""
        raise NotImplementedError

    @classmethod
    def together(cls, session: Session, works: Sequence[Self]) -> Sequence[Result]:
        """Execute several writes; return their results in order.

        Raises an exception if that is not possible: the group is rolled back, and each write is executed alone.
        """
        raise NotImplementedError


@dataclass(eq=False)
class _Write:
    """A write that waits for its group. failure: what it raised, if it did."""

    work: Callable[[Session], Any]
    future: asyncio.Future[Any]
    context: Context
    result: Any = None
    failure: BaseException | None = None


class GroupCommit:
    """Commits small writes to `database` in groups. Use it in one event loop."""

    def __init__(self, database: Database) -> None:
        self._database, self._kept = database, database.keep_connection()
        self._waiting: list[_Write] = []
        self._expected = 1  # writes that were in flight at the end of the last commit: in its group, or waiting
        self._begins = self._committing = False  # whether a commit is scheduled, or in progress
        self._timer: asyncio.TimerHandle | None = None
        self._thread = WriterThread()

    async def run(self, work: Callable[[Session], Result]) -> Result:
        """Call `work` in a transaction that it may share with others; return its result after the commit.

        `work` must be fit for `Database.transact`: it only reads and writes rows, and may be called again. It uses
        SQL statements, not mapped objects, because the session may be shared. When a write of the group raises, the
        group is rolled back and each write gets a transaction of its own. Raises what `work` or the commit raises.
        """
        write = _Write(work, asyncio.get_running_loop().create_future(), copy_context())
        self._waiting.append(write)
        if not self._committing:
            self._gather()
        return await write.future  # type: ignore[no-any-return]

    def close(self) -> None:
        """Wait for the commit in progress, and end the thread that commits."""
        self._thread.close()
        self._kept.close()

    def _gather(self) -> None:
        """Commit soon if as many writes wait as were in flight before, else when they do, or after 2 ms."""
        if self._begins:
            return
        if len(self._waiting) >= self._expected or not _GATHER_SECONDS:
            self._begins = True
            if self._timer is not None:
                self._timer.cancel()
            asyncio.get_running_loop().call_soon(self._begin, context=self._context())
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_GATHER_SECONDS, self._begin, context=self._context())

    def _context(self) -> Context:
        """Return a copy of the context of the request that has waited longest."""
        return self._waiting[0].context.copy()

    def _begin(self) -> None:
        """Give a group to the thread."""
        self._timer, self._begins, self._committing = None, False, True
        context = self._context()
        group, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
        self._thread.submit(partial(context.run, self._commit, group), partial(self._end, group))

    def _end(self, group: list[_Write], failure: BaseException | None) -> None:
        """Answer the writes of a group, and commit the next one."""
        for write in group:
            write.failure = write.failure or failure
        _resolve(group)
        self._expected = min(_MOST, len(group) + len(self._waiting))
        self._committing = False
        if self._waiting:
            self._gather()

    def _commit(self, group: list[_Write]) -> None:
        """Execute a group in the thread; set the result or the failure of each write."""
        ready = False
        try:
            with self._database.write_over(self._kept) as session:
                _execute(group, session)
                ready = True
        except Exception as error:
            if len(group) == 1 and not isinstance(error, DBAPIError):  # a refusal: it would be the same again
                group[0].failure = error
            elif not ready or self._database.is_transient(error):  # rolled back for certain
                for write in group:
                    self._commit_alone(write)
            else:  # the commit itself failed: it may have taken effect, so nothing may be tried again
                for write in group:
                    write.failure = error

    def _commit_alone(self, write: _Write) -> None:
        try:
            write.result = write.context.run(self._database.transact, write.work)
        except Exception as error:
            write.failure = error


def _execute(group: list[_Write], session: Session) -> None:
    """Execute the writes, those of one kind together; set their results."""
    joint: dict[type[JointWork[Any]], list[_Write]] = {}
    for write in group:
        if isinstance(write.work, JointWork) and len(group) > 1:
            joint.setdefault(type(write.work), []).append(write)
        else:
            write.result = write.context.run(write.work, session)
    for kind, writes in joint.items():
        works: list[Any] = [write.work for write in writes]
        results = kind.together(session, works)
        for write, result in zip(writes, results, strict=True):
            write.result = result


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
