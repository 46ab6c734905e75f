"""Run jobs on a Dask cluster, for more than one machine. The only module that imports Dask.

The operator runs the scheduler and the workers, which are as trusted as the server: jobs and results are pickles, as
Dask sends them, so whoever controls one of the three can run code on the others. TLS, from Dask's own configuration
(DASK_DISTRIBUTED__COMM__TLS__...), keeps everybody else out. A worker reads and writes blobs, as a local worker does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from importlib import metadata
from time import monotonic
from typing import Any, Final, TypeVar

from distributed import Client, KilledWorker, Security
from distributed import TimeoutError as DaskTimeoutError
from starlette.concurrency import run_in_threadpool

from aggregator_service.compute.workers import ATTEMPTS, WorkersUnavailableError
from aggregator_service.storage.blobs import BlobStore

_LOG = logging.getLogger(__name__)
_connect: Final[Any] = Client
_security: Final[Any] = Security
"""Dask's functions have no type annotations."""

_CONNECT_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 5.0
_FIRST_ANSWER_SECONDS: Final = 30.0
"""Time limits for the answer of a scheduler or an idle worker. At the first check workers import the project."""
_PROTOCOLS: Final = {"dask": "tcp", "dask+tls": "tls"}

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


class ClusterPool:
    """`compute.workers.Workers` on the Dask cluster whose scheduler is at `address`.

    address: `dask://host:port`, or `dask+tls://host:port`. blobs: the store that every worker must be able to use.
    """

    def __init__(self, address: str, blobs: BlobStore) -> None:
        scheme, _, place = address.partition("://")
        self._address, self._blobs = f"{_PROTOCOLS[scheme]}://{place}", blobs
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # this module logs its errors itself
        self._lock = threading.Lock()
        self._client: Any = None
        self._threads: dict[str, int] = {}
        self._checked = False
        self._fit_workers: set[str] = set()
        self._unfit: dict[str, str] = {}

    @property
    def width(self) -> int:
        """See `Workers.width`: the fit workers that are connected. At least 1, since workers may connect later."""
        return max(1, len(self._fit()))

    def threads(self, jobs: int) -> int:  # noqa: ARG002 - the workers do not share threads
        """See `Workers.threads`: as configured by the operator; the fewest of any worker."""
        return min(self._fit().values(), default=1)

    def _fit(self) -> dict[str, int]:
        return {worker: threads for worker, threads in self._threads.items() if worker not in self._unfit}

    async def run(self, work: Callable[[Job], Outcome], job: Job) -> Outcome:
        """See `Workers.run`.

        The scheduler gives a job to another worker when one dies, and queues jobs while no worker is connected. A job
        is submitted again only when the scheduler gives it up or the connection to the scheduler is lost.
        """
        reason = ""
        for attempt in range(1, ATTEMPTS + 1):
            task = await asyncio.wrap_future(await run_in_threadpool(self._submit, work, job))
            if task.status == "finished":
                outcome: Outcome = await run_in_threadpool(task.result)
                return outcome
            if task.status == "error":
                error = await run_in_threadpool(task.exception)
                if not isinstance(error, KilledWorker | ImportError):
                    raise error
                reason = "workers died while they ran it, or lack hushrec"
                self._fit_workers.clear()
            else:
                reason = "the connection to the Dask scheduler was lost"
            _LOG.warning("job failed (attempt %d of %d): %s", attempt, ATTEMPTS, reason)
        raise WorkersUnavailableError(f"a job failed {ATTEMPTS} times; last reason: {reason}")

    def _submit(self, work: Callable[..., Any], job: Any) -> Future[Any]:
        """Submit a job; return a future whose result is the Dask future, when that is done in one way or another."""
        with self._lock:
            client = self._connected()
            with suppress(DaskTimeoutError):  # a busy scheduler: use the workers that are known
                self._check_workers(client)
            return _done(client.submit(work, job, pure=False, **self._placement()))

    def _placement(self) -> dict[str, Any]:
        """Arguments that restrict a job to fit workers; none when no worker is unfit.

        Raises `WorkersUnavailableError` when all connected workers are unfit.
        """
        if not self._unfit:
            return {}
        fit = list(self._fit())
        if not fit:
            raise WorkersUnavailableError(next(iter(self._unfit.values())))
        return {"workers": fit, "allow_other_workers": True}  # others only when all of these have disconnected

    def check(self) -> str:
        with self._lock:
            try:
                self._check_workers(self._connected())
            except DaskTimeoutError as error:
                raise self._unreachable(error) from None
            self._placement()
            if not self._threads:
                return "waiting for workers"
            return f"unfit workers: {len(self._unfit)}" if self._unfit else ""

    def _connected(self) -> Any:
        if self._client is not None and self._client.status != "running":
            self._disconnect()
        if self._client is None:
            self._check_certificates()
            try:
                self._client = _connect(
                    self._address, timeout=_CONNECT_SECONDS, set_as_default=False, name="hushrec-server"
                )
            except (OSError, DaskTimeoutError) as error:
                raise self._unreachable(error) from None
            _LOG.info("connected to the Dask scheduler at %s", self._address)
        return self._client

    def _check_certificates(self) -> None:
        """Raise `WorkersUnavailableError` for missing certificates: Dask's own error does not name the settings."""
        try:
            context = _security().get_connection_args("client").get("ssl_context")
        except OSError as error:
            raise WorkersUnavailableError(f"cannot read the certificates for the Dask cluster: {error}") from None
        if self._address.startswith("tls://") and context is None:
            raise WorkersUnavailableError(
                f"no TLS to the Dask scheduler at {self._address}: "
                f"set DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ..._CLIENT__CERT "
                f"and ..._CLIENT__KEY to the paths of the certificates"
            )

    def _check_workers(self, client: Any) -> None:
        """List the workers; have those that are new, or were unfit, check that they can run our jobs.

        Raises `DaskTimeoutError` when the scheduler is too busy to answer in time.
        """
        try:
            self._threads = dict(client.nthreads(callback_timeout=_ANSWER_SECONDS))
        except DaskTimeoutError:
            raise
        except Exception as error:  # the communication errors of Dask have no common base class
            raise self._unreachable(error) from None
        self._fit_workers &= self._threads.keys()
        before, self._unfit = self._unfit, {}
        deadline = monotonic() + (_ANSWER_SECONDS if self._checked else _FIRST_ANSWER_SECONDS)
        self._checked = True
        new = self._threads.keys() - self._fit_workers
        # Plain values first: a worker ends when it gets one of our objects, and hushrec is not installed there.
        versions = _answers(client, new, deadline, metadata.version, "hushrec")
        unfit = {worker: why for worker, answer in versions.items() if (why := _wrong_version(answer))}
        stores = _answers(client, versions.keys() - unfit.keys(), deadline, self._blobs.check)
        unfit |= {worker: why for worker, answer in stores.items() if (why := _no_store(answer))}
        self._fit_workers |= stores.keys() - unfit.keys()
        for worker, why in unfit.items():
            self._unfit[worker] = f"the Dask worker {worker} {why}"
            if worker not in before:
                _LOG.error("%s", self._unfit[worker])

    def _unreachable(self, error: Exception) -> WorkersUnavailableError:
        return WorkersUnavailableError(
            f"the Dask scheduler at {self._address} does not answer ({type(error).__name__}); "
            f"start it, or correct HUSHREC_EXECUTOR"
        )

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        self._threads, self._unfit = {}, {}
        self._fit_workers.clear()
        if client is not None:
            with suppress(Exception):  # the scheduler may be gone
                client.close(timeout=1.0)

    def close(self) -> None:
        with self._lock:
            self._disconnect()


