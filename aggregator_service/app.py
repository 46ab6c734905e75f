"""The application: everything wired together, and the life of one server process."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import anyio.to_thread
from fastapi import FastAPI
from opentelemetry.trace import NoOpTracer, TracerProvider
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from aggregator_service.access.rate_limits import Limits
from aggregator_service.access.tokens import hash_token
from aggregator_service.clock import Clock, SystemClock
from aggregator_service.compute.open_workers import open_workers
from aggregator_service.compute.process_pool import Workers, WorkersUnavailableError
from aggregator_service.dashboard import routes as dashboard
from aggregator_service.dashboard.live import Streams
from aggregator_service.http.body_guard import BodyGuard
from aggregator_service.http.fast_polls import QuickPolls
from aggregator_service.http.security_headers import UNSEEN, SecureHeaders, strict_transport
from aggregator_service.logs import fields
from aggregator_service.migrations.migrate import migrate
from aggregator_service.observability.instruments import Instruments
from aggregator_service.observability.metrics import Metrics
from aggregator_service.observability.requests import RequestWatch
from aggregator_service.observability.tracing import tracer_of, tracing
from aggregator_service.polling.notifier import Notifier
from aggregator_service.polling.task_cache import TaskCache
from aggregator_service.problems import install_problem_handlers
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.rounds.leadership import Leadership
from aggregator_service.rounds.progress_relay import ProgressRelay
from aggregator_service.routes import (
    certificates,
    contributions,
    enrolments,
    health,
    invitations,
    ledger,
    members,
    metrics,
    operators,
    parameters,
    rounds,
    snapshots,
    stages,
    tasks,
)
from aggregator_service.routes.openapi import describe
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.cleanup import (
    collect_bodies,
    collect_orphans,
    delete_orphans,
    own_data_directory,
    sweep,
)
from aggregator_service.storage.database import Announcement, Database, Effects
from aggregator_service.storage.stores import open_store

__all__ = ["create_app"]

_LOG = logging.getLogger(__name__)
_ROUTERS: Final = (  # they are asked one after the other: what is wanted most comes first
    contributions,
    rounds,
    stages,
    snapshots,
    members,
    certificates,
    enrolments,
    tasks,
    invitations,
    parameters,
    operators,
    ledger,
    health,
    metrics,
    dashboard,
)


def create_app(
    settings: Settings,
    *,
    clock: Clock | None = None,
    executor: Executor | None = None,
    tracer_provider: TracerProvider | None = None,
) -> FastAPI:
    """The aggregator as an ASGI application.

    `clock`, `executor` and `tracer_provider` are for tests and simulations; by default time is the machine's, folds run
    in worker processes, and spans go where the settings say.
    """
    provider, flush = (tracer_provider, _no_flush) if tracer_provider is not None else tracing(settings.traces)
    instruments = Instruments(Metrics(), tracer_of(provider))
    app = _Aggregator(
        lifespan=lambda app: _lifespan(app, settings, clock or SystemClock(), executor, instruments, flush),
        redirect_slashes=False,  # such a redirect names whatever host the request named
        telemetry={"tracing": False, "metrics": False, "logs": False},  # its spans hold paths and queries
    )
    app.state.open_bodies = Counter()
    app.state.live_streams = Streams()
    for module in _ROUTERS:
        app.include_router(module.router)
    describe(app)
    install_problem_handlers(app)
    app.add_middleware(BodyGuard, json_limit=settings.json_body_limit, idle_seconds=settings.body_idle_seconds)
    app.add_middleware(RequestWatch, metrics=instruments.metrics, tracer=instruments.tracer)
    app.add_middleware(SecureHeaders, hsts_seconds=settings.hsts_seconds)
    if isinstance(instruments.tracer, NoOpTracer):  # spans are made further inside
        headers = [*UNSEEN, *strict_transport(settings.hsts_seconds)]
        app.quick_polls = QuickPolls(instruments.metrics, rounds.POLLS, headers)
    return app


class _Aggregator(FastAPI):
    """FastAPI, and before it what answers the polls."""

    quick_polls: QuickPolls | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Every request and the lifespan."""
        if self.quick_polls is not None and scope["type"] == "http" and scope["method"] == "GET":
            services: Services | None = getattr(self.state, "services", None)
            if services is not None and await self.quick_polls.answered(services, scope, send):
                return
        await super().__call__(scope, receive, send)


