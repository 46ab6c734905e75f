"""Notify the process that drives the rounds of contributions that this process stored.

The transaction of a contribution sends no notification: PostgreSQL runs commits with notifications one after the other,
which would serialise the uploads. This process notifies afterwards, once for all tasks of the last 50 ms. The engine
also reads every task regularly, so a lost notification only causes a delay.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from starlette.concurrency import run_in_threadpool

from aggregator_service.storage.database import DATABASE_GONE, Database

__all__ = ["ProgressRelay"]

_LOG = logging.getLogger(__name__)
_PAUSE: Final = 0.05
"""Seconds to collect progress; also the shortest time between two such commits."""


class ProgressRelay:
    """Collects the tasks with progress and notifies the other processes of them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tasks: set[str] = set()
        self._has_progress = asyncio.Event()

    def progressed(self, task_id: str) -> None:
        """Note that a client sent something for this task. Call it in the event loop."""
        self._tasks.add(task_id)
        self._has_progress.set()

    async def run(self) -> None:
        """Send notifications until cancelled."""
        while True:
            await self._has_progress.wait()
            await asyncio.sleep(_PAUSE)
            self._has_progress.clear()
            tasks, self._tasks = self._tasks, set()
            try:
                await run_in_threadpool(self._database.notify_progress, tasks)
            except DATABASE_GONE as error:
                _LOG.warning("cannot notify the leading process of progress: %s", type(error).__name__)
            except Exception:
                _LOG.exception("failed to notify the leading process of progress")
