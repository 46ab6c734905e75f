"""The metrics of `/metrics`, for Prometheus, and the spans of folds and releases, for OpenTelemetry.

Metrics hold sizes, counts and times, never values; no label holds an id. Open tasks with a privacy block are told apart
by their names.

Counters and histograms count what this process has done since its start. `DatabaseGauges` and `BlobGauges` measure at
each scrape; all processes on one database report the same of what it holds.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Final, get_args

from opentelemetry.trace import NoOpTracer, Tracer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import InstrumentedAttribute, Session

from aggregator_service.observability.requests import RequestRecord
from aggregator_service.round_states import TABLE, TERMINAL
from aggregator_service.storage.blobs import BlobStore, BlobsUnavailableError
from aggregator_service.storage.database import Database, Effects
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.growth import growth
from aggregator_service.storage.round_rows import waiting_contributions
from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow
from protocols.messages import RefusalReason
from protocols.messages.base import PROBLEM_TYPES
from protocols.messages.stages import RoundState

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_FINAL_EVENTS: Final = {event for row in TABLE.values() for event, target in row.items() if target in TERMINAL}
_CONTRIBUTION: Final = "contribution"
RAW_BODIES: Final = {
    "/v1/tasks/{task}/rounds/{number}/contributions/{client}": _CONTRIBUTION,
    "/v1/tasks/{task}/rounds/{number}/stages/{stage}/{client}": "stage",
    "/v1/tasks/{task}/snapshots/{number}": "snapshot",
    "/v1/tasks/{task}/keyring/{client}": "envelope",
    "/v1/tasks/{task}/public-key": "public-key",
    "/v1/tasks/{task}/committee/{client}/keys/{number}": "committee-key",
}
"""Kinds of raw bodies whose bytes are counted, by the path of the route that receives them."""
_REQUEST_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_CLOCK_SECONDS: Final = (1, 2, 5, 10, 30, 60, 120, 600, 3600)
_JOB_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_WAITED: Final = "Seconds, including the wait for a worker."


class Metrics:
    """The metrics of one application, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        job = partial(histogram, buckets=_JOB_SECONDS)
        ProcessCollector(registry=registry)
        self._requests = counter("hushrec_requests", "Requests answered.", ["method", "route", "status"])
        self._request_seconds = histogram(
            "hushrec_request_seconds",
            "Time from a request's headers to the end of its response; waited: it was a long poll.",
            ["method", "route", "waited"],
            buckets=_REQUEST_SECONDS,
        )
        uploads = "Uploads of contributions by result; reason: problem type of refused ones."
        self._contributions = counter("hushrec_contributions", uploads, ["result", "reason"])
        self._upload_bytes = counter("hushrec_upload_bytes", "Bytes of raw bodies received, by kind.", ["kind"])
        answers = "Bytes of the bodies of responses, by route: downloads of models and sums, rosters, polls."
        self._response_bytes = counter("hushrec_response_bytes", answers, ["route"])
        ended = "Rounds that ended, by the event that ended them."
        self._outcomes = counter("hushrec_round_outcomes_total", ended, ["outcome"])
        late = "Clients that missed a deadline, by the round's state."
        self._dropouts = counter("hushrec_dropouts_total", late, ["phase"])
        far = "Groups of rounds whose sum is not used, because it is far from the others or none of honest clients."
        self.groups_left_out = counter("hushrec_groups_left_out_total", far)
        left = "Rounds that clients left on their own decision, by reason."
        self.refusals = counter("hushrec_refusals_total", left, ["reason"])
        self.fold_seconds = job("hushrec_fold_seconds", f"Folding one batch of contributions. {_WAITED}")
        self.release_seconds = job("hushrec_release_seconds", f"Releasing a sum that has no masks. {_WAITED}")
        self.unmask_seconds = job("hushrec_unmask_seconds", f"Unmasking and releasing a sum. {_WAITED}")
        self.jobs = gauge("hushrec_engine_jobs", "Folds and releases that are queued or running.")
        self._leading = gauge("hushrec_engine_leading", "1 while this process drives the rounds.")
        ahead = "Seconds that this clock is ahead of the database's."
        self.clock_offset = gauge("hushrec_clock_offset_seconds", ahead)
        self.client_clocks = histogram(
            "hushrec_client_clock_seconds",
            "Difference between the time of a client's signature and this server's clock.",
            buckets=_CLOCK_SECONDS,
        )
        self._series_of = cache(self._find_series)
        self._stored: Collector = NoDatabase()
        self.leading = False
        self._create_series()

    def _create_series(self) -> None:
        """Create series with value 0, so that Prometheus sees the change when the first event is counted."""
        for result in ("accepted", "repeated", "conflict"):
            self._contributions.labels(result, "")
        for kind in RAW_BODIES.values():
            self._upload_bytes.labels(kind)
        for reason in get_args(RefusalReason):
            self.refusals.labels(reason)
        for event in _FINAL_EVENTS:
            self._outcomes.labels(event.name.lower())

    def watch(
        self,
        database: Database,
        blobs: BlobStore,
        budgets: Budgets,
        check_executor: Callable[[], str],
        tls_cert: Path | None = None,
    ) -> None:
        """Report the state of both stores and the executor, and count outcomes and dropouts of transactions.

        budgets: of tasks with a privacy block, see `DatabaseGauges`. check_executor: see `ExecutorGauges`. tls_cert:
        file of the certificate, which the server reads again when it changes.
        """
        self._stored = DatabaseGauges(database, budgets)
        full = "1 if a write failed in the last 30 s because the disk of the database is full, else 0."
        Gauge("hushrec_database_disk_full", full, registry=self._registry).set_function(lambda: database.is_full)
        self._registry.register(BlobGauges(blobs))
        self._registry.register(ExecutorGauges(check_executor))
        database.listeners.append(self._count_effects)
        if tls_cert is not None:
            name = "hushrec_tls_certificate_expiry_timestamp_seconds"
            expiry = Gauge(name, "End of the validity of the TLS certificate.", registry=self._registry)
            expiry.set_function(lambda: certificate_expiry(tls_cert) or 0.0)

    def text(self) -> bytes:
        """Return the metrics of this process and the blob store in Prometheus' text format (`MEDIA_TYPE`)."""
        return generate_latest(self._registry)

    def database_text(self, answers: bool = True) -> bytes:
        """Return the metrics of the database, which follow `text`; not `answers`: without a query, that it is down."""
        return generate_latest(self._stored if answers else NoDatabase())

    def _find_series(self, method: str, route: str, status: int, waited: bool) -> tuple[Counter, Counter, Histogram]:
        """Return the series that count such requests, the bytes of their answers, and their seconds."""
        requests, sent = self._requests.labels(method, route, str(status)), self._response_bytes.labels(route)
        return requests, sent, self._request_seconds.labels(method, route, "yes" if waited else "no")

    def request(self, record: RequestRecord) -> None:
        """Count a finished request and its bodies."""
        requests, sent, seconds = self._series_of(record.method, record.route, record.status, record.waited)
        requests.inc()
        sent.inc(record.sent)
        seconds.observe(record.milliseconds / 1000)
        kind = RAW_BODIES.get(record.route) if record.method in ("PUT", "PATCH") else None
        if kind is not None:
            self._upload_bytes.labels(kind).inc(record.received)
        if kind == _CONTRIBUTION and record.status != 204:  # a chunk is no contribution yet
            self._contributions.labels(*_outcome(record.status, record.problem)).inc()

    def leads(self, now: bool) -> None:
        """Record whether this process drives the rounds now."""
        self.leading = now
        self._leading.set(now)

    def _count_effects(self, effects: Effects) -> None:
        for outcome in effects.outcomes:
            self._outcomes.labels(outcome).inc()
        for stage, count in effects.dropouts:
            self._dropouts.labels(stage).inc(count)


