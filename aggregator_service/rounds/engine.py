"""The engine: a loop for each open task that executes the next action of its round (`rounds.advance`).

It keeps no state: each action follows from the rows. So an engine that is killed continues where it was, and two
engines on one database do no harm: of two results for the same action one is committed, the other is discarded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from aggregator_service.clock import Clock
from aggregator_service.compute.split_jobs import SplitJobs
from aggregator_service.compute.workers import Workers, WorkersUnavailableError
from aggregator_service.logs import fields
from aggregator_service.observability.metrics import Instruments
from aggregator_service.rounds.advance import RoundAdvancer
from aggregator_service.rounds.batches import ActiveRound
from aggregator_service.settings import SPLIT_BYTES
from aggregator_service.storage.blobs import BlobStore, BlobsUnavailableError, store_trouble
from aggregator_service.storage.database import DATABASE_GONE, Database
from aggregator_service.storage.dialects import database_cause
from aggregator_service.storage.schema import TaskRow

_LOG = logging.getLogger(__name__)
_OPEN: Final = select(TaskRow.id).where(TaskRow.state == "open")
_BACK_OFF: Final = 1.0
_MIN_PAUSE: Final = 0.05
_MAX_PAUSE: Final = 0.5
_PAUSE_FACTOR: Final = 10.0
"""Seconds between two calls: this many times what the work that follows a call takes, within the two bounds."""


class Debounce:
    """Calls `call` soon after `soon`, in the event loop, but at most once in a pause: many calls share one."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._next = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Call as soon as the pause after the last work is over."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._next, self._fire)

    def worked(self, seconds: float) -> None:
        """Note that the work that a call causes has ended now, and how long it took."""
        pause = min(_MAX_PAUSE, max(_MIN_PAUSE, _PAUSE_FACTOR * seconds))
        self._next = asyncio.get_running_loop().time() + pause

    def stop(self) -> None:
        """Do not call any more, until `soon` is called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._call()


class RoundEngine:
    """Drives every open task in a coroutine of its own, so that a long fold does not delay other tasks.

    may_act: returns whether this process is fit to drive rounds; while it is not, no action is executed.
    batch: contributions that one worker folds at once; None: chosen by their length. recheck: seconds after which a
    task is read again without news. split_bytes: see `SplitJobs`. works: see `RoundAdvancer`.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        clock: Clock,
        workers: Workers,
        *,
        may_act: Callable[[], bool],
        works: Callable[[], bool],
        batch: int | None,
        recheck: float,
        split_bytes: int = SPLIT_BYTES,
        instruments: Instruments | None = None,
    ) -> None:
        self._database, self._may_act, self._recheck = database, may_act, recheck
        jobs = SplitJobs(workers, split_bytes)
        self._advancer = RoundAdvancer(database, blobs, clock, jobs, batch, instruments or Instruments(), works)
        self._wake: dict[str, asyncio.Event] = {}
        self._drivers: dict[str, asyncio.Task[None]] = {}
        self._reads: dict[str, Debounce] = {}
        self._ahead: dict[str, float] = {}
        """Messages of clients until there is something to do in a task (`ActiveRound.messages_ahead`)."""
        self._stuck: dict[str, str] = {}

    @property
    def remark(self) -> str:
        """How many tasks cannot go on at the moment, and why the first one cannot; empty while all can."""
        causes = list(self._stuck.values())
        return f"{len(causes)} task{'s' if len(causes) > 1 else ''} cannot go on: {causes[0]}" if causes else ""

    def wake(self, task_id: str) -> None:
        """Read this task now: its round changed. Call it in the event loop."""
        if task_id in self._wake:
            self._wake[task_id].set()

    def progressed(self, task_id: str) -> None:
        """Read this task soon: it has new members, or messages of clients that another process took. Call it in the
        event loop."""
        if task_id in self._reads:
            self._reads[task_id].soon()

    def delivered(self, task_id: str) -> None:
        """Count a message that this process took; read the task soon if it changes what is to do. Call it in the event
        loop, once for each message."""
        if task_id in self._ahead:
            self._ahead[task_id] -= 1
            if self._ahead[task_id] <= 0:
                self.progressed(task_id)

    async def run(self) -> None:
        """Drive all open tasks, also those that other processes create, until cancelled."""
        try:
            while True:
                try:
                    open_tasks = await run_in_threadpool(self._open_tasks)
                    for task_id in open_tasks:
                        if task_id not in self._drivers:
                            self._start(task_id)
                except DATABASE_GONE as error:
                    _LOG.warning("cannot list the open tasks: %s", database_cause(error))
                except Exception:
                    _LOG.exception("failed to list the open tasks; trying again in %g s", self._recheck)
                await asyncio.sleep(self._recheck)
        finally:
            for driver in self._drivers.values():
                driver.cancel()
            await asyncio.gather(*self._drivers.values(), return_exceptions=True)

    def _open_tasks(self) -> list[str]:
        return [row.id for row in self._database.rows(_OPEN, {})]

    def _start(self, task_id: str) -> None:
        self._wake[task_id] = asyncio.Event()
        self._reads[task_id], self._ahead[task_id] = Debounce(self._wake[task_id].set), 0.0
        driver = self._drivers[task_id] = asyncio.create_task(
            self._drive_rounds(task_id), name=f"round engine {task_id}"
        )
        driver.add_done_callback(lambda _: self._remove_driver(task_id))

    def _remove_driver(self, task_id: str) -> None:
        for known in (self._drivers, self._wake, self._stuck, self._ahead):
            known.pop(task_id, None)
        if read := self._reads.pop(task_id, None):
            read.stop()

    async def _drive_rounds(self, task_id: str) -> None:
        wake = self._wake[task_id]
        while True:
            wake.clear()
            try:
                pause = await self.advance(task_id)
                self._stuck.pop(task_id, None)
            except Exception as error:
                # The rows did not change, so trying again loses nothing; other tasks continue.
                self._note_stuck(task_id, error)
                pause = _BACK_OFF
            if pause is None:
                return
            if pause > 0:
                try:
                    async with asyncio.timeout(min(pause, self._recheck)):  # in 3.11, wait_for may lose a cancellation
                        await wake.wait()
                except TimeoutError:
                    continue

    def _note_stuck(self, task_id: str, error: Exception) -> None:
        of_task = fields(task=task_id)
        if isinstance(error, DATABASE_GONE):
            self._stuck[task_id] = database_cause(error)
            _LOG.warning("cannot advance a task: %s", self._stuck[task_id], extra=of_task)
        elif isinstance(error, BlobsUnavailableError):
            self._stuck[task_id] = store_trouble(error)
            _LOG.warning("storage unavailable: %s; trying again", error, extra=of_task)
        elif isinstance(error, WorkersUnavailableError):
            self._stuck[task_id] = "the executor does not work"
            _LOG.warning("cannot run a job: %s; trying again", error, extra=of_task)
        else:
            self._stuck[task_id] = "an unexpected error, which is in the log"
            _LOG.error("failed to advance a task; trying again", extra=of_task, exc_info=error)

    async def advance(self, task_id: str) -> float | None:
        """Execute the action that is due in a task.

        Return the seconds until the next action may be due; None when the task is over.
        """
        if not self._may_act():  # `rounds.leadership` hands the lead over within a second
            return _BACK_OFF
        loop = asyncio.get_running_loop()
        begun, counted = loop.time(), self._ahead.get(task_id, 0.0)
        found = await run_in_threadpool(self._advancer.read, task_id)
        if task_id in self._reads:
            self._reads[task_id].worked(loop.time() - begun)
            meanwhile = counted - self._ahead[task_id]  # of these messages, some may be among those read
            self._ahead[task_id] = (found.messages_ahead if isinstance(found, ActiveRound) else 0.0) - meanwhile
            if meanwhile and self._ahead[task_id] <= 0:
                self.progressed(task_id)
        if not isinstance(found, ActiveRound):
            return found
        return await self._advancer.advance(found) if self._may_act() else _BACK_OFF  # reading takes a while
