"""Run jobs on a Dask cluster, for more than one machine. The only module that imports Dask.

The operator runs the scheduler and the workers. A worker reads and writes blobs, as a local worker process does.
Whoever can connect to a scheduler without TLS can run any code on it and on the workers: use TLS, from Dask's own
configuration (DASK_DISTRIBUTED__COMM__TLS__...).

The server unpickles nothing that a scheduler or a worker sends. Its connections decode plain values only
(`compute.plain_comm`), and it never fetches the result of a Dask task. A job writes a report as a blob, which the
server checks (`compute.outcomes`). Jobs go to the workers as pickles: the workers trust the server.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from importlib import metadata
from time import monotonic
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

from distributed import Client, Security, get_worker
from distributed import TimeoutError as DaskTimeoutError
from starlette.concurrency import run_in_threadpool

from aggregator_service.compute import jobs
from aggregator_service.compute.outcomes import Job as AnyJob
from aggregator_service.compute.outcomes import (
    OutcomeError,
    blob_lengths,
    longest_outcome,
    read_outcome,
    write_failure,
    write_outcome,
)
from aggregator_service.compute.plain_comm import PLAIN_SCHEMES, register_plain_schemes
from aggregator_service.compute.process_pool import ATTEMPTS, WorkersUnavailableError
from aggregator_service.storage.blobs import BlobDamagedError, BlobStore, BlobsUnavailableError, new_key

__all__ = ["ClusterPool"]

_LOG = logging.getLogger(__name__)
_connect: Final[Any] = Client
_security: Final[Any] = Security
"""Dask's functions have no type annotations."""

_CONNECT_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 5.0
_FIRST_ANSWER_SECONDS: Final = 30.0
"""Time limits for the answer of a scheduler or an idle worker. At the first check workers import the project."""

_PROTOCOLS: Final = {"dask": "tcp", "dask+tls": "tls"}

_UNFIT_TOPIC: Final = "hushrec-unfit"
_MOST_PROBES: Final = 10_000
_MOST_LETTERS: Final = 400
_NOT_PRINTABLE: Final = re.compile(r"[^ -~]")

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