_VERSION: Final = metadata.version("hushrec")
_INSTALL: Final = f"install HushRec {_VERSION} there as on the server, with the extra `cluster`"


def _answers(
    client: Any, workers: Iterable[str], deadline: float, probe: Callable[..., object], *arguments: str
) -> dict[str, Any]:
    """Return what `probe` returned or raised on each of these workers that answered in time."""
    asked = {
        worker: _done(client.submit(probe, *arguments, workers=[worker], pure=False)) for worker in sorted(workers)
    }
    found: dict[str, Any] = {}
    for worker, done in asked.items():
        # not in time: busy, about to stop, or the connection was lost; the worker is checked again
        with suppress(TimeoutError, DaskTimeoutError, CancelledError, asyncio.CancelledError):
            task = done.result(timeout=max(0.1, deadline - monotonic()))
            failed = task.status == "error"
            found[worker] = task.exception(timeout=_ANSWER_SECONDS) if failed else task.result(_ANSWER_SECONDS)
    return found


def _wrong_version(answer: Any) -> str:
    """Return why a worker with this version cannot run our jobs; an empty string if it can."""
    if isinstance(answer, Exception):
        return f"has no hushrec: {_INSTALL}"
    return "" if answer == _VERSION else f"has hushrec {answer}, and this server is {_VERSION}: {_INSTALL}"


def _no_store(answer: Any) -> str:
    """Return why a worker cannot use the blob store, as `_wrong_version` does."""
    if isinstance(answer, ImportError):
        return "has no S3 library: install HushRec there with the extra `s3`"
    if isinstance(answer, Exception):
        return f"cannot use the blob store ({answer}): each worker needs the directory, or credentials for the bucket"
    return ""


def _done(task: Any) -> Future[Any]:
    """Return a future whose result is the Dask future itself, once that has finished, failed or been cancelled."""
    done: Future[Any] = Future()

    def finish(task: Any) -> None:
        with suppress(InvalidStateError):  # nobody waits any more
            done.set_result(task)

    task.add_done_callback(finish)
    return done
