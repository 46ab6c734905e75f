"""What a committed transaction causes in this process: caches updated, long polls woken, the round engine advanced."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from aggregator_service.polling.notifier import Notifier
from aggregator_service.polling.task_cache import TaskCache
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.rounds.leadership import Leadership
from aggregator_service.rounds.progress_relay import ProgressRelay
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.cleanup import delete_orphans
from aggregator_service.storage.database import Announcement, Effects

__all__ = ["CommitListeners"]


@dataclass(frozen=True)
class CommitListeners:
    """The parts of a process that have to know of commits, its own and those of other processes.

    loop: the event loop in which `notifier`, `engine` and `progress_relay` run. The methods may be called in any
    thread.
    """

    loop: asyncio.AbstractEventLoop
    task_cache: TaskCache
    notifier: Notifier
    engine: RoundEngine
    leadership: Leadership
    progress_relay: ProgressRelay
    blobs: BlobStore

    def committed_here(self, effects: Effects) -> None:
        """Apply the effects of a commit of this process. The cache is up to date when this returns."""
        self.task_cache.committed_here(effects)
        if effects.announcements:
            self.loop.call_soon_threadsafe(self._announce, effects)
        delete_orphans(effects, self.blobs)

    def committed_elsewhere(self, announcement: Announcement) -> None:
        """Apply a change that another process has announced."""
        with suppress(RuntimeError):  # the event loop is closed: the server is stopping
            self.loop.call_soon_threadsafe(self._receive, announcement)

    def _announce(self, effects: Effects) -> None:
        for announcement in effects.announcements:
            self.notifier.announce(announcement)
            if announcement.version is None:  # a message of a client
                self.engine.delivered(announcement.task_id)
                if not self.leadership.leads:
                    self.progress_relay.progressed(announcement.task_id)
            else:
                self._drive(announcement, 1)

    def _receive(self, announcement: Announcement) -> None:
        self.task_cache.committed_elsewhere(announcement)
        self.notifier.announce(announcement)
        self._drive(announcement, inf)  # one message may stand for the progress of many clients

    def _drive(self, announcement: Announcement, sent: float) -> None:
        if "round" in announcement.topics:
            self.engine.wake(announcement.task_id)
        else:  # new members, or messages that another process stored
            self.engine.progressed(announcement.task_id, sent)
