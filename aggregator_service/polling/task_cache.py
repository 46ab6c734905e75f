"""What this process remembers of tasks: their boards and the clients it has met, for as long as the database agrees.

Without it each of ten thousand polls would ask the database who the client is and how its round stands, to hear the
same as the one before. What is remembered is good for as long as the task's `version` is what it was: own commits are
heard of before their caller is answered, those of other processes when the database tells of them (PostgreSQL) or at
the next look, `recheck` seconds apart. When looks fail, nothing remembered is good for long.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool

from aggregator_service.clock import Clock
from aggregator_service.polling.cached_round import CachedRound, look_at
from aggregator_service.storage.database import Announcement, Database, Delivery, Effects

if TYPE_CHECKING:
    from aggregator_service.access.principals import Enrolled

__all__ = ["Mark", "TaskCache"]

_MOST_CLIENTS: Final = 50_000
_OLDEST: Final = 5.0
"""Seconds after which a board is made anew: what changes without a new version (how much is folded) is that old."""
_UNUSED: Final = 60.0


@dataclass
class _Known:
    """What is remembered of one task."""

    version: int
    confirmed: float
    used: float
    cached_round: CachedRound | None = None
    made: float = 0.0


@dataclass(frozen=True)
class Mark:
    """A moment: how often somebody was forgotten before it, and when it was."""

    forgotten: int
    at: float


@dataclass
class _Making:
    """A board that is being read. What is committed meanwhile it may have, or may lack."""

    task: asyncio.Task[CachedRound | None] | None = None
    outdated: bool = False
    noted: list[Delivery] = field(default_factory=list)


class TaskCache:
    """The memory of one process. `committed` is called in the committing thread, the rest in the event loop."""

    def __init__(self, database: Database, clock: Clock, recheck: float) -> None:
        self._database, self._clock = database, clock
        self._patience = 2 * recheck + 1.0
        self._lock = threading.Lock()
        self._tasks: dict[str, _Known] = {}
        self._making: dict[str, _Making] = {}
        self._clients: OrderedDict[str, Enrolled] = OrderedDict()
        self._forgotten = 0

    # --- clients ----------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """To be made before a client is looked up, for `remember`."""
        return Mark(self._forgotten, _now())

    def client(self, token_hash: str) -> Enrolled | None:
        """Whose token this is, when it is remembered and nothing speaks against it."""
        client = self._clients.get(token_hash)
        if client is None or self._good(client.task_id) is None:
            return None
        return client

    def remember(self, mark: Mark, token_hash: str, client: Enrolled, version: int) -> None:
        """A client as a transaction saw it, its task being at `version`; unless somebody was forgotten since `mark`."""
        with self._lock:
            if mark.forgotten != self._forgotten:
                return
            known = self._tasks.get(client.task_id)
            if known is None or known.version < version:
                self._forget(client.task_id)
                self._tasks[client.task_id] = _Known(version, mark.at, mark.at)
            elif known.version > version:
                return
            self._clients[token_hash] = client
            if len(self._clients) > _MOST_CLIENTS:
                self._clients.popitem(last=False)

    # --- boards -----------------------------------------------------------------------------------------------------

    def cached_round(self, task_id: str) -> CachedRound | None:
        """The board of a task, when it is remembered and good."""
        known = self._good(task_id)
        if known is None or known.cached_round is None or _now() - known.made > _OLDEST:
            return None
        return known.cached_round

    async def look(self, task_id: str) -> CachedRound | None:
        """The board of a task, read once for all who ask at the same time; None when there is no such task."""
        found = self.cached_round(task_id)
        if found is not None:
            return found
        making = self._making.get(task_id)
        if making is None or making.outdated or making.task is None:
            making = self._making[task_id] = _Making()
            making.task = asyncio.create_task(self._make(task_id, making))
        return await asyncio.shield(making.task)

    async def _make(self, task_id: str, making: _Making) -> CachedRound | None:
        asked = _now()
        try:
            cached_round = await run_in_threadpool(self._read, task_id)
        finally:
            with self._lock:
                if self._making.get(task_id) is making:
                    del self._making[task_id]
        if cached_round is not None:
            self._keep(cached_round, making, asked)
        return cached_round

    def _read(self, task_id: str) -> CachedRound | None:
        with self._database.read() as session:
            return look_at(session, task_id, self._clock.now())

    def _keep(self, cached_round: CachedRound, making: _Making, asked: float) -> None:
        with self._lock:
            for delivery in making.noted:
                cached_round.note(delivery)
            known = self._tasks.get(cached_round.task_id)
            if making.outdated or (known is not None and known.version > cached_round.version):
                return
            if known is None or known.version < cached_round.version:
                self._forget(cached_round.task_id)
                known = self._tasks[cached_round.task_id] = _Known(cached_round.version, asked, asked)
            if known.cached_round is not None:
                cached_round.inherit(known.cached_round)
            known.cached_round, known.made, known.confirmed = cached_round, asked, max(asked, known.confirmed)

    # --- what happens -----------------------------------------------------------------------------------------------

    def committed(self, effects: Effects) -> None:
        """This process committed something: nothing that it contradicts is remembered when this returns."""
        with self._lock:
            for token_hash in effects.voided:
                self._forgotten += 1
                self._clients.pop(token_hash, None)
            for delivery in effects.deliveries:
                self._note(delivery)
            for announcement in effects.announcements:
                self._follow(announcement)

    def told(self, announcement: Announcement) -> None:
        """Another process committed something."""
        with self._lock:
            if "tokens" in announcement.topics:
                self._forget(announcement.task_id)
            self._follow(announcement)

    def _note(self, delivery: Delivery) -> None:
        known, making = self._tasks.get(delivery.task_id), self._making.get(delivery.task_id)
        if known is not None and known.cached_round is not None:
            known.cached_round.note(delivery)
        if making is not None:
            making.noted.append(delivery)

    def _follow(self, announcement: Announcement) -> None:
        task_id, version = announcement.task_id, announcement.version
        if version is None:
            return
        if "round" in announcement.topics and task_id in self._making:
            self._making[task_id].outdated = True
        known = self._tasks.get(task_id)
        if known is None or version <= known.version:
            return
        if version > known.version + 1:  # something between the two has not been heard of
            self._forget(task_id)
            return
        known.version = version
        if "round" in announcement.topics:
            known.cached_round = None

    def _forget(self, task_id: str) -> None:
        self._forgotten += 1
        self._tasks.pop(task_id, None)
        for token_hash in [key for key, client in self._clients.items() if client.task_id == task_id]:
            del self._clients[token_hash]

    # --- looks at the database --------------------------------------------------------------------------------------

    def watched(self) -> Collection[str]:
        """The tasks whose versions are to be looked at; what nobody has asked for in a minute is forgotten."""
        now = _now()
        with self._lock:
            for task_id in [task_id for task_id, known in self._tasks.items() if now - known.used > _UNUSED]:
                self._forget(task_id)
            return list(self._tasks)

    def confirm(self, versions: Mapping[str, int], asked: float) -> None:
        """What the database said of the watched tasks when it was asked, at `asked` on the event loop's clock."""
        with self._lock:
            for task_id, known in list(self._tasks.items()):
                version = versions.get(task_id)
                if version is None:
                    continue  # it was met after the question
                if version > known.version:
                    self._forget(task_id)
                else:
                    known.confirmed = max(known.confirmed, asked)

    def _good(self, task_id: str) -> _Known | None:
        known = self._tasks.get(task_id)
        now = _now()
        if known is None or now - known.confirmed > self._patience:
            return None
        known.used = now
        return known


def _now() -> float:
    return asyncio.get_running_loop().time()