@dataclass(frozen=True)
class Instruments:
    """Metrics and tracer of one application. The defaults are metrics that nobody reads and no spans."""

    metrics: Metrics = field(default_factory=Metrics)
    tracer: Tracer = field(default_factory=NoOpTracer)

    def fold(self, task_id: str, number: int, batch: int) -> AbstractContextManager[None]:
        """Time and trace a fold; enter it when the job is submitted.

        number: of the round. batch: contributions in the fold.
        """
        return self._job("fold", self.metrics.fold_seconds, task_id, number, {"hushrec.batch": batch})

    def release(self, task_id: str, number: int, survivors: int, *, masked: bool) -> AbstractContextManager[None]:
        """Time and trace a release, including the removal of masks; number: of the round."""
        name, seconds = ("unmask", self.metrics.unmask_seconds) if masked else ("release", self.metrics.release_seconds)
        return self._job(name, seconds, task_id, number, {"hushrec.survivors": survivors})

    @contextmanager
    def _job(
        self, name: str, seconds: Histogram, task_id: str, number: int, counted: Mapping[str, int]
    ) -> Iterator[None]:
        attributes: dict[str, str | int] = {"hushrec.task": task_id, "hushrec.round": number, **counted}
        with self.tracer.start_as_current_span(name, attributes=attributes), self.metrics.jobs.track_inprogress():
            started = time.perf_counter()
            yield
            seconds.observe(time.perf_counter() - started)


