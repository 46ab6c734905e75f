"""The ASGI application: its routes and middlewares, the services behind them, and the lifespan of one process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib import metadata
from typing import Any, Final, Literal

import anyio.to_thread
from fastapi import APIRouter, FastAPI
from opentelemetry.trace import NoOpTracerProvider, TracerProvider
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.audit_trail import NOBODY, Attempt, Refusals
from aggregator_service.access.principals import hash_token
from aggregator_service.access.rate_limits import AtOnce, Limits, Room
from aggregator_service.clock import Clock, SystemClock
from aggregator_service.commits import CommitListeners
from aggregator_service.compute.workers import FoldPool, Workers, WorkersUnavailableError
from aggregator_service.dashboard import creation_forms, people_pages, records
from aggregator_service.dashboard import routes as dashboard
from aggregator_service.dashboard.access import HOME
from aggregator_service.dashboard.live import Streams
from aggregator_service.http.middleware import BodyGuard, Responses
from aggregator_service.logs import fields
from aggregator_service.migrations.migrate import migrate
from aggregator_service.observability.clocks import ClockWatch
from aggregator_service.observability.metrics import Instruments, Metrics
from aggregator_service.observability.requests import RequestRecord, RequestRecorder
from aggregator_service.polling.cache import TaskCache
from aggregator_service.polling.notifier import Notifier
from aggregator_service.problem_handlers import install_problem_handlers
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.rounds.leadership import Leadership
from aggregator_service.rounds.outages import OutageWatch
from aggregator_service.routes import (
    audit,
    committee,
    contributions,
    enrolments,
    health,
    members,
    operators,
    rounds,
    snapshots,
    stages,
    tasks,
)
from aggregator_service.routes.openapi import describe
from aggregator_service.services import Services
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.data_directory import collect_bodies, own_data_directory
from aggregator_service.storage.database import Database
from aggregator_service.storage.group_commit import GroupCommit
from aggregator_service.storage.lookups import Lookups
from aggregator_service.storage.packs import Packs
from aggregator_service.storage.stores import bind_store, collect_orphans, open_store, refuse_moved, sweep
from aggregator_service.tasks.ledger import spent_budgets
from aggregator_service.tasks.retention import keep_up
from protocols.errors import missing_extra

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS: Final = 1.0
_NAME: Final = "hushrec-aggregator"
"""Of this service in traces."""
_ROUTERS: Final[tuple[APIRouter, ...]] = (
    # the most frequent requests first
    contributions.router,
    stages.router,
    rounds.router,
    committee.router,
    committee.rounds_router,
    snapshots.router,
    members.router,
    members.certificates_router,
    enrolments.router,
    tasks.router,
    enrolments.invitations_router,
    operators.router,
    audit.router,
    tasks.ledger_router,
    health.router,
    dashboard.front_router,
    creation_forms.router,
    records.router,
    people_pages.router,
    dashboard.router,
)
"""In the order in which Starlette tries them."""


def create_app(
    settings: Settings,
    *,
    clock: Clock | None = None,
    executor: Executor | None = None,
    tracer_provider: TracerProvider | None = None,
) -> FastAPI:
    """Return the aggregator as an ASGI application. Storage is opened when its lifespan starts.

    `clock`, `executor` and `tracer_provider` are for tests and simulations. The defaults are the system clock, the
    executor that `settings.executor` names, and the exporter that `settings.traces` names. Raises `ParameterError` if
    `settings.traces` needs an extra that is not installed.
    """
    provider, flush_spans = (
        open_tracing(settings.traces) if tracer_provider is None else (tracer_provider, lambda: None)
    )
    instruments = Instruments(Metrics(), provider.get_tracer(_NAME, metadata.version("hushrec")))
    app = FastAPI(
        lifespan=lambda app: _lifespan(app, settings, clock or SystemClock(), executor, instruments, flush_spans),
        docs_url=None,  # FastAPI's viewers load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # the redirect's Location would repeat the Host header of the request
        telemetry={"tracing": False, "metrics": False, "logs": False},  # FastAPI's spans hold paths and queries
    )
    app.state.live_streams = Streams()
    app.state.beside_server = _nothing_beside  # `commands.serve` replaces it
    # not `include_router`, which wraps each route once more: nothing is added to what the routers declare
    app.router.routes.extend(route for router in _ROUTERS for route in router.routes)
    describe(app)
    install_problem_handlers(app)
    # from the innermost to the outermost
    app.add_middleware(BodyGuard)
    app.add_middleware(RequestRecorder, count=partial(_count, app, instruments.metrics), tracer=instruments.tracer)
    app.add_middleware(Responses, origins=settings.cors_origins, hsts_seconds=settings.hsts_seconds)
    return app


def _count(app: FastAPI, metrics: Metrics, request: RequestRecord) -> None:
    """Count a finished request in the metrics, and a refused attempt in the audit trail."""
    metrics.request(request)
    if request.is_refused_attempt:
        services: Services = app.state.services
        attempt = Attempt(
            request.operator or NOBODY,
            "dashboard" if request.route.startswith(HOME) else "api",
            request.address or "",
            f"{request.method} {request.route}",
            request.problem or "unauthenticated",  # the page that asks for a token again is no problem document
            request.task if request.operator else None,
        )
        services.refusals.note(attempt, services.clock.now())


@asynccontextmanager
async def _lifespan(
    app: FastAPI,
    settings: Settings,
    clock: Clock,
    executor: Executor | None,
    instruments: Instruments,
    flush_spans: Callable[[], None],
) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = settings.threads
    async with AsyncExitStack() as resources:
        resources.callback(flush_spans)
        services, leadership = build_services(settings, clock, executor, instruments, resources)
        app.state.services = services
        await run_in_threadpool(_check_workers, services.workers)
        await run_in_threadpool(services.clocks.measure)  # before the first request and the first round
        # only the leading process runs the engine and the clean-up
        jobs: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "leadership": lambda: leadership.run(
                services.engine.run,
                lambda: sweep(services.database, services.blobs),
                lambda: keep_up(services.database, settings, services.clock),
            ),
            "changes of other processes": services.notifier.watch,
            "clocks": services.clocks.run,
            "outages": services.outages.run,
            "refused attempts": services.refusals.run,
            "beside the server": lambda: app.state.beside_server(services),
        }
        for name, job in jobs.items():
            resources.push_async_callback(_cancel, asyncio.create_task(_run_again(name, job)))
        if settings.signatures == "off":
            _LOG.warning("requests need no signature (HUSHREC_SIGNATURES=off): a token is enough to act as its client")
        _LOG.info("aggregator ready", extra=fields(workers=services.workers.width, threads=settings.threads))
        yield


async def _run_again(name: str, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a background job until it returns; one that raises is logged, and started again after a second."""
    while True:
        try:
            return await job()
        except Exception:
            _LOG.exception("a background job stopped (%s); starting it again", name)
            await asyncio.sleep(_AGAIN_SECONDS)


