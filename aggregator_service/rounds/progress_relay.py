"""Tells the process that drives the rounds what came in here.

A contribution is mere progress: it is not told within its own transaction, since commits that tell something wait for
each other, and uploads would take turns. It is told right afterwards, for all that came in meanwhile at once. What gets
lost, the engine finds by looking.
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
"""Seconds in which progress gathers; also how far apart two such commits are at least."""


class ProgressRelay:
    """Collects the tasks in which something happened, and tells of them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tasks: set[str] = set()
        self._news = asyncio.Event()

    def progressed(self, task_id: str) -> None:
        """Something came in for this task (call it in the event loop)."""
        self._tasks.add(task_id)
        self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(_PAUSE)
            self._news.clear()
            tasks, self._tasks = self._tasks, set()
            try:
                await run_in_threadpool(self._database.tell_progress, tasks)
            except DATABASE_GONE as error:
                _LOG.warning("the leading process is not told of progress (%s)", type(error).__name__)
            except Exception:
                _LOG.exception("the leading process could not be told of progress")