def _outcome(status: int, problem: str | None) -> tuple[str, str]:
    """Return result and reason of the upload of a contribution."""
    if status in (200, 201):
        return ("accepted" if status == 201 else "repeated"), ""
    if problem == "contribution-conflict":
        return "conflict", ""
    return "refused", problem if problem in PROBLEM_TYPES else "no-answer"


Budgets = Callable[[Session], Iterable[tuple[str, float, float]]]


class NoDatabase(Collector):
    """What is reported while the database does not answer: only `hushrec_database_up` 0."""

    def collect(self) -> Iterable[Metric]:
        yield _database_up(False)


class DatabaseGauges(Collector):
    """Gauges queried from the database. If it is unavailable, only `hushrec_database_up` 0 is reported."""

    def __init__(self, database: Database, budgets: Budgets) -> None:
        """budgets: returns name, spent epsilon and epsilon of each open task with a privacy block."""
        self._database, self._budgets = database, budgets

    def collect(self) -> Iterable[Metric]:
        try:
            with self._database.read() as session:
                found = list(self._measure(session))
        except SQLAlchemyError:
            yield _database_up(False)
            return
        yield _database_up(not self._database.is_full)
        yield from found

    def _measure(self, session: Session) -> Iterator[Metric]:
        rounds = {state.value: 0 for state in RoundState} | _grouped(session, RoundRow.state)
        yield _gauge("hushrec_rounds", "Rounds by state, including those that have ended.", "phase", rounds)
        yield _gauge("hushrec_tasks", "Tasks by state.", "state", _grouped(session, TaskRow.state))
        yield _gauge("hushrec_members", "Enrolled clients by role.", "role", _grouped(session, ClientRow.role))
        unfolded = session.execute(waiting_contributions()).scalar_one()
        yield GaugeMetricFamily("hushrec_queue_depth", "Stored contributions that are not folded yet.", unfolded)
        idle = max(0.0, time.time() - _oldest_progress(session))
        yield GaugeMetricFamily(
            "hushrec_task_idle_seconds", "Longest time since an open task released a sum, or was created.", idle
        )
        yield from _stored(session)
        budgets = list(self._budgets(session))
        spent = {name: epsilon for name, epsilon, _ in budgets}
        total = {name: epsilon for name, _, epsilon in budgets}
        yield _gauge("hushrec_task_privacy_epsilon", "Cost so far to a member asked most often.", "task", spent)
        yield _gauge("hushrec_task_privacy_epsilon_budget", "Epsilon of the privacy block.", "task", total)