async def _nothing_beside(_services: Services) -> None:
    """Do nothing while the application is served."""


def build_services(
    settings: Settings,
    clock: Clock,
    executor: Executor | None,
    instruments: Instruments,
    resources: AsyncExitStack,
) -> tuple[Services, Leadership]:
    """Open storage and workers, and connect every part of a server. Call it in the event loop that will serve.

    executor: runs folds in place of the one that `settings.executor` names. resources: closes what is opened here.
    Raises `DataDirectoryInUseError`, `MovedDatabaseError`, and what opening the database, the blob store or the
    executor raises.
    """
    resources.enter_context(own_data_directory(settings))
    database = Database(settings.database, connections=settings.threads)
    resources.callback(database.close)
    migrate(database)
    refuse_moved(database)
    blobs = bind_store(database, open_store(settings.blob_location, settings.scratch_dir))
    collect_bodies(settings.upload_dir)
    if settings.owns_storage:  # otherwise another process may have written blobs that it has not committed yet
        collect_orphans(database, blobs)
    workers = open_workers(settings.executor, settings.workers, blobs, executor)
    resources.callback(workers.close)
    metrics, recheck, token = instruments.metrics, settings.tuning.recheck_seconds, settings.operator_token
    task_cache = TaskCache(database, clock, recheck)
    room = Room(settings.max_connections)
    notifier = Notifier(database, task_cache, recheck, settings.tuning.wait_max_seconds, room)
    clocks = ClockWatch(clock, database, metrics, settings.signature_window)
    leadership = Leadership(database.candidacy(), metrics.leads, lambda: not clocks.too_far, recheck)
    outages = OutageWatch(database, blobs, clock, lambda: leadership.leads, lambda: not clocks.too_far)
    engine = RoundEngine(
        database,
        blobs,
        clock,
        workers,
        may_act=lambda: not clocks.too_far,
        batch=settings.tuning.fold_batch,
        recheck=recheck,
        split_bytes=settings.tuning.split_bytes,
        instruments=instruments,
        works=outages.works,
    )
    services = Services(
        settings=settings,
        clock=clock,
        database=database,
        blobs=blobs,
        notifier=notifier,
        task_cache=task_cache,
        engine=engine,
        outages=outages,
        workers=workers,
        metrics=metrics,
        clocks=clocks,
        limits=Limits(settings),
        refusals=Refusals(database),
        operator_token_hash=None if token is None else hash_token(token.get_secret_value()),
        member_writes=GroupCommit(database),
        deliveries=GroupCommit(database),
        packs=Packs(blobs),
        lookups=Lookups(),
        uploads=AtOnce("receiving 8 uploads of", room),
        downloads=AtOnce("sending 8 downloads to", room),
    )
    resources.callback(services.refusals.store_if_possible)
    resources.callback(services.member_writes.close)
    resources.callback(services.deliveries.close)
    resources.callback(services.packs.close)
    resources.callback(services.lookups.close)
    loop = asyncio.get_running_loop()
    listeners = CommitListeners(loop, task_cache, notifier, engine, leadership, database, blobs)
    metrics.watch(database, blobs, spent_budgets, workers.check, settings.tls_cert)
    database.listeners.append(listeners.committed_here)
    resources.callback(database.listen(listeners.committed_elsewhere))
    return services, leadership