@asynccontextmanager
async def _lifespan(
    app: FastAPI,
    settings: Settings,
    clock: Clock,
    executor: Executor | None,
    instruments: Instruments,
    flush: Callable[[], None],
) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    anyio.to_thread.current_default_thread_limiter().total_tokens = settings.threads
    async with AsyncExitStack() as stack:
        stack.callback(flush)
        stack.enter_context(own_data_directory(settings.data_dir))
        database = Database(settings.database, connections=settings.threads)
        stack.callback(database.close)
        migrate(database)
        blobs = open_store(settings.blob_location, settings.scratch_dir)
        blobs.prepare()
        collect_bodies(settings.upload_dir)
        if settings.owns_storage:  # otherwise another server may be writing blobs right now
            collect_orphans(database, blobs)
        workers = open_workers(settings.executor, settings.workers, blobs, executor)
        stack.callback(workers.close)
        await run_in_threadpool(_look_at, workers)
        task_cache = TaskCache(database, clock, settings.recheck_seconds)
        notifier = Notifier(database, task_cache, settings.recheck_seconds)
        engine = RoundEngine(
            database,
            blobs,
            clock,
            workers,
            batch=settings.fold_batch,
            recheck=settings.recheck_seconds,
            split_bytes=settings.split_bytes,
            instruments=instruments,
        )
        instruments.metrics.watch(database)
        leadership = Leadership(
            database.candidacy(),
            instruments.metrics.leads,
            settings.recheck_seconds,
            own_blobs=settings.blobs is None,
        )
        progress_relay = ProgressRelay(database)
        listeners = CommitListeners(task_cache, notifier, engine, leadership, progress_relay)
        database.listeners.append(task_cache.committed)
        database.listeners.append(_after_commit(loop, blobs, listeners))
        token = settings.operator_token
        app.state.services = Services(
            settings=settings,
            clock=clock,
            database=database,
            blobs=blobs,
            notifier=notifier,
            task_cache=task_cache,
            engine=engine,
            workers=workers,
            metrics=instruments.metrics,
            limits=Limits(settings),
            operator_token_hash=None if token is None else hash_token(token.get_secret_value()),
        )
        stack.callback(database.listen(_when_told(loop, listeners)))
        leading = leadership.run(engine.run, lambda: sweep(database, blobs))
        for work in (leading, progress_relay.run(), notifier.watch()):
            task = asyncio.create_task(work)
            stack.push_async_callback(_cancel, task)
        if settings.signatures == "off":
            _LOG.warning("clients' requests are not signed (HUSHREC_SIGNATURES=off): a token alone acts as its client")
        _LOG.info("aggregator ready", extra=fields(workers=workers.width, threads=settings.threads))
        yield


def _look_at(workers: Workers) -> None:
    """Have them ready before the first fold. Whether they are, `/readyz` tells; uploads are taken without them."""
    try:
        remark = workers.check()
    except WorkersUnavailableError as error:
        _LOG.warning("sums will wait: %s", error)
    else:
        if remark:
            _LOG.warning("the executor is %s", remark)


def _no_flush() -> None:
    return


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@dataclass(frozen=True)
class CommitListeners:
    """Who hears of a commit: long polls of this process, and the round engine, in whichever process it runs. The memory
    has heard of our own already, in the thread that committed.
    """

    task_cache: TaskCache
    notifier: Notifier
    engine: RoundEngine
    leadership: Leadership
    progress_relay: ProgressRelay

    def ours(self, effects: Effects) -> None:
        """This process committed something."""
        for announcement in effects.announcements:
            self._wake(announcement)
            if announcement.version is None and not self.leadership.leads:
                self.progress_relay.progressed(announcement.task_id)

    def told(self, announcement: Announcement) -> None:
        """Another process committed something."""
        self.task_cache.told(announcement)
        self._wake(announcement)

    def _wake(self, announcement: Announcement) -> None:
        self.notifier.announce(announcement)
        if "round" not in announcement.topics:  # what came in, newcomers among it
            self.engine.progressed(announcement.task_id)
        else:
            self.engine.wake(announcement.task_id)


def _after_commit(
    loop: asyncio.AbstractEventLoop, blobs: BlobStore, listeners: CommitListeners
) -> Callable[[Effects], None]:
    """What a commit sets off. It is called in the committing thread; waking happens in the event loop."""

    def after(effects: Effects) -> None:
        if effects.announcements:
            loop.call_soon_threadsafe(listeners.ours, effects)
        delete_orphans(effects, blobs)

    return after


def _when_told(loop: asyncio.AbstractEventLoop, listeners: CommitListeners) -> Callable[[Announcement], None]:
    """What another process's commit sets off here."""

    def told(announcement: Announcement) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server is about to stop
            loop.call_soon_threadsafe(listeners.told, announcement)

    return told
