"""Group commit: small writes of many requests share one transaction, and so one sync of the disk.

While one group is being committed, the writes that arrive wait, and the next group takes all of them. After a group
that was not alone the next one waits 2 ms for more: clients whose answers came together send together, and would
otherwise be split for good into those of every other group. Each caller gets its result only after the commit, so what
is acknowledged is durable, exactly as with a transaction of its own.

When the database does not answer, all writes that wait get that answer, after the time limit of one attempt.

Groups follow each other over one connection, which is replaced when a transaction fails. Where the database closed it
meanwhile (it was restarted), the group that finds this is committed over connections of the pool, which are tested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from aggregator_service.storage.database import DATABASE_GONE, Database, savepoint

_MOST: Final = 64
"""Most writes of one transaction: it bounds how long a SQLite database is locked."""
_GATHERING_SECONDS: Final = 0.002
"""For which a group waits for more writes, after one that was not alone: about what it takes to commit a group."""
Result = TypeVar("Result")


@dataclass(eq=False)
class _Write:
    """A write that waits for its group."""

    work: Callable[[Session], Any]
    future: asyncio.Future[Any]
    context: Context
    result: Any = None
    failure: BaseException | None = None
    """What it or its commit raised."""

    def answer(self) -> None:
        """Resume the caller, unless its request was cancelled."""
        if self.future.done():
            return
        if self.failure is None:
            self.future.set_result(self.result)
        elif isinstance(self.failure, asyncio.CancelledError):
            self.future.cancel()
        else:
            self.future.set_exception(self.failure)


class GroupCommit:
    """Commits small writes to `database` in groups, in a thread of its own. Use it in one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Write] = []
        self._committing: asyncio.Task[None] | None = None
        self._gathers = False
        """Whether the last group had several writes, or others arrived meanwhile."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="group-commit")
        self._connection: Connection | None = None

    async def run(self, work: Callable[[Session], Result]) -> Result:
        """Call `work` in a transaction that it may share with others; return its result after the commit.

        `work` must be fit for `Database.transact`: it only reads and writes rows, and may be called again. What it
        wrote is undone when it raises; the other writes of its group are committed. Raises what `work` or the commit
        raises.
        """
        write = _Write(work, asyncio.get_running_loop().create_future(), copy_context())
        self._waiting.append(write)
        if self._committing is None:
            self._begin()
        return await write.future  # type: ignore[no-any-return]

    async def insert(self, work: Callable[[Session], Result]) -> Result:
        """`run` a `work` that inserts a row unless it finds it; raises as `run` does.

        Another process may insert the row after `work` looked for it: the second attempt finds it.
        """
        try:
            return await self.run(work)
        except IntegrityError:
            return await self.run(work)

    def close(self) -> None:
        """Wait for the commit in progress, and end the thread that commits and its connection."""
        self._thread.shutdown()
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _begin(self) -> None:
        """Start a task that commits a group; its spans belong to the request that has waited longest."""
        context = self._waiting[0].context.copy()
        self._committing = asyncio.get_running_loop().create_task(self._commit_waiting(), context=context)

    async def _commit_waiting(self) -> None:
        group = self._take(_MOST)
        try:
            if self._gathers and len(group) < _MOST:
                await self._gather()
                group += self._take(_MOST - len(group))
            if gone := await self._in_thread(group):
                group, self._waiting = [*group, *self._waiting], []
                for write in group:
                    write.failure = gone
        except BaseException as error:
            for write in group:
                write.failure = write.failure or error
        for write in group:
            write.answer()
        self._committing, self._gathers = None, len(group) + len(self._waiting) > 1
        if self._waiting:
            self._begin()

    def _take(self, most: int) -> list[_Write]:
        taken, self._waiting = self._waiting[:most], self._waiting[most:]
        return taken

    async def _gather(self) -> None:
        await asyncio.sleep(_GATHERING_SECONDS)

    async def _in_thread(self, group: list[_Write]) -> Exception | None:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, group)

    def _commit(self, group: list[_Write]) -> Exception | None:
        """Execute and commit a group; set the result or the failure of each write.

        Returns the error, and sets nothing, when the database does not begin a transaction.
        """
        try:
            return self._commit_group(group, _execute)
        except _RefusedError as refused:
            # most groups have no such write, and need no savepoints, which cost as much as an insert
            if len(group) > 1:
                return self._commit_group(group, _execute_apart)
            group[0].failure = refused.__cause__
            return None

    def _commit_group(self, group: list[_Write], execute: Callable[[_Write, Session], None]) -> Exception | None:
        begun = executed = False
        try:
            if self._connection is None:
                self._connection = self._database.writer()
            with self._database.write(self._connection) as session:
                session.connection()  # begins the transaction
                begun = True
                for write in group:
                    execute(write, session)
                executed = True
        except _RefusedError:
            raise
        except Exception as error:
            self._disconnect()
            if not begun and self._is_gone(error):
                return error
            if executed and not self._database.is_transient(error):
                raise  # the commit may have taken effect, so nothing may be tried again
            self._commit_each(group)
        return None

    def _commit_each(self, group: list[_Write]) -> None:
        """Commit each write in a transaction of its own, until the database does not answer one of them."""
        gone: Exception | None = None
        for write in group:
            write.failure = gone
            if gone is not None:
                continue
            try:
                write.result = write.context.run(self._database.transact, write.work)
            except Exception as error:
                write.failure = error
                gone = error if self._is_gone(error) else None

    def _is_gone(self, error: Exception) -> bool:
        return isinstance(error, DATABASE_GONE) and not self._database.is_transient(error)


class _RefusedError(Exception):
    """A write of a group raised, so that nothing of the group is committed yet."""


def _execute(write: _Write, session: Session) -> None:
    """Execute a write, and set its result. Raises `_RefusedError` if it raises, and errors that end the transaction."""
    try:
        write.result = write.context.run(write.work, session)
        session.flush()
    except Exception as error:
        if _ends_transaction(error):
            raise
        raise _RefusedError from error
    session.expunge_all()  # so that the next one sees no object that a statement has overtaken


def _execute_apart(write: _Write, session: Session) -> None:
    """Execute a write in a savepoint, and set its result or failure. Raises errors that end the transaction."""
    try:
        with savepoint(session):
            write.result = write.context.run(write.work, session)
    except Exception as error:
        if _ends_transaction(error):
            raise
        write.failure = error


def _ends_transaction(error: Exception) -> bool:
    """Whether the connection broke, or there was a deadlock: then the locks must go, too."""
    return isinstance(error, DBAPIError) and not isinstance(error, IntegrityError)