def _check_workers(workers: Workers) -> None:
    """Start the workers before the first fold. The server also runs without them; `/readyz` reports their state."""
    try:
        remark = workers.check()
    except WorkersUnavailableError as error:
        _LOG.warning("sums wait until the executor is available: %s", error)
    else:
        if remark:
            _LOG.warning("the executor is %s", remark)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def open_workers(location: str, workers: int, blobs: BlobStore, executor: Executor | None = None) -> Workers:
    """Return the workers at `local` or `dask://host:port`.

    workers: processes of a local pool. executor: used instead of a local pool.

    Raises `ParameterError` when the extra `cluster` is needed and not installed.
    """
    if location == "local" or executor is not None:
        return FoldPool(workers, executor)
    try:
        from aggregator_service.compute.cluster import ClusterPool
    except ModuleNotFoundError:
        raise missing_extra("HUSHREC_EXECUTOR=dask://... needs", "cluster") from None
    return ClusterPool(location, blobs)


def open_tracing(traces: Literal["none", "otlp"]) -> tuple[TracerProvider, Callable[[], None]]:
    """Return an OpenTelemetry tracer provider, and a function that exports the remaining spans when the server stops.

    `otlp` exports to the collector in OTEL_EXPORTER_OTLP_ENDPOINT; OpenTelemetry's other variables apply as well.
    Raises `ParameterError` if the extra is not installed.
    """
    if traces == "none":
        return NoOpTracerProvider(), lambda: None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider as RecordingProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise missing_extra("HUSHREC_TRACES=otlp needs", "otel") from None
    provider = RecordingProvider(resource=Resource.create({SERVICE_NAME: _NAME}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider, provider.shutdown
