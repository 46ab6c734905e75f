"""One process at a time drives the rounds: it begins when it holds the database's lock, and ends when it does not.

The lock is there so that processes do not do each other's work, not so that sums are right: a process that believes
itself the leader a moment too long commits nothing, since every commit of the engine compares what it began with
(`rounds.operations`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aggregator_service.storage.dialects import Candidacy

__all__ = ["Leadership", "Work"]

_LOG = logging.getLogger(__name__)
_PATIENCE: Final = 3.0
"""Seconds for an answer about the lock. With an `interval` less than what PostgreSQL gives a session that is silent, so
that a leader which cannot reach the database stands down before another one begins."""
_INTERVAL: Final = 1.0
_GRACE: Final = 1.0
"""Seconds before a follower begins: until then its predecessor has noticed that it leads no more."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Leadership:
    """Takes the lead when it is free, and has work done as long as it lasts."""

    def __init__(
        self,
        candidacy: Candidacy,
        told: Callable[[bool], None],
        interval: float = _INTERVAL,
        *,
        own_blobs: bool = False,
    ) -> None:
        """`told` hears of each change; the lock is asked for every `interval` seconds, and at least once a second.

        own_blobs: this process keeps blobs where no other one finds them, so it had better be the only one.
        """
        self._candidacy, self._told, self._own_blobs = candidacy, told, own_blobs
        self._interval = min(interval, _INTERVAL)
        self._leads = False

    @property
    def leads(self) -> bool:
        """Whether the work is done here."""
        return self._leads

    async def run(self, *works: Work) -> None:
        """Until cancelled: all of `works` while this process leads; they are cancelled when it does no more."""
        with ThreadPoolExecutor(1, "leadership") as thread:  # of its own: it never waits for requests' threads
            try:
                await self._run(thread, works)
            finally:
                self._candidacy.resign()
                await asyncio.get_running_loop().run_in_executor(thread, self._candidacy.resign)

    async def _run(self, thread: ThreadPoolExecutor, works: tuple[Work, ...]) -> None:
        pause, followed = 0.0, False
        while True:
            if await self._ask(thread, pause) and (not followed or await self._ask(thread, _GRACE)):
                await self._lead(thread, works)
            elif not followed:
                self._follow()
            pause, followed = self._interval, True

    def _follow(self) -> None:
        _LOG.info("another process drives the rounds; this one takes over when it ends")
        if self._own_blobs:
            _LOG.error(
                "this process keeps blobs in its own data directory, where no other one finds them: rounds will fail; "
                "give all of them the same HUSHREC_BLOBS"
            )

    async def _lead(self, thread: ThreadPoolExecutor, works: tuple[Work, ...]) -> None:
        self._say(True)
        working = asyncio.create_task(_all(works))
        try:
            while await self._ask(thread, self._interval) and not working.done():
                pass
        finally:
            working.cancel()
            await asyncio.wait({working})
            self._say(False)
        if not working.cancelled() and (error := working.exception()):
            _LOG.error("the round engine ended; it begins again", exc_info=error)

    def _say(self, leads: bool) -> None:
        self._leads = leads
        self._told(leads)
        _LOG.info("this process drives the rounds now" if leads else "this process no longer drives the rounds")

    async def _ask(self, thread: ThreadPoolExecutor, wait: float) -> bool:
        asked = asyncio.get_running_loop().run_in_executor(thread, self._candidacy.leads, wait)
        try:
            return await asyncio.wait_for(asked, wait + _PATIENCE)
        except TimeoutError:
            self._candidacy.resign()  # the lock may still be ours: nobody could take over before it is let go of
        except Exception:
            _LOG.exception("who leads could not be asked")
            await asyncio.sleep(self._interval)
        return False


async def _all(works: tuple[Work, ...]) -> None:
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work())
