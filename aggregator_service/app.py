"""The application: everything wired together, and the life of one server process."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio.to_thread
from fastapi import FastAPI
from opentelemetry.trace import TracerProvider

from aggregator_service.bodies import BodyGuard
from aggregator_service.clock import Clock, SystemClock
from aggregator_service.headers import SecureHeaders
from aggregator_service.housekeeping import collect_bodies, collect_orphans, let_go, own_data_directory, sweep
from aggregator_service.limits import Limits
from aggregator_service.logs import fields
from aggregator_service.longpoll import Notifier
from aggregator_service.observability.instruments import Instruments
from aggregator_service.observability.metrics import Metrics
from aggregator_service.observability.requests import RequestWatch
from aggregator_service.observability.tracing import tracer_of, tracing
from aggregator_service.openapi import describe
from aggregator_service.problems import install_problem_handlers
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.rounds.workers import FoldPool
from aggregator_service.routes import (
    contributions,
    enrolments,
    health,
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
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.database import Announcement, Database, Effects
from aggregator_service.storage.migrate import migrate
from aggregator_service.storage.stores import open_store
from aggregator_service.tokens import hash_token

__all__ = ["create_app"]

_LOG = logging.getLogger(__name__)
_ROUTERS: Final = (
    tasks,
    enrolments,
    members,
    rounds,
    stages,
    contributions,
    snapshots,
    parameters,
    operators,
    ledger,
    health,
    metrics,
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
    app = FastAPI(
        lifespan=lambda app: _lifespan(app, settings, clock or SystemClock(), executor, instruments, flush),
        telemetry={"tracing": False, "metrics": False, "logs": False},  # its spans hold paths and queries
    )
    app.state.busy_uploads = set()
    app.state.open_bodies = Counter()
    for module in _ROUTERS:
        app.include_router(module.router)
    describe(app)
    install_problem_handlers(app)
    app.add_middleware(BodyGuard, json_limit=settings.json_body_limit, idle_seconds=settings.body_idle_seconds)
    app.add_middleware(RequestWatch, metrics=instruments.metrics, tracer=instruments.tracer)
    app.add_middleware(SecureHeaders, hsts_seconds=settings.hsts_seconds)
    return app


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
        stack.enter_context(own_data_directory(settings.data_dir.resolve()))
        database = Database(settings.database, connections=settings.threads)
        stack.callback(database.close)
        migrate(database)
        blobs = open_store(settings.blob_location, settings.scratch_dir)
        blobs.prepare()
        collect_bodies(database, settings.upload_dir)
        if settings.owns_storage:  # otherwise another server may be writing blobs right now
            collect_orphans(database, blobs)
        pool = FoldPool(settings.workers, executor)
        stack.callback(pool.close)
        notifier = Notifier(database, settings.recheck_seconds)
        engine = RoundEngine(
            database,
            blobs,
            clock,
            pool,
            batch=settings.fold_batch,
            recheck=settings.recheck_seconds,
            instruments=instruments,
        )
        instruments.metrics.watch(database)
        database.listeners.append(_after_commit(loop, blobs, settings.upload_dir, notifier, engine))
        token = settings.operator_token
        app.state.services = Services(
            settings=settings,
            clock=clock,
            database=database,
            blobs=blobs,
            notifier=notifier,
            engine=engine,
            metrics=instruments.metrics,
            limits=Limits(settings),
            operator_token_hash=None if token is None else hash_token(token.get_secret_value()),
        )
        stack.callback(database.listen(_when_told(loop, notifier, engine)))
        for work in (engine.run(), notifier.watch(), sweep(database, blobs)):
            task = asyncio.create_task(work)
            stack.push_async_callback(_cancel, task)
        _LOG.info("aggregator ready", extra=fields(workers=settings.workers, threads=settings.threads))
        yield


def _no_flush() -> None:
    return


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _after_commit(
    loop: asyncio.AbstractEventLoop, blobs: BlobStore, uploads: Path, notifier: Notifier, engine: RoundEngine
) -> Callable[[Effects], None]:
    """What a commit sets off. It is called in the committing thread; waking happens in the event loop."""

    def after(effects: Effects) -> None:
        if effects.announcements:
            loop.call_soon_threadsafe(_wake, effects, notifier, engine)
        let_go(effects, blobs, uploads)

    return after


def _when_told(
    loop: asyncio.AbstractEventLoop, notifier: Notifier, engine: RoundEngine
) -> Callable[[Announcement], None]:
    """What another process's commit sets off here."""

    def told(announcement: Announcement) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server is about to stop
            loop.call_soon_threadsafe(_wake, Effects([announcement]), notifier, engine)

    return told


def _wake(effects: Effects, notifier: Notifier, engine: RoundEngine) -> None:
    for announcement in effects.announcements:
        notifier.announce(announcement)
        engine.wake(announcement.task_id)