def _oldest_progress(session: Session) -> float:
    """Return when the open task that has made no progress for longest released its last sum; now without a task."""
    newest = func.coalesce(func.max(RoundRow.released_at), TaskRow.created_at)
    tasks = select(newest.label("at")).outerjoin(RoundRow, RoundRow.task_id == TaskRow.id)
    each = tasks.where(TaskRow.state == "open").group_by(TaskRow.id, TaskRow.created_at).subquery()
    found = session.scalar(select(func.min(each.c.at)))
    return time.time() if found is None else found


class ExecutorGauges(Collector):
    """Whether sums can be computed: always with local workers."""

    def __init__(self, check: Callable[[], str]) -> None:
        """check: returns a remark for the operator, "" where all is well; raises where no job can run."""
        self._check = check

    def collect(self) -> Iterable[Metric]:
        try:
            remark = self._check()
        except Exception:  # `/readyz` logs it, with the reason
            works, remark = False, "down"
        else:
            works = True
        up, ready = "hushrec_executor_up", "hushrec_executor_ready"
        yield GaugeMetricFamily(up, "1 if the scheduler of the Dask cluster answers, or without one, else 0.", works)
        yield GaugeMetricFamily(ready, "1 if it has workers, all of them fit to compute sums, else 0.", not remark)


def _stored(session: Session) -> Iterator[Metric]:
    """Yield what was stored at the last measurement, which is made once an hour; nothing before the first."""
    found = growth(session)
    if found is None:
        return
    kinds = {"database": found.database, **found.kinds}
    yield _gauge("hushrec_stored_bytes", "Bytes stored, at the last hourly measurement.", "kind", kinds)
    rates = {"database": found.database_a_day, "blobs": found.blobs_a_day}
    known = {name: a_day for name, a_day in rates.items() if a_day is not None}
    text = "Bytes by which the stored data grew each day, of up to the last eight."
    yield _gauge("hushrec_growth_bytes_per_day", text, "kind", known)


class BlobGauges(Collector):
    """Whether the blob store works and, for a directory, the space of its file system."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def collect(self) -> Iterable[Metric]:
        try:
            self._blobs.check()
            works = True
        except BlobsUnavailableError:
            works = False
        yield GaugeMetricFamily("hushrec_blobs_up", "1 if the blob store can be written to, else 0.", works)
        if isinstance(self._blobs, DirectoryBlobs):
            with suppress(OSError):
                usage = shutil.disk_usage(self._blobs.root)
                size, free = "hushrec_blobs_size_bytes", "hushrec_blobs_free_bytes"
                yield GaugeMetricFamily(size, "Size of the file system of the blob directory.", usage.total)
                yield GaugeMetricFamily(free, "Free space on the file system of the blob directory.", usage.free)


def certificate_expiry(path: Path | None) -> float | None:
    """Return the end of the validity of the first certificate in a PEM file, in seconds since the epoch.

    None without a file, and for one that holds no certificate: the server does not start with it.
    """
    from cryptography.x509 import load_pem_x509_certificates

    if path is not None:
        with suppress(OSError, ValueError):
            return load_pem_x509_certificates(path.read_bytes())[0].not_valid_after_utc.timestamp()
    return None


def _database_up(answers: bool) -> GaugeMetricFamily:
    return GaugeMetricFamily(
        "hushrec_database_up", "1 if the database answered this scrape and its disk is not full, else 0.", answers
    )


def _grouped(session: Session, column: InstrumentedAttribute[str]) -> dict[str, int]:
    return {value: count for value, count in session.execute(select(column, func.count()).group_by(column))}  # noqa: C416


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
