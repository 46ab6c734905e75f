"""What the routes work with: storage, time, notifier, caches and engine, created when the server starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, cast

from cachetools import LRUCache
from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.audit_trail import Refusals
from aggregator_service.access.rate_limits import AtOnce, Limits
from aggregator_service.clock import Clock
from aggregator_service.compute.workers import Workers
from aggregator_service.observability.clocks import ClockWatch
from aggregator_service.observability.metrics import Metrics
from aggregator_service.polling.notifier import Notifier
from aggregator_service.problems import Problem
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.rounds.outages import OutageWatch
from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import BlobStore, RecentBlobs
from aggregator_service.storage.database import Database
from aggregator_service.storage.group_commit import GroupCommit
from aggregator_service.storage.lookups import Lookups
from aggregator_service.storage.packs import Packs

if TYPE_CHECKING:
    from aggregator_service.polling.cache import TaskCache

_KEPT_SECONDS = 1.0
_READERS = 8


class Readiness:
    """The result of the last check whether the server is ready. Requests share a check, and its result for a second."""

    def __init__(self) -> None:
        self._turn, self._until = asyncio.Lock(), 0.0
        self._found: dict[str, str] | Problem = {}

    async def get(self, check: Callable[[], dict[str, str] | Problem]) -> dict[str, str] | Problem:
        """Return the last result, or that of `check`, which runs in a thread."""
        async with self._turn:
            if time.monotonic() >= self._until:
                self._found = await run_in_threadpool(check)
                self._until = time.monotonic() + _KEPT_SECONDS
            return self._found


@dataclass(frozen=True)
class Services:
    """The parts of one server process that routes use."""

    settings: Settings
    clock: Clock
    database: Database
    blobs: BlobStore
    notifier: Notifier
    task_cache: TaskCache
    engine: RoundEngine
    outages: OutageWatch
    workers: Workers
    metrics: Metrics
    clocks: ClockWatch
    limits: Limits
    refusals: Refusals
    operator_token_hash: str | None
    """SHA-256 (hex) of the token in the settings, None if there is none."""
    # Two groups, because they lock rows in different orders: tasks first, or a round in share mode.
    member_writes: GroupCommit
    deliveries: GroupCommit
    packs: Packs
    lookups: Lookups
    # Each upload reserves its whole length on disk.
    uploads: AtOnce
    downloads: AtOnce
    metrics_readers: LRUCache[str, bool] = field(default_factory=lambda: LRUCache(_READERS))
    """Hashes of the newest tokens that read the metrics, which may read them while the database cannot be asked about
    tokens."""
    recent_blobs: RecentBlobs = field(default_factory=RecentBlobs)
    readiness: Readiness = field(default_factory=Readiness)

    @property
    def is_only_server(self) -> bool:
        """Whether no other process serves this database, so that this process's caches are complete."""
        return self.settings.database_url is None


def services_of(request: Request) -> Services:
    """Return the parts of the process that handles a request."""
    return cast(Services, request.app.state.services)


async def _services(request: Request) -> Services:
    return services_of(request)


ServicesOf = Annotated[Services, Depends(_services)]
