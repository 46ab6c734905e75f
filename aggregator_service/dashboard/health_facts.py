"""What the page about the server shows: whether its parts work, what waits, how much room there is."""

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
_LITTLE: Final = 0.1
_LIBRARIES: Final = ("fastapi", "uvicorn", "sqlalchemy", "numpy", "cryptography", "tenseal")


@dataclass(frozen=True)
class Check:
    """A part of the server: whether it works, in words. `timing` is never the same."""

    name: str
    level: Level
    text: str
    timing: str = ""


@dataclass(frozen=True)
class HealthFacts:
    """Checks, what waits, and versions."""

    checks: list[Check]
    queue: list[tuple[str, str]]
    versions: list[tuple[str, str]]

    @property
    def worst(self) -> Level:
        """Of all checks."""
        levels = {check.level for check in self.checks}
        return "bad" if "bad" in levels else "attention" if "attention" in levels else "ok"


def health_facts(services: Services) -> HealthFacts:
    """As things are now; a part that fails is told of, not raised."""
    database = _check("Database", services.database.engine.dialect.name, services.database.ping)
    far = services.settings.blob_location.startswith("s3:")
    blobs = _check("Blob store", "S3" if far else "directory", services.blobs.check)
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
        return Check(name, "bad", f"{kind}: does not work ({type(error).__name__}); the log says more")
    return Check(name, "ok", kind, f", answers in {1000 * (perf_counter() - started):.0f} ms")


def _engine(services: Services) -> Check:
    if services.metrics.leading:
        return Check("Round engine", "ok", "this process drives the rounds")
    return Check("Round engine", "ok", "another process drives the rounds; this one takes over when that one ends")


def _disk(services: Services) -> Check:
    try:
        room = shutil.disk_usage(services.settings.data_dir)
    except OSError as error:
        return Check("Disk", "bad", f"the data directory cannot be read ({type(error).__name__})")
    text = f"{byte_count(room.free)} free of {byte_count(room.total)} where half-received bodies lie"
    return Check("Disk", "attention" if room.free < _LITTLE * room.total else "ok", text)


def _queue(session: Session) -> list[tuple[str, str]]:
    waiting = select(func.count()).select_from(ContributionRow).join(RoundRow)
    waiting = waiting.where(RoundRow.state.in_(ACTIVE), ContributionRow.folded.is_(False))
    counts = {
        "open tasks": select(func.count()).select_from(TaskRow).where(TaskRow.state == "open"),
        "rounds under way": select(func.count()).select_from(RoundRow).where(RoundRow.state.in_(ACTIVE)),
        "contributions to fold": waiting,
        "uploads under way": select(func.count()).select_from(
            select(ChunkRow.round_id, ChunkRow.client_id).distinct().subquery()
        ),
        "browsers signed in": select(func.count()).select_from(SignInRow),
    }
    return [(name, f"{session.execute(query).scalar_one():,}") for name, query in counts.items()]


def _versions() -> list[tuple[str, str]]:
    found = [("HushRec", metadata.version("hushrec")), ("Python", platform.python_version())]
    return found + [(name, metadata.version(name)) for name in _LIBRARIES]
