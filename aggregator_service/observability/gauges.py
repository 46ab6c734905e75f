"""Gauges that are measured at each scrape: what the database holds, and the state of the blob store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import InstrumentedAttribute, Session

from aggregator_service.round_states import ACTIVE
from aggregator_service.storage.blobs import BlobStore, BlobsUnavailableError
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.schema import ClientRow, ContributionRow, RoundRow, TaskRow
from protocols.messages.stages import RoundState

__all__ = ["BlobGauges", "Budgets", "DatabaseGauges", "NoDatabase", "certificate_expiry"]


Budgets = Callable[[Session], Iterable[tuple[str, float, float]]]


class NoDatabase(Collector):
    """What is reported while the database does not answer: only `hushrec_database_up` 0."""

    def collect(self) -> Iterable[Metric]:
        """Return the gauge."""
        yield _database_up(False)


class DatabaseGauges(Collector):
    """Gauges queried from the database. If it is unavailable, only `hushrec_database_up` 0 is reported."""

    def __init__(self, database: Database, budgets: Budgets) -> None:
        """budgets: returns name, spent epsilon and epsilon of each open task with a privacy block."""
        self._database, self._budgets = database, budgets

    def collect(self) -> Iterable[Metric]:
        """Query the database and return the gauges."""
        try:
            rounds, members, tasks, unfolded = self._counts()
            with self._database.read() as session:
                budgets = list(self._budgets(session))
        except SQLAlchemyError:
            yield _database_up(False)
            return
        yield _database_up(True)
        yield _gauge("hushrec_rounds", "Rounds by state, including those that have ended.", "phase", rounds)
        yield _gauge("hushrec_tasks", "Tasks by state.", "state", tasks)
        yield _gauge("hushrec_members", "Enrolled clients by role.", "role", members)
        yield GaugeMetricFamily("hushrec_queue_depth", "Stored contributions that are not folded yet.", unfolded)
        spent = {name: epsilon for name, epsilon, _ in budgets}
        total = {name: epsilon for name, _, epsilon in budgets}
        yield _gauge("hushrec_task_privacy_epsilon", "Cost so far to a member asked most often.", "task", spent)
        yield _gauge("hushrec_task_privacy_epsilon_budget", "Epsilon of the privacy block.", "task", total)

    def _counts(self) -> tuple[dict[str, int], dict[str, int], dict[str, int], int]:
        with self._database.read() as session:
            rounds = {state.value: 0 for state in RoundState} | _grouped(session, RoundRow.state)
            waiting = select(func.count()).select_from(ContributionRow).join(RoundRow)
            waiting = waiting.where(RoundRow.state.in_(ACTIVE), ContributionRow.folded.is_(False))
            unfolded = session.execute(waiting).scalar_one()
            return rounds, _grouped(session, ClientRow.role), _grouped(session, TaskRow.state), unfolded


class BlobGauges(Collector):
    """Whether the blob store works and, for a directory, the space of its file system."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that registering the collector does not use the store."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Check the store and return the gauges."""
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
    return GaugeMetricFamily("hushrec_database_up", "1 if the database answered this scrape, else 0.", answers)


def _grouped(session: Session, column: InstrumentedAttribute[str]) -> dict[str, int]:
    return {value: count for value, count in session.execute(select(column, func.count()).group_by(column))}  # noqa: C416


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
