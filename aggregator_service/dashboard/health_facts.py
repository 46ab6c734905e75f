"""Facts of the server page: component checks, queue lengths, disk space, versions."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from time import perf_counter
from typing import Final, Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_service.dashboard.words import byte_count
from aggregator_service.round_states import ACTIVE
from aggregator_service.services import Services
from aggregator_service.storage.schema import ChunkRow, ContributionRow, RoundRow, SignInRow, TaskRow

__all__ = ["Check", "HealthFacts", "health_facts"]

Level = Literal["ok", "attention", "bad"]
_LOW_SPACE: Final = 0.1
_LIBRARIES: Final = ("fastapi", "uvicorn", "sqlalchemy", "numpy", "cryptography", "tenseal")


@dataclass(frozen=True)
class Check:
    """The result of checking one component. timing: response time, which differs at each check."""

    name: str
    level: Level
    text: str
    timing: str = ""


@dataclass(frozen=True)
class HealthFacts:
    """Component checks, queue lengths and library versions, as (name, value) pairs."""

    checks: list[Check]
    queue: list[tuple[str, str]]
    versions: list[tuple[str, str]]

    @property
    def worst(self) -> Level:
        """The worst level of all checks."""
        levels = {check.level for check in self.checks}
        return "bad" if "bad" in levels else "attention" if "attention" in levels else "ok"


def health_facts(services: Services) -> HealthFacts:
    """Check all components now. A component that fails gives a `Check` of level "bad"; nothing is raised."""
    database = _check("Database", services.database.engine.dialect.name, services.database.ping)
    is_s3 = services.settings.blob_location.startswith("s3:")
    blobs = _check("Blob store", "S3" if is_s3 else "directory", services.blobs.check)
    queue: list[tuple[str, str]] = []
    if database.level == "ok":
        with services.database.read() as session:
            queue = _queue(session)
    return HealthFacts([database, blobs, _engine(services), _disk(services)], queue, _versions())


def _check(name: str, kind: str, work: Callable[[], object]) -> Check:
    started = perf_counter()
    try:
        work()
    except Exception as error:
        return Check(name, "bad", f"{kind}: failed ({type(error).__name__}); see the log")
    return Check(name, "ok", kind, f", answers in {1000 * (perf_counter() - started):.0f} ms")


def _engine(services: Services) -> Check:
    if services.metrics.leading:
        return Check("Round engine", "ok", "this process drives the rounds")
    return Check("Round engine", "ok", "another process drives the rounds; this one takes over if it stops")


def _disk(services: Services) -> Check:
    try:
        usage = shutil.disk_usage(services.settings.data_dir)
    except OSError as error:
        return Check("Disk", "bad", f"cannot read the data directory ({type(error).__name__})")
    text = f"{byte_count(usage.free)} free of {byte_count(usage.total)} in the data directory"
    return Check("Disk", "attention" if usage.free < _LOW_SPACE * usage.total else "ok", text)


def _queue(session: Session) -> list[tuple[str, str]]:
    waiting = select(func.count()).select_from(ContributionRow).join(RoundRow)
    waiting = waiting.where(RoundRow.state.in_(ACTIVE), ContributionRow.folded.is_(False))
    counts = {
        "open tasks": select(func.count()).select_from(TaskRow).where(TaskRow.state == "open"),
        "active rounds": select(func.count()).select_from(RoundRow).where(RoundRow.state.in_(ACTIVE)),
        "contributions to fold": waiting,
        "incomplete uploads": select(func.count()).select_from(
            select(ChunkRow.round_id, ChunkRow.client_id).distinct().subquery()
        ),
        "browsers signed in": select(func.count()).select_from(SignInRow),
    }
    return [(name, f"{session.execute(query).scalar_one():,}") for name, query in counts.items()]


def _versions() -> list[tuple[str, str]]:
    found = [("HushRec", metadata.version("hushrec")), ("Python", platform.python_version())]
    return found + [(name, metadata.version(name)) for name in _LIBRARIES]
