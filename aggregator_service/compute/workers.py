"""Run folds and releases in worker processes, so that encryption libraries never hold the API's interpreter lock.

`compute.cluster` runs them on several machines. `app.open_workers` selects one of the two.
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

from protocols.errors import HushRecError

_LOG = logging.getLogger(__name__)

ATTEMPTS: Final = 3
"""How often a job is tried when its workers die."""
START_METHOD = "spawn"
"""How workers start: forking is unsafe with threads and TenSEAL. The tests have a process that forks them."""

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


class WorkersUnavailableError(HushRecError):
    """No fit worker is available. The job is tried again later; nothing is lost.

    The message is for the operator and contains no secret.
    """


class Workers(Protocol):
    """Runs jobs. Jobs are pure functions, so a job whose worker dies is run again."""

    @property
    def width(self) -> int:
        """Number of jobs that can run at the same time."""

    def threads(self, jobs: int) -> int:
        """Return the number of threads that each of `jobs` simultaneous jobs may use."""

    async def run(self, work: Callable[[Job], Outcome], job: Job) -> Outcome:
        """Return `work(job)`; raises what `work` raises, `WorkersUnavailableError` when no fit worker is available."""

    def check(self) -> str:
        """Check quickly whether jobs can run now; return a remark for the operator, or an empty string.

        Raises `WorkersUnavailableError`, with the reason, when they cannot. May be called in any thread.
        """

    def close(self) -> None:
        """Release the workers. Jobs under way are abandoned; nothing is lost."""


def prepare_worker() -> None:
    """Make a worker exit with its server, also when that is killed: it would otherwise wait on its queue forever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(parent.sentinel,), daemon=True).start()


def _exit_with_parent(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class FoldPool:
    """`Workers` in a pool of `workers` processes that it makes, or on a given `executor`, which it never replaces."""

    def __init__(self, workers: int, executor: Executor | None = None) -> None:
        self._workers = workers
        self._given = executor
        self._pool: Executor | None = executor

    @property
    def width(self) -> int:
        return self._workers

    def threads(self, jobs: int) -> int:
        """See `Workers.threads`: the machine's processors divided by the jobs."""
        return max(1, (os.cpu_count() or 1) // jobs)

    async def run(self, work: Callable[[Job], Outcome], job: Job) -> Outcome:
        """See `Workers.run`. A worker that dies breaks the pool: a new pool is made and the job is run again."""
        for attempt in range(1, ATTEMPTS + 1):
            pool = self._executor()
            try:
                return await asyncio.get_running_loop().run_in_executor(pool, work, job)
            except BrokenProcessPool as error:
                _LOG.warning("a worker process died during a job (attempt %d of %d)", attempt, ATTEMPTS)
                if pool is self._pool:
                    self._pool = self._given
                if attempt == ATTEMPTS:
                    raise WorkersUnavailableError(f"a job ended {ATTEMPTS} worker processes") from error
        raise AssertionError("unreachable")

    def _executor(self) -> Executor:
        if self._pool is None:
            context = multiprocessing.get_context(START_METHOD)
            self._pool = ProcessPoolExecutor(self._workers, mp_context=context, initializer=prepare_worker)
        return self._pool

    def check(self) -> str:
        """See `Workers.check`: always empty, since dead workers are replaced."""
        return ""

    def close(self) -> None:
        """Stop the processes of our own pool: drop the jobs that wait, and wait for those under way.

        Python would wait for them at its exit. In a process that a supervisor started it would first close the queue
        that tells the workers to end, sometimes before they are told, and then wait for ever.
        """
        if self._pool is not None and self._pool is not self._given:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
