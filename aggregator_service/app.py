"""The application: everything wired together, and the life of one server process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.bodies import BodyGuard
from aggregator_service.clock import Clock, SystemClock
from aggregator_service.housekeeping import collect_orphans, own_data_directory
from aggregator_service.logs import fields
from aggregator_service.longpoll import Notifier
from aggregator_service.openapi import describe
from aggregator_service.problems import install_problem_handlers
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.rounds.workers import FoldPool
from aggregator_service.routes import (
    contributions,
    enrolments,
    health,
    members,
    parameters,
    rounds,
    snapshots,
    stages,
    tasks,
)
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import DirectoryBlobs
from aggregator_service.storage.database import Database, Effects
from aggregator_service.storage.migrate import migrate
from aggregator_service.tokens import hash_token

__all__ = ["create_app"]

_LOG = logging.getLogger(__name__)
_ROUTERS: Final = (tasks, enrolments, members, rounds, stages, contributions, snapshots, parameters, health)


def create_app(settings: Settings, *, clock: Clock | None = None, executor: Executor | None = None) -> FastAPI:
    """The aggregator as an ASGI application.

    `clock` and `executor` are for tests and simulations; by default time is the machine's and folds run in worker
    processes.
    """
    app = FastAPI(lifespan=lambda app: _lifespan(app, settings, clock or SystemClock(), executor))
    app.state.busy_uploads = set()
    app.state.open_bodies = Counter()
    for module in _ROUTERS:
        app.include_router(module.router)
    describe(app)
    install_problem_handlers(app)
    app.add_middleware(BodyGuard, json_limit=settings.json_body_limit, idle_seconds=settings.body_idle_seconds)
    app.add_middleware(RequestLog)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI, settings: Settings, clock: Clock, executor: Executor | None) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    anyio.to_thread.current_default_thread_limiter().total_tokens = settings.threads
    async with AsyncExitStack() as stack:
        stack.enter_context(own_data_directory(settings.data_dir.resolve()))
        database = Database(settings.database, connections=settings.threads)
        stack.callback(database.close)
        migrate(database)
        blobs = DirectoryBlobs(settings.blob_dir)
        if database.is_sqlite:  # with a shared database other servers may be writing blobs right now
            collect_orphans(database, blobs, settings.upload_dir)
        pool = FoldPool(settings.workers, executor)
        stack.callback(pool.close)
        notifier = Notifier(database, settings.recheck_seconds)
        engine = RoundEngine(database, blobs, clock, pool, batch=settings.fold_batch, recheck=settings.recheck_seconds)
        database.listeners.append(_after_commit(loop, blobs, settings.upload_dir, notifier, engine))
        token = settings.operator_token
        app.state.services = Services(
            settings=settings,
            clock=clock,
            database=database,
            blobs=blobs,
            notifier=notifier,
            engine=engine,
            operator_token_hash=None if token is None else hash_token(token.get_secret_value()),
        )
        for work in (engine.run(), notifier.watch()):
            task = asyncio.create_task(work)
            stack.push_async_callback(_cancel, task)
        _LOG.info("aggregator ready", extra=fields(workers=settings.workers, threads=settings.threads))
        yield


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _after_commit(
    loop: asyncio.AbstractEventLoop, blobs: DirectoryBlobs, uploads: Path, notifier: Notifier, engine: RoundEngine
) -> Callable[[Effects], None]:
    """What a commit sets off. It is called in the committing thread; waking happens in the event loop."""

    def wake(effects: Effects) -> None:
        for announcement in effects.announcements:
            notifier.announce(announcement)
            engine.wake(announcement.task_id)

    def after(effects: Effects) -> None:
        if effects.announcements:
            loop.call_soon_threadsafe(wake, effects)
        for key in effects.orphans:
            blobs.delete(key)
        for name in effects.bodies:
            (uploads / name).unlink(missing_ok=True)

    return after


class RequestLog:
    """One line a request: method, route template, status, sizes and time. No query, no header, no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and log its outcome."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, seen = time.perf_counter(), {"status": 0, "sent": 0}

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen["status"] = message["status"]
            elif message["type"] == "http.response.body":
                seen["sent"] += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            _LOG.info("request", extra=_request_fields(scope, seen, time.perf_counter() - started))


def _request_fields(scope: Scope, seen: dict[str, int], seconds: float) -> dict[str, Any]:
    parameters: dict[str, Any] = scope.get("path_params", {})
    route = getattr(scope.get("route"), "path_format", None) or "(no route)"
    number = parameters.get("number")
    return fields(
        method=scope["method"],
        route=str(route),
        status=seen["status"],
        sent=seen["sent"],
        milliseconds=round(seconds * 1000, 1),
        round=int(number) if isinstance(number, str) and number.isascii() and number.isdigit() else None,
    )
