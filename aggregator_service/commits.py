"""What a commit causes in each process: caches updated, long polls woken, the leader's round engine advanced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from starlette.concurrency import run_in_threadpool

from aggregator_service.polling.cache import TaskCache
from aggregator_service.polling.notifier import Notifier
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.rounds.leadership import Leadership
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.database import DATABASE_GONE, Announcement, Database, Effects
from aggregator_service.storage.stores import delete_orphans

_LOG = logging.getLogger(__name__)
_TELL_SECONDS: Final = 0.05


@dataclass(frozen=True)
class CommitListeners:
    """The parts of a process that have to know of commits, its own and those of other processes."""

    loop: asyncio.AbstractEventLoop
    """The event loop in which `notifier` and `engine` run. The methods may be called in any thread."""
    task_cache: TaskCache
    notifier: Notifier
    engine: RoundEngine
    leadership: Leadership
    database: Database
    blobs: BlobStore
    _progressed: set[str] = field(default_factory=set)
    _sending: set[asyncio.Task[None]] = field(default_factory=set)

    def committed_here(self, effects: Effects) -> None:
        """Apply the effects of a commit of this process. The cache is up to date when this returns."""
        self.task_cache.committed_here(effects)
        if effects.announcements or effects.deliveries:
            self._in_loop(self._announce, effects)
        delete_orphans(effects, self.blobs)

    def committed_elsewhere(self, announcement: Announcement) -> None:
        """Apply a change that another process has announced."""
        self._in_loop(self._receive, announcement)

    def _in_loop(self, call: Callable[..., None], argument: object) -> None:
        with suppress(RuntimeError):  # the event loop is closed: the server is stopping
            self.loop.call_soon_threadsafe(call, argument)

    def _announce(self, effects: Effects) -> None:
        for announcement in effects.announcements:
            self.notifier.announce(announcement)
            self._drive(announcement)
        for delivery in effects.deliveries:
            self.engine.delivered(delivery.task_id)
            if not self.leadership.leads:
                self._tell_leader(delivery.task_id)

    def _tell_leader(self, task_id: str) -> None:
        """Notify the process that drives the rounds, once for all messages of the next 50 ms.

        The transaction of a contribution sends no notification: PostgreSQL runs commits with notifications one after
        the other, which would serialise the uploads. The engine also reads every task regularly, so a lost notification
        only causes a delay.
        """
        if not self._progressed:
            self.loop.call_later(_TELL_SECONDS, self._send)
        self._progressed.add(task_id)

    def _send(self) -> None:
        tasks = set(self._progressed)
        self._progressed.clear()
        sending = self.loop.create_task(run_in_threadpool(self._notify, tasks))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    def _notify(self, tasks: set[str]) -> None:
        try:
            self.database.notify_progress(tasks)
        except DATABASE_GONE as error:
            _LOG.warning("cannot notify the leading process of progress: %s", type(error).__name__)
        except Exception:
            _LOG.exception("failed to notify the leading process of progress")

    def _receive(self, announcement: Announcement) -> None:
        self.task_cache.committed_elsewhere(announcement)
        self.notifier.announce(announcement)
        self._drive(announcement)

    def _drive(self, announcement: Announcement) -> None:
        if "round" in announcement.topics:
            self.engine.wake(announcement.task_id)
        else:  # new members, or messages of clients to another process
            self.engine.progressed(announcement.task_id)
