"""Long polls: wait until a task changes.

Each change of a task raises its `version` in the database and names topics. A change of this process wakes the waiters
of its topics at once. A change of another process is announced by the database (PostgreSQL), or found by comparing
versions every `recheck` seconds. A version that this process neither made nor heard of wakes all waiters of the task,
since its topics are unknown.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from sqlalchemy import bindparam, select
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from aggregator_service.access.rate_limits import AtOnce, Room
from aggregator_service.storage.database import DATABASE_GONE, Announcement, Database
from aggregator_service.storage.schema import TaskRow
from protocols.pace import SHORTEST_REST

if TYPE_CHECKING:
    from aggregator_service.polling.cache import TaskCache

_LOG = logging.getLogger(__name__)
Found = TypeVar("Found")
_VERSIONS: Final = select(TaskRow.id, TaskRow.version).where(TaskRow.id.in_(bindparam("tasks", expanding=True)))
NOT_HELD: Final = "hushrec.poll_not_held"
"""Key of a request's scope: for a poll that is answered at once, because the server has no room for it to wait, the
seconds after which the client asks again."""
_APPLYING_SECONDS: float = 0.05
"""Time in which a commit of this process is applied to the task cache."""
_Topic = tuple[str, str]
"""Task id and topic."""


class Notifier:
    """Wakes long polls and checks the versions of tasks, also for the task cache. Call it in the event loop.

    recheck: seconds between two checks. longest_wait: most seconds that a poll waits. room: for polls that wait.
    closed: whether the server is stopping, so that waiting ends at once.
    """

    def __init__(
        self,
        database: Database,
        task_cache: TaskCache,
        recheck: float,
        longest_wait: float = math.inf,
        room: Room | None = None,
    ) -> None:
        self._database, self._task_cache = database, task_cache
        self._recheck, self._longest_wait = recheck, longest_wait
        self._polls, self._room = AtOnce("holding 8 polls of"), room or Room(0)
        self._waiters: dict[_Topic, set[asyncio.Event]] = {}
        self._seen_version: dict[str, int] = {}
        self._announced_versions: dict[str, set[int]] = {}
        self.closed = False

    def announce(self, announcement: Announcement) -> None:
        """Wake the waiters of a committed change's topics."""
        if announcement.version is not None:
            self._announced_versions.setdefault(announcement.task_id, set()).add(announcement.version)
        for topic in announcement.topics:
            self._wake((announcement.task_id, topic))

    def close(self) -> None:
        """End all waiting, now and from now on: the server is stopping."""
        self.closed = True
        for topic in list(self._waiters):
            self._wake(topic)

    def _wake(self, topic: _Topic) -> None:
        for waiter in self._waiters.get(topic, ()):
            waiter.set()

    @contextmanager
    def _registered_waiter(self, topic: _Topic) -> Iterator[asyncio.Event]:
        waiter = asyncio.Event()
        self._waiters.setdefault(topic, set()).add(waiter)
        try:
            yield waiter
        finally:
            self._waiters[topic].discard(waiter)
            if not self._waiters[topic]:
                del self._waiters[topic]

    async def poll(
        self,
        task_id: str,
        topic: str,
        wait: float,
        look: Callable[[], Found | None],
        every: float | None = None,
        *,
        asked_by: str | None,
        scope: Scope,
    ) -> Found | None:
        """Call `look` in a thread until it returns a value or `wait` seconds are over; return its last result.

        It is called at once, after each change of the topic, and every `every` seconds if that is given. asked_by: the
        client that waits, None for an operator. scope: of the request; `NOT_HELD` is set in it if the server has no
        room for one more poll that waits, which then ends at once. Raises `Problem` too-many-requests: a client may
        wait in eight polls.
        """
        looked = partial(run_in_threadpool, look)
        return await self.follow(task_id, topic, wait, looked, every, asked_by=asked_by, scope=scope)

    async def follow(
        self,
        task_id: str,
        topic: str,
        wait: float,
        look: Callable[[], Awaitable[Found | None]],
        every: float | None = None,
        *,
        asked_by: str | None,
        scope: Scope,
    ) -> Found | None:
        """As `poll`, for a coroutine function."""
        loop = asyncio.get_running_loop()
        end = loop.time() + min(wait, self._longest_wait)
        with self._registered_waiter((task_id, topic)) as waiter, ExitStack() as counted:
            first = True
            while True:
                waiter.clear()  # before the call, so that a change during it is not missed
                found = await look()
                left = end - loop.time()
                if found is not None or left <= 0 or self.closed:
                    return found
                if first and not self._may_wait(asked_by, counted):
                    scope[NOT_HELD] = math.ceil(SHORTEST_REST)
                    return found
                first = False
                try:
                    async with asyncio.timeout(left if every is None else min(left, every)):
                        await waiter.wait()
                except TimeoutError:
                    continue

    def _may_wait(self, client_id: str | None, counted: ExitStack) -> bool:
        """Count a poll that begins to wait, and so takes a connection for long; return whether there is room for it."""
        if client_id is not None:
            counted.enter_context(self._polls.counted(client_id))
        if not self._room.take(for_a_poll=True):
            return False
        counted.callback(self._room.give_back)
        return True

    async def watch(self) -> None:
        """Look for changes of other processes every `recheck` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._recheck)
            tasks = {task_id for task_id, _ in self._waiters} | set(self._task_cache.watched())
            self._forget_all_but(tasks)
            if not tasks:
                continue
            start = self._task_cache.read_start()
            try:
                versions = await run_in_threadpool(self._read_versions, tasks)
            except DATABASE_GONE as error:
                _LOG.warning(
                    "cannot read the versions of tasks: %s; trying again in %g s", type(error).__name__, self._recheck
                )
                continue
            except Exception:
                _LOG.exception("failed to read the versions of tasks; trying again in %g s", self._recheck)
                continue
            if self._task_cache.is_behind(versions):
                await asyncio.sleep(_APPLYING_SECONDS)
            self._task_cache.confirm(versions, start)  # first, so that those who wake read no outdated cache
            for task_id, version in versions.items():
                self._wake_if_changed(task_id, version)

    def _forget_all_but(self, tasks: set[str]) -> None:
        for versions in (self._seen_version, self._announced_versions):
            for task_id in versions.keys() - tasks:
                versions.pop(task_id)

    def _read_versions(self, tasks: set[str]) -> dict[str, int]:
        return {row.id: row.version for row in self._database.rows(_VERSIONS, {"tasks": list(tasks)})}

    def _wake_if_changed(self, task_id: str, version: int) -> None:
        """Wake all waiters of a task when a version up to this one was not announced here."""
        seen = self._seen_version.get(task_id)
        announced = self._announced_versions.setdefault(task_id, set())
        self._seen_version[task_id] = version
        missed = seen is None or any(number not in announced for number in range(seen + 1, version + 1))
        self._announced_versions[task_id] = {number for number in announced if number > version}
        if missed:
            for topic in [topic for topic in self._waiters if topic[0] == task_id]:
                self._wake(topic)