class ClusterPool:
    """`compute.process_pool.Workers` on the Dask cluster whose scheduler is at `address`.

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
        self._said: dict[str, str] = {}

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
        reason, summed = "", cast("AnyJob", job)
        for attempt in range(1, ATTEMPTS + 1):
            report = new_key("outcomes", summed.task_id, summed.spec.number)
            task = await asyncio.wrap_future(await run_in_threadpool(self._submit, work, summed, report))
            if task.status == "finished":
                try:
                    return await run_in_threadpool(self._read, work, summed, report)
                except OutcomeError as error:
                    where = await run_in_threadpool(self._ran_on, task)
                    reason = f"the report of the worker {where} is refused: {error}"
            elif task.status == "error":
                reason = "workers died while they ran it, or lack hushrec"
                self._fit_workers.clear()
            else:
                reason = "the connection to the Dask scheduler was lost"
            _LOG.warning("job failed (attempt %d of %d): %s", attempt, ATTEMPTS, reason)
        raise WorkersUnavailableError(f"a job failed {ATTEMPTS} times; last reason: {reason}")

    def _submit(self, work: Callable[..., Any], job: AnyJob, report: str) -> Future[Any]:
        """Submit a job; return a future whose result is the Dask future, when that is done in one way or another."""
        with self._lock:
            client = self._connected()
            with suppress(DaskTimeoutError):  # a busy scheduler: use the workers that are known
                self._check_workers(client)
            name = f"{work.__name__}-{uuid4().hex}"  # shown on the cluster's pages and in its logs
            call = _pickled_call(_run_job, _version(), work, job, report)
            return _done(client.submit(pickle.loads, call, key=name, pure=False, **self._placement()))

    def _read(self, work: Callable[..., Outcome], job: AnyJob, report: str) -> Outcome:
        """Return the outcome of a job; raises as `outcomes.read_outcome`, and `OutcomeError` for blobs that lack."""
        try:
            body = self._blobs.read(report, longest_outcome(job))
        except BlobDamagedError:
            raise OutcomeError("it is missing or too long") from None
        finally:
            self._blobs.delete(report)
        outcome: Outcome = read_outcome(work, job, body)
        for key, length in blob_lengths(job, outcome).items():
            try:
                found = self._blobs.length(key)
            except BlobDamagedError:
                found = -1
            if found != length:
                raise OutcomeError("a blob of its outcome is missing or has another length than the plan says")
        return outcome

    def _ran_on(self, task: Any) -> str:
        """Return the address of the worker that ran a task, as the scheduler knows it."""
        with self._lock, suppress(Exception):
            return ", ".join(map(str, self._connected().who_has([task])[task.key]))
        return "(unknown)"

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
        """See `Workers.check`."""
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
            register_plain_schemes()
            scheme, _, place = self._address.partition("://")
            try:
                self._client = _connect(
                    f"{PLAIN_SCHEMES[scheme]}://{place}",
                    timeout=_CONNECT_SECONDS,
                    set_as_default=False,
                    asynchronous=False,
                    direct_to_workers=False,
                    name="hushrec-server",
                )
                self._client.subscribe_topic(_UNFIT_TOPIC, self._note_unfit)
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
        self._said.clear()
        probe = _pickled_call(_probe, _version(), self._blobs)
        answers = {
            worker: _done(client.submit(pickle.loads, probe, workers=[worker], pure=False, key=f"probe-{uuid4().hex}"))
            for worker in self._threads.keys() - self._fit_workers
        }
        deadline = monotonic() + (_ANSWER_SECONDS if self._checked else _FIRST_ANSWER_SECONDS)
        self._checked = True
        for worker, answer in answers.items():
            try:
                task = answer.result(timeout=max(0.1, deadline - monotonic()))
            except TimeoutError:
                continue  # the worker is busy or about to stop: it is checked again the next time
            if task.status == "finished" and task.key not in self._said:
                self._fit_workers.add(worker)
                continue
            if task.status not in ("finished", "error"):
                continue  # the connection was lost
            unfit = self._said.get(task.key, f"cannot import this version of hushrec: {_install()}")
            self._unfit[worker] = f"the Dask worker {worker} {unfit}"
            if worker not in before:
                _LOG.error("%s", self._unfit[worker])

    def _note_unfit(self, event: Any) -> None:
        """Keep what a worker says about itself: the event of a probe, any plain value."""
        match event:
            case (_, {"probe": str() as probe, "text": str() as text}) if len(self._said) < _MOST_PROBES:
                self._said[probe] = _NOT_PRINTABLE.sub("?", text[:_MOST_LETTERS])

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
        """See `Workers.close`."""
        with self._lock:
            self._disconnect()


class _Call:
    """A function call that is executed when its pickle is loaded."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def _pickled_call(function: Callable[..., Any], *arguments: Any) -> bytes:
    """Return a function call as bytes that a worker executes with `pickle.loads`.

    Dask's scheduler unpickles the arguments of a job. With bytes it need not have this project installed.
    """
    return pickle.dumps(_Call(function, *arguments), protocol=5)


def _version() -> str:
    """Version of the package and of its jobs. Server and workers must have the same."""
    return f"{metadata.version('hushrec')} (jobs {jobs.JOBS_VERSION})"


def _install() -> str:
    return f"install the server's version there (pip install 'hushrec[cluster]=={metadata.version('hushrec')}')"


def _done(task: Any) -> Future[Any]:
    """Return a future whose result is the Dask future itself, once that has finished, failed or been cancelled.

    The result of the Dask future is never fetched: it would be unpickled.
    """
    done: Future[Any] = Future()

    def finish(task: Any) -> None:
        with suppress(InvalidStateError):  # nobody waits any more
            done.set_result(task)

    task.add_done_callback(finish)
    return done


def _probe(version: str, blobs: BlobStore) -> None:
    """On a worker: report why it cannot run jobs of a server of `version`, if so, as an event of the probe's key."""
    unfit = _why_unfit(version, blobs)
    if unfit:
        worker: Any = get_worker()
        worker.log_event(_UNFIT_TOPIC, {"probe": worker.get_current_task(), "text": unfit})


def _why_unfit(version: str, blobs: BlobStore) -> str:
    if _version() != version:
        return f"has hushrec {_version()}, and this server is {version}: install the same version on both"
    try:
        blobs.check()
    except BlobsUnavailableError as error:
        return f"cannot use the blob store ({error}): each worker needs the directory, or credentials for the bucket"
    except ImportError:
        return "has no S3 library: install it there (pip install 'hushrec[s3]')"
    return ""


def _run_job(version: str, work: Callable[[AnyJob], Any], job: AnyJob, report: str) -> None:
    """On a worker: run the job and write its report as a blob.

    Raises `ImportError` when the worker's version is not `version`; what it raises here is not sent to the server.
    """
    if _version() != version:
        raise ImportError(f"this worker has hushrec {_version()}, and the server is {version}")
    try:
        body = write_outcome(work, work(job))
    except Exception as error:
        _LOG.warning("a job failed: %s", type(error).__name__)
        body = write_failure(error)
    job.blobs.put(report, body)
