"""Where folds and releases run: a pool of worker processes, so that no encryption library ever holds the API's
interpreter lock. `rounds.cluster` has the other kind, for more than one machine; `rounds.executors` chooses.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Final, Protocol, TypeVar

__all__ = ["ATTEMPTS", "FoldPool", "Workers", "WorkersUnavailableError"]

_LOG = logging.getLogger(__name__)

ATTEMPTS: Final = 3
"""How often a job is done whose worker dies, before that counts as a failure of the job."""

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


class WorkersUnavailableError(Exception):
    """No worker can take a job at the moment, or none that is fit for it: the work waits, nothing is lost.

    The text is for the operator and holds no secret.
    """


class Workers(Protocol):
    """Who does the jobs. Jobs are pure, so that one whose worker dies is done again; its outcome is what counts."""

    @property
    def width(self) -> int:
        """How many jobs run at the same time, as far as is known."""

    def threads(self, jobs: int) -> int:
        """How many threads each of `jobs` jobs may use when they run at the same time."""

    async def run(self, work: Callable[[Job], Outcome], job: Job) -> Outcome:
        """`work(job)`. `WorkersUnavailableError` when nobody can do it now, and whatever the work raises."""

    def check(self) -> str:
        """A quick look whether jobs would be done now: empty, or a remark. `WorkersUnavailableError` says what fails.

        May be called in any thread.
        """

    def close(self) -> None:
        """Let go of the workers; a job under way is abandoned, which loses nothing."""


def _prepare_worker() -> None:
    """A worker ends with its server, also when that is killed: it could otherwise wait on its queue for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class FoldPool:
    """Runs jobs on an executor of its own making, or on one that was handed in (which it never replaces)."""

    def __init__(self, workers: int, executor: Executor | None = None) -> None:
        self._workers = workers
        self._given = executor
        self._pool: Executor | None = executor

    @property
    def width(self) -> int:
        """See `Workers.width`."""
        return self._workers

    def threads(self, jobs: int) -> int:
        """See `Workers.threads`: the machine's processors are shared out evenly."""
        return max(1, (os.cpu_count() or 1) // jobs)

    async def run(self, work: Callable[[Job], Outcome], job: Job) -> Outcome:
        """`work(job)`. A worker that dies breaks the pool: a new one is made and the job, being pure, done again."""
        for attempt in range(1, ATTEMPTS + 1):
            pool = self._executor()
            try:
                return await asyncio.get_running_loop().run_in_executor(pool, work, job)
            except BrokenProcessPool:
                _LOG.warning("a fold worker died; its job is done again (attempt %d of %d)", attempt, ATTEMPTS)
                if pool is self._pool:
                    self._pool = self._given
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _executor(self) -> Executor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # forking a process with threads and TenSEAL is unsafe
            self._pool = ProcessPoolExecutor(self._workers, mp_context=context, initializer=_prepare_worker)
        return self._pool

    def check(self) -> str:
        """See `Workers.check`: dead workers are replaced, so there is nothing to say."""
        return ""

    def close(self) -> None:
        """Stop the workers of our own pool; a job under way is abandoned, which loses nothing."""
        if self._pool is not None and self._pool is not self._given:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
