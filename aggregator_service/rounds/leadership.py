"""Leadership: one process at a time drives the rounds, as long as it holds the leader lock of the database.

The lock saves duplicate work; correct sums do not depend on it. A process that considers itself the leader for a moment
too long commits nothing, since each transaction compares the rows with what it started from (`rounds.transactions`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aggregator_service.storage.dialects import Candidacy

_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS: Final = 3.0
"""Time limit for an answer about the lock. Together with `interval` it is shorter than the idle session timeout of
PostgreSQL: a leader that cannot reach the database stops before another process gets the lock."""
_INTERVAL: Final = 1.0
_GRACE_SECONDS: Final = 1.0
"""Seconds that a follower waits after it got the lock, so that its predecessor notices the loss first."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Leadership:
    """Acquires the leader lock when it is free, and runs the leader's jobs while it is held."""

    def __init__(
        self,
        candidacy: Candidacy,
        on_change: Callable[[bool], None],
        may_lead: Callable[[], bool],
        interval: float = _INTERVAL,
    ) -> None:
        """on_change: called with True when this process becomes the leader, with False when it stops being it.

        may_lead: returns whether this process is fit to lead; while it is not, it leaves the lock to the others.
        interval: seconds between two queries of the lock, at most one second.
        """
        self._candidacy, self._on_change, self._may_lead = candidacy, on_change, may_lead
        self._interval = min(interval, _INTERVAL)
        self._leads = False

    @property
    def leads(self) -> bool:
        """Whether this process is the leader."""
        return self._leads

    async def run(self, *jobs: Work) -> None:
        """Run all `jobs` while this process leads, and cancel them when it stops leading; until cancelled."""
        with ThreadPoolExecutor(1, "leadership") as thread:  # a thread of its own does not wait for those of requests
            try:
                await self._run(thread, jobs)
            finally:
                self._candidacy.resign()
                await asyncio.get_running_loop().run_in_executor(thread, self._candidacy.resign)

    async def _run(self, thread: ThreadPoolExecutor, jobs: tuple[Work, ...]) -> None:
        pause, has_followed = 0.0, False
        while True:
            if await self._ask(thread, pause) and (not has_followed or await self._ask(thread, _GRACE_SECONDS)):
                await self._run_while_leading(thread, jobs)
            elif not has_followed and self._may_lead():
                _LOG.info("another process drives the rounds; this process takes over when that one stops")
            pause, has_followed = self._interval, True

    async def _run_while_leading(self, thread: ThreadPoolExecutor, jobs: tuple[Work, ...]) -> None:
        self._set_leading(True)
        working = asyncio.create_task(_run_all(jobs))
        try:
            while await self._ask(thread, self._interval) and not working.done():
                pass
        finally:
            working.cancel()
            await asyncio.wait({working})
            self._set_leading(False)
        if not working.cancelled() and (error := working.exception()):
            _LOG.error("the round engine stopped; starting it again", exc_info=error)

    def _set_leading(self, leads: bool) -> None:
        self._leads = leads
        self._on_change(leads)
        _LOG.info("this process drives the rounds now" if leads else "this process no longer drives the rounds")

    async def _ask(self, thread: ThreadPoolExecutor, wait: float) -> bool:
        if not self._may_lead():
            self._candidacy.resign()
            await asyncio.sleep(wait)
            return False
        asked = asyncio.get_running_loop().run_in_executor(thread, self._candidacy.leads, wait)
        try:
            async with asyncio.timeout(wait + _ANSWER_SECONDS):  # in 3.11, wait_for may lose a cancellation
                return await asked
        except TimeoutError:
            self._candidacy.resign()  # we may still hold the lock: release it, so that another process can take over
        except Exception:
            _LOG.exception("failed to query the leader lock")
            await asyncio.sleep(self._interval)
        return False


async def _run_all(jobs: tuple[Work, ...]) -> None:
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(job())
