"""Cache of tasks in memory: the newest round of each task, and the clients whose tokens were used.

It answers polls without a database query. A cached task is valid as long as its `version` in the database is the same.
Commits of this process are applied before their caller gets an answer. Commits of other processes are applied when the
database announces them (PostgreSQL), or at the next check of the versions, every `recheck` seconds. When these checks
fail, everything expires within seconds.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cachetools import FIFOCache
from starlette.concurrency import run_in_threadpool

from aggregator_service.clock import Clock
from aggregator_service.polling.views import CachedRound, read_round
from aggregator_service.storage.database import Announcement, Database, Delivery, Effects

if TYPE_CHECKING:
    from aggregator_service.access.principals import Enrolled

_ROUND_TOPICS: Final = frozenset({"round", "folding"})
"""Topics of commits that change the newest round."""
_MOST_CLIENTS: Final = 50_000
_MAX_ROUND_AGE: Final = 5.0
"""Seconds after which a round is read again: some counts (how much is folded) change without a new version."""
_UNUSED_SECONDS: Final = 60.0
"""A task that nobody asked for in this time is removed."""


@dataclass
class _CachedTask:
    """A task at one version. Times are those of the cache's monotonic clock."""

    version: int
    confirmed_at: float
    used_at: float
    cached_round: CachedRound | None = None
    read_at: float = 0.0


@dataclass(frozen=True)
class ReadStart:
    """A moment: the cache's generation, which each invalidation raises, and the monotonic time in seconds."""

    generation: int
    at: float


@dataclass
class _PendingRead:
    """A round that a thread is reading. It may or may not contain what is committed meanwhile."""

    task: asyncio.Task[CachedRound | None] | None = None
    outdated: bool = False
    deliveries: list[Delivery] = field(default_factory=list)


