"""The engine: looks at a task, does the one thing that is due (`rounds.advance`), and looks again.

It keeps no state of its own: everything it decides follows from the rows, so that a killed engine goes on where it
stood, and two engines on one database get in each other's way without harm (the loser's outcome is thrown away).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from aggregator_service.clock import Clock
from aggregator_service.compute.process_pool import Workers, WorkersUnavailableError
from aggregator_service.compute.split_jobs import SplitJobs
from aggregator_service.logs import fields
from aggregator_service.observability.instruments import Instruments
from aggregator_service.rounds.advance import RoundAdvancer, Situation
from aggregator_service.settings import SPLIT_BYTES
from aggregator_service.storage.blobs import BlobStore, BlobsUnavailableError
from aggregator_service.storage.database import DATABASE_GONE, Database
from aggregator_service.storage.schema import TaskRow

__all__ = ["RoundEngine"]

_LOG = logging.getLogger(__name__)
_BACK_OFF: Final = 1.0
_OFTEN: Final = 0.05
_SELDOM: Final = 0.5
_SHARE: Final = 10.0


class RoundEngine:
    """Drives every open task, each in a coroutine of its own, so that a long fold holds up no other task."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        workers: Workers,
        *,
        batch: int,
        recheck: float,
        split_bytes: int = SPLIT_BYTES,
        instruments: Instruments | None = None,
    ) -> None:
        self._database, self._recheck = database, recheck
        jobs = SplitJobs(workers, split_bytes)
        self._steps = RoundAdvancer(database, blobs, clock, jobs, batch, instruments or Instruments())
        self._wake: dict[str, asyncio.Event] = {}
        self._drivers: dict[str, asyncio.Task[None]] = {}
        self._next_look: dict[str, float] = {}
        self._soon: set[str] = set()

    def wake(self, task_id: str) -> None:
        """Have a look at this task now (call it in the event loop)."""
        if task_id in self._wake:
            self._wake[task_id].set()

    def progressed(self, task_id: str) -> None:
        """Something came in for this task: have a look soon, one for all that comes in meanwhile."""
        loop = asyncio.get_running_loop()
        wait = self._next_look.get(task_id, 0.0) - loop.time()
        if wait <= 0:
            self.wake(task_id)
        elif task_id not in self._soon:
            self._soon.add(task_id)
            loop.call_later(wait, self._wake_late, task_id)

    def _wake_late(self, task_id: str) -> None:
        self._soon.discard(task_id)
        self.wake(task_id)

    async def run(self) -> None:
        """Serve until cancelled: a driver for each open task, those made by other processes included."""
        try:
            while True:
                try:
                    open_tasks = await run_in_threadpool(self._open_tasks)
                    for task_id in open_tasks:
                        if task_id not in self._drivers:
                            self._start(task_id)
                except DATABASE_GONE as error:
                    _LOG.warning("the engine cannot list the tasks (%s) and tries again", type(error).__name__)
                except Exception:
                    _LOG.exception("the engine could not list the tasks and tries again")
                await asyncio.sleep(self._recheck)
        finally:
            for driver in self._drivers.values():
                driver.cancel()
            await asyncio.gather(*self._drivers.values(), return_exceptions=True)

    def _open_tasks(self) -> list[str]:
        with self._database.read() as session:
            return list(session.scalars(select(TaskRow.id).where(TaskRow.state == "open")))

    def _start(self, task_id: str) -> None:
        self._wake[task_id] = asyncio.Event()
        driver = self._drivers[task_id] = asyncio.create_task(self._drive(task_id), name=f"round engine {task_id}")
        driver.add_done_callback(lambda _: self._ended(task_id))

    def _ended(self, task_id: str) -> None:
        for known in (self._drivers, self._wake, self._next_look):
            known.pop(task_id, None)

    async def _drive(self, task_id: str) -> None:
        wake = self._wake[task_id]
        while True:
            wake.clear()
            try:
                pause = await self.advance(task_id)
            except (BlobsUnavailableError, *DATABASE_GONE) as error:
                _LOG.warning("storage fails with %s; trying again", type(error).__name__, extra=fields(task=task_id))
                pause = _BACK_OFF
            except WorkersUnavailableError as error:
                _LOG.warning("cannot run a job: %s; trying again", error, extra=fields(task=task_id))
                pause = _BACK_OFF
            except Exception:
                # The rows are as they were: nothing is lost by trying again, and other tasks go on.
                _LOG.exception("the engine failed at a task and tries again", extra=fields(task=task_id))
                pause = _BACK_OFF
            if pause is None:
                return
            if pause > 0:
                try:
                    await asyncio.wait_for(wake.wait(), min(pause, self._recheck))
                except TimeoutError:
                    continue

    async def advance(self, task_id: str) -> float | None:
        """Do the one thing that is due. Seconds until something may be due again; None: the task is over."""
        now = asyncio.get_running_loop().time
        started = now()
        seen = await run_in_threadpool(self._steps.look, task_id)
        # What clients send makes it look again soon, but the larger the cohort the longer a look takes.
        self._next_look[task_id] = now() + min(_SELDOM, max(_OFTEN, _SHARE * (now() - started)))
        return await self._steps.do(seen) if isinstance(seen, Situation) else seen
