"""Jobs on a Dask cluster, for more than one machine. The only module that knows Dask.

Scheduler and workers are the operator's. What they may do is what a fold worker of this machine may: read and write
blobs. Everybody who reaches a scheduler without TLS can have it run anything, so this is for networks of one's own.
TLS comes from Dask's own configuration (DASK_DISTRIBUTED__COMM__TLS__...).
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from importlib import metadata
from time import monotonic
from typing import Any, Final, TypeVar
from uuid import uuid4

from distributed import Client, KilledWorker, Security
from distributed import TimeoutError as DaskTimeoutError
from starlette.concurrency import run_in_threadpool

from aggregator_service.compute.process_pool import ATTEMPTS, WorkersUnavailableError
from aggregator_service.storage.blobs import BlobStore, BlobsUnavailableError

__all__ = ["ClusterPool"]

_LOG = logging.getLogger(__name__)
_connect: Final[Any] = Client
_security: Final[Any] = Security
"""Dask's functions carry no types."""

_CONNECT_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 5.0
"""What a scheduler, or an idle worker, needs at most to answer a question."""

_PROTOCOLS: Final = {"dask": "tcp", "dask+tls": "tls"}

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


class ClusterPool:
    """`aggregator_service.compute.process_pool.Workers` on the cluster whose scheduler is at `address`.

    address: `dask://host:port`, or `dask+tls://host:port`. blobs: what every worker must be able to use.
    """

    def __init__(self, address: str, blobs: BlobStore) -> None:
        scheme, _, place = address.partition("://")
        self._address, self._blobs = f"{_PROTOCOLS[scheme]}://{place}", blobs
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # what it tells, we tell, in our form
        self._lock = threading.Lock()
        self._client: Any = None
        self._threads: dict[str, int] = {}
        self._vetted: set[str] = set()
        self._unfit: dict[str, str] = {}

    @property
    def width(self) -> int:
        """See `Workers.width`: worker processes that are there and fit, at least one, for others may come."""
        return max(1, len(self._fit()))

    def threads(self, jobs: int) -> int:  # noqa: ARG002 - each worker has its own
        """See `Workers.threads`: those that the operator gave each worker."""
        return min(self._fit().values(), default=1)

    def _fit(self) -> dict[str, int]:
        return {worker: threads for worker, threads in self._threads.items() if worker not in self._unfit}

    async def run(self, work: Callable[[Job], Outcome], job: Job) -> Outcome:
        """See `Workers.run`.

        The scheduler itself hands a job to another worker when one dies, and keeps jobs while there is no worker. Only
        what its own patience is at an end with, or what it lost with its own life, is submitted anew.
        """
        reason = ""
        for attempt in range(1, ATTEMPTS + 1):
            outcome = await run_in_threadpool(self._submit, work, job)
            waiter = asyncio.wrap_future(outcome)
            await asyncio.wait({waiter})  # unlike awaiting it, this tells its cancellation from our own
            if waiter.cancelled():
                reason = "the connection to the Dask scheduler was lost"
            elif isinstance(error := waiter.exception(), KilledWorker):
                reason = "its workers died one after the other"
            elif isinstance(error, ImportError | _UnfitError):  # another version, or none, over there
                reason = f"its worker cannot do it: {error}"
                self._vetted.clear()
            else:
                return waiter.result()
            _LOG.warning("a job is done again (attempt %d of %d): %s", attempt, ATTEMPTS, reason)
        raise WorkersUnavailableError(f"{ATTEMPTS} attempts at a job failed, at last since {reason}")

    def _submit(self, work: Callable[[Job], Outcome], job: Job) -> Future[Outcome]:
        with self._lock:
            client = self._connected()
            with suppress(DaskTimeoutError):  # a scheduler that is busy may take its time; what is known must do
                self._look_around(client)
            executor = client.get_executor(pure=False, **self._restriction())
            name = f"{work.__name__}-{uuid4().hex}"  # what the cluster's own pages and logs show of a job
            future: Future[Outcome] = executor.submit(pickle.loads, _packed(_do, _version(), work, job), key=name)
            return future

    def _restriction(self) -> dict[str, Any]:
        """Where a job may run: anywhere, unless some worker is unfit."""
        if not self._unfit:
            return {}
        fit = list(self._fit())
        if not fit:
            raise WorkersUnavailableError(next(iter(self._unfit.values())))
        return {"workers": fit, "allow_other_workers": True}  # others only when all of these are gone

    def check(self) -> str:
        """See `Workers.check`."""
        with self._lock:
            try:
                self._look_around(self._connected())
            except DaskTimeoutError as error:
                raise self._unreachable(error) from None
            self._restriction()
            if not self._threads:
                return "waiting for workers"
            return f"unfit workers: {len(self._unfit)}" if self._unfit else ""

    def _connected(self) -> Any:
        if self._client is not None and self._client.status != "running":
            self._let_go()
        if self._client is None:
            self._check_certificates()
            try:
                self._client = _connect(
                    self._address,
                    timeout=_CONNECT_SECONDS,
                    set_as_default=False,
                    asynchronous=False,
                    name="hushrec-server",
                )
            except (OSError, DaskTimeoutError) as error:
                raise self._unreachable(error) from None
            _LOG.info("connected to the Dask scheduler at %s", self._address)
        return self._client

    def _check_certificates(self) -> None:
        """Dask's own error comes late, and names none of its settings."""
        try:
            context = _security().get_connection_args("client").get("ssl_context")
        except OSError as error:
            raise WorkersUnavailableError(f"the certificates for the Dask cluster cannot be read ({error})") from None
        if self._address.startswith("tls://") and context is None:
            raise WorkersUnavailableError(
                f"no TLS to the Dask scheduler at {self._address}: "
                f"DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ..._CLIENT__CERT "
                f"and ..._CLIENT__KEY name the certificates"
            )

    def _look_around(self, client: Any) -> None:
        """Who is there now; those who are new, or were unfit, are asked whether they can do our jobs.

        `TimeoutError` from a scheduler that takes too long, which may be over in a moment.
        """
        try:
            self._threads = dict(client.nthreads(callback_timeout=_ANSWER_SECONDS))
        except DaskTimeoutError:
            raise
        except Exception as error:  # comm errors of Dask have no common base
            raise self._unreachable(error) from None
        self._vetted &= self._threads.keys()
        before, self._unfit = self._unfit, {}
        question = _packed(_probe, _version(), self._blobs)
        asked = {
            worker: client.submit(pickle.loads, question, workers=[worker], pure=False, key=f"probe-{uuid4().hex}")
            for worker in self._threads.keys() - self._vetted
        }
        deadline = monotonic() + _ANSWER_SECONDS
        for worker, answer in asked.items():
            try:
                unfit = answer.result(timeout=max(0.1, deadline - monotonic()))
            except DaskTimeoutError:
                continue  # busy with another's job, or about to die: asked again the next time
            except ImportError as error:
                unfit = f"has no hushrec that it can use ({error}): pip install 'hushrec[cluster]=={_version()}' there"
            except Exception as error:
                unfit = f"cannot even be asked for its version ({type(error).__name__})"
            if not unfit:
                self._vetted.add(worker)
                continue
            self._unfit[worker] = f"the Dask worker {worker} {unfit}"
            if worker not in before:
                _LOG.error("%s", self._unfit[worker])

    def _unreachable(self, error: Exception) -> WorkersUnavailableError:
        return WorkersUnavailableError(
            f"the Dask scheduler at {self._address} does not answer ({type(error).__name__}); "
            f"HUSHREC_EXECUTOR says where it is"
        )

    def _let_go(self) -> None:
        client, self._client = self._client, None
        self._threads, self._unfit = {}, {}
        self._vetted.clear()
        if client is not None:
            with suppress(Exception):  # what it was connected to may be gone
                client.close(timeout=1.0)

    def close(self) -> None:
        """See `Workers.close`."""
        with self._lock:
            self._let_go()