class TaskCache:
    """The cache of one process. `committed_here` may be called in any thread, the rest in the event loop.

    recheck: seconds between two checks of the versions. monotonic: returns the time in seconds, for ages; `clock` is
    for deadlines.
    """

    def __init__(
        self, database: Database, clock: Clock, recheck: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database, self._clock, self._monotonic = database, clock, monotonic
        self._max_unconfirmed = 2 * recheck + 1.0
        self._lock = threading.Lock()
        self._tasks: dict[str, _CachedTask] = {}
        self._reads: dict[str, _PendingRead] = {}
        self._clients: FIFOCache[str, Enrolled] = FIFOCache(_MOST_CLIENTS)
        self._generation = 0

    def read_start(self) -> ReadStart:
        """Return the present moment. Take it before a database query whose result is given to the cache."""
        return ReadStart(self._generation, self._monotonic())

    # --- clients ----------------------------------------------------------------------------------------------------

    def client(self, token_hash: str) -> Enrolled | None:
        """Return the client with this token; None unless it is cached and its task is valid."""
        try:
            client = self._clients[token_hash]  # one operation: a commit may remove the key in another thread
        except KeyError:
            return None
        if self._valid_task(client.task_id) is None:
            return None
        return client

    def remember(self, start: ReadStart, token_hash: str, client: Enrolled, version: int) -> None:
        """Cache a client that a transaction read when its task was at `version`.

        Does nothing when anything was invalidated since `start`, taken before the transaction. A task that is cached
        at a later version does not matter: what makes a client invalid is an invalidation.
        """
        with self._lock:
            if start.generation != self._generation:
                return
            cached = self._tasks.get(client.task_id)
            if cached is None or cached.version < version:
                self._replace_task(client.task_id, version, start.at)
            self._clients[token_hash] = client

    # --- rounds -----------------------------------------------------------------------------------------------------

    def cached_round(self, task_id: str) -> CachedRound | None:
        """Return a task's newest round; None unless it is cached, valid and recent."""
        cached = self._valid_task(task_id)
        if cached is None or cached.cached_round is None or self._monotonic() - cached.read_at > _MAX_ROUND_AGE:
            return None
        return cached.cached_round

    async def current_round(self, task_id: str) -> CachedRound | None:
        """Return a task's newest round, from the database when it is not cached; None when there is no such task.

        Callers that ask at the same time share one query.
        """
        found = self.cached_round(task_id)
        if found is not None:
            return found
        pending = self._reads.get(task_id)
        if pending is None or pending.outdated or pending.task is None:
            pending = self._reads[task_id] = _PendingRead()
            pending.task = asyncio.create_task(self._read_and_keep(task_id, pending))
        return await asyncio.shield(pending.task)

    async def _read_and_keep(self, task_id: str, pending: _PendingRead) -> CachedRound | None:
        started = self._monotonic()
        try:
            cached = self._tasks.get(task_id)
            cached_round = await run_in_threadpool(self._read, task_id, None if cached is None else cached.cached_round)
        finally:
            with self._lock:
                if self._reads.get(task_id) is pending:
                    del self._reads[task_id]
        if cached_round is not None:
            with self._lock:
                self._cache_round(cached_round, pending, started)
        return cached_round

    def _read(self, task_id: str, older: CachedRound | None) -> CachedRound | None:
        with self._database.read() as session:
            return read_round(session, task_id, self._clock.now(), older)

    def _cache_round(self, cached_round: CachedRound, pending: _PendingRead, started: float) -> None:
        """Cache a round that was read from `started` on, unless a newer version is known."""
        for delivery in pending.deliveries:
            cached_round.add_delivery(delivery)
        cached = self._tasks.get(cached_round.task_id)
        if pending.outdated or (cached is not None and cached.version > cached_round.version):
            return
        if cached is None or cached.version < cached_round.version:
            cached = self._replace_task(cached_round.task_id, cached_round.version, started)
        if cached.cached_round is not None:
            cached_round.reuse(cached.cached_round)
        cached.cached_round, cached.read_at = cached_round, started
        cached.confirmed_at = max(started, cached.confirmed_at)

    # --- commits ----------------------------------------------------------------------------------------------------

    def committed_here(self, effects: Effects) -> None:
        """Apply a commit of this process: nothing cached contradicts it when this returns."""
        with self._lock:
            for token_hash in effects.voided:
                self._generation += 1
                self._clients.pop(token_hash, None)
            for delivery in effects.deliveries:
                self._add_delivery(delivery)
            for announcement in effects.announcements:
                self._apply(announcement)

    def committed_elsewhere(self, announcement: Announcement) -> None:
        """Apply a commit that another process announced."""
        with self._lock:
            if "tokens" in announcement.topics:
                self._remove(announcement.task_id)
            self._apply(announcement)

    def _add_delivery(self, delivery: Delivery) -> None:
        cached, pending = self._tasks.get(delivery.task_id), self._reads.get(delivery.task_id)
        if cached is not None and cached.cached_round is not None:
            cached.cached_round.add_delivery(delivery)
        if pending is not None:
            pending.deliveries.append(delivery)

    def _apply(self, announcement: Announcement) -> None:
        task_id, version = announcement.task_id, announcement.version
        if version is None:
            return
        is_round_changed = not _ROUND_TOPICS.isdisjoint(announcement.topics)
        if is_round_changed and task_id in self._reads:
            self._reads[task_id].outdated = True
        cached = self._tasks.get(task_id)
        if cached is None or version <= cached.version:
            return
        if version > cached.version + 1:  # the announcement of a version in between is missing
            self._remove(task_id)
            return
        cached.version = version
        if is_round_changed:
            cached.cached_round = None

    # --- validity ---------------------------------------------------------------------------------------------------

    def watched(self) -> Collection[str]:
        """Return the ids of the tasks whose versions are to be checked. Tasks not used for a minute are removed."""
        now = self._monotonic()
        with self._lock:
            for task_id in [one for one, cached in self._tasks.items() if now - cached.used_at > _UNUSED_SECONDS]:
                self._remove(task_id)
            return list(self._tasks)

    def is_behind(self, versions: Mapping[str, int]) -> bool:
        """Whether a query found a later version of a cached task than the cache has.

        A transaction of this process may be committed and not applied here yet: wait a moment before `confirm`.
        """
        with self._lock:
            return any(
                task_id in versions and versions[task_id] > cached.version for task_id, cached in self._tasks.items()
            )

    def confirm(self, versions: Mapping[str, int], start: ReadStart) -> None:
        """Compare the cache with the versions that a query found; `start` was taken before the query."""
        with self._lock:
            for task_id, cached in list(self._tasks.items()):
                version = versions.get(task_id)
                if version is None:
                    continue  # cached after the query began
                if version > cached.version:
                    self._remove(task_id)
                else:
                    cached.confirmed_at = max(cached.confirmed_at, start.at)

    def _valid_task(self, task_id: str) -> _CachedTask | None:
        cached = self._tasks.get(task_id)
        now = self._monotonic()
        if cached is None or now - cached.confirmed_at > self._max_unconfirmed:
            return None
        cached.used_at = now
        return cached

    def _replace_task(self, task_id: str, version: int, confirmed_at: float) -> _CachedTask:
        self._remove(task_id)
        cached = self._tasks[task_id] = _CachedTask(version, confirmed_at, confirmed_at)
        return cached

    def _remove(self, task_id: str) -> None:
        """Remove a task and its clients."""
        self._generation += 1
        self._tasks.pop(task_id, None)
        for token_hash in [key for key, client in self._clients.items() if client.task_id == task_id]:
            del self._clients[token_hash]
