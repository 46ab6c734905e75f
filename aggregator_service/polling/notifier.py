"""Waiting for a change: waiters here are woken at once; changes of other processes are heard of where the database can
tell (PostgreSQL), and noticed in about a second everywhere.

Each change of a task raises its `version` in the database and is announced under topics. Changes made here wake the
topics' waiters only. A version that nobody here made was made by a replica or the command line: all waiters of the
task look again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from aggregator_service.storage.database import DATABASE_GONE, Announcement, Database
from aggregator_service.storage.schema import TaskRow

if TYPE_CHECKING:
    from aggregator_service.polling.task_cache import TaskCache

__all__ = ["Notifier"]

_LOG = logging.getLogger(__name__)
Found = TypeVar("Found")
_Topic = tuple[str, str]


class _Channel:
    """The waiters of one topic."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.waiters = 0


class Notifier:
    """Wakes long polls, and looks at the versions of tasks for them and for the memory. Call it in the event loop."""

    def __init__(self, database: Database, task_cache: TaskCache, recheck: float) -> None:
        self._database, self._memory = database, task_cache
        self._recheck = recheck
        self._channels: dict[_Topic, _Channel] = {}
        self._seen: dict[str, int] = {}
        self._ours: dict[str, set[int]] = {}
        self._closed = False

    def announce(self, announcement: Announcement) -> None:
        """A transaction of this process was committed: wake those who wait for its topics."""
        if announcement.version is not None:
            self._ours.setdefault(announcement.task_id, set()).add(announcement.version)
        for topic in announcement.topics:
            self._ring((announcement.task_id, topic))

    @property
    def closed(self) -> bool:
        """Whether the server is about to stop, and nobody waits any more."""
        return self._closed

    def close(self) -> None:
        """The server is about to stop: every wait is over, now and from now on."""
        self._closed = True
        for topic in list(self._channels):
            self._ring(topic)

    def _ring(self, topic: _Topic) -> None:
        channel = self._channels.get(topic)
        if channel is not None:
            channel.event.set()
            channel.event = asyncio.Event()

    @contextmanager
    def _waiting(self, topic: _Topic) -> Iterator[_Channel]:
        channel = self._channels.setdefault(topic, _Channel())
        channel.waiters += 1
        try:
            yield channel
        finally:
            channel.waiters -= 1
            if not channel.waiters:
                self._channels.pop(topic, None)

    async def poll(
        self, task_id: str, topic: str, wait: float, look: Callable[[], Found | None], every: float | None = None
    ) -> Found | None:
        """`look()` (in a thread) until it finds something or `wait` seconds are over; `every`: look that often too."""
        return await self.follow(task_id, topic, wait, partial(run_in_threadpool, look), every)

    async def follow(
        self,
        task_id: str,
        topic: str,
        wait: float,
        look: Callable[[], Awaitable[Found | None]],
        every: float | None = None,
    ) -> Found | None:
        """`poll` for what is looked at in the event loop."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        with self._waiting((task_id, topic)) as channel:
            while True:
                event = channel.event  # taken before looking: a change in between is not missed
                found = await look()
                left = end - loop.time()
                if found is not None or left <= 0 or self._closed:
                    return found
                try:
                    await asyncio.wait_for(event.wait(), left if every is None else min(left, every))
                except TimeoutError:
                    continue

    async def watch(self) -> None:
        """Notice what other processes changed, until cancelled."""
        while True:
            await asyncio.sleep(self._recheck)
            waited_for = {task_id for task_id, _ in self._channels} | set(self._memory.watched())
            self._forget_all_but(waited_for)
            if not waited_for:
                continue
            asked = asyncio.get_running_loop().time()
            try:
                versions = await run_in_threadpool(self._versions, waited_for)
            except DATABASE_GONE as error:
                _LOG.warning("the notifier cannot read the tasks (%s) and tries again", type(error).__name__)
                continue
            except Exception:
                _LOG.exception("the notifier could not read the tasks and tries again")
                continue
            self._memory.confirm(versions, asked)  # first: whoever is woken must not be shown what was before
            for task_id, version in versions.items():
                self._compare(task_id, version)

    def _forget_all_but(self, tasks: set[str]) -> None:
        for known in (self._seen, self._ours):
            for task_id in known.keys() - tasks:
                known.pop(task_id)

    def _versions(self, tasks: set[str]) -> dict[str, int]:
        with self._database.read() as session:
            rows = session.execute(select(TaskRow.id, TaskRow.version).where(TaskRow.id.in_(tasks)))
            return {row.id: row.version for row in rows}

    def _compare(self, task_id: str, version: int) -> None:
        seen = self._seen.get(task_id)
        ours = self._ours.setdefault(task_id, set())
        self._seen[task_id] = version
        foreign = seen is None or any(step not in ours for step in range(seen + 1, version + 1))
        self._ours[task_id] = {step for step in ours if step > version}
        if foreign:
            for topic in [topic for topic in self._channels if topic[0] == task_id]:
                self._ring(topic)