class _Call:
    """A call that is made where its pickle is loaded."""

    def __init__(self, function: Callable[..., Any], *given: Any) -> None:
        self._call = (function, given)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def _packed(function: Callable[..., Any], *given: Any) -> bytes:
    """What a worker calls with `pickle.loads`.

    Dask's scheduler unpickles what is submitted. Bytes spare it the work, and this project: it needs none of it, and
    sees of a job what it passes on.
    """
    return pickle.dumps(_Call(function, *given), protocol=5)


class _UnfitError(Exception):
    """Raised on a worker that must not do a job of this server's version."""


def _version() -> str:
    return metadata.version("hushrec")


def _probe(version: str, blobs: BlobStore) -> str:
    """On a worker: what keeps it from doing jobs of a server of `version`; empty when nothing does."""
    if _version() != version:
        return f"has hushrec {_version()}, and this server is {version}"
    try:
        blobs.check()
    except BlobsUnavailableError as error:
        return f"cannot use the blobs ({error}): all workers need the directory itself, or credentials for the bucket"
    except ImportError:
        return "has no S3 library: pip install 'hushrec[s3]'"
    return ""


def _do(version: str, work: Callable[[Job], Outcome], job: Job) -> Outcome:
    """On a worker: the job, unless another version of this project would do it."""
    if _version() != version:
        raise _UnfitError(f"hushrec {_version()} is not {version}")
    return work(job)
