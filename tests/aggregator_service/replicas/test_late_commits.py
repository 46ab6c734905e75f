"""An engine that is no longer the leader and commits late changes nothing: another one has done its work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aggregator_service.compute.jobs import fold_batch, release_sum
from aggregator_service.compute.workers import FoldPool
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.storage.blobs import BlobStore
from tests.support.world import World


class _LatePool(FoldPool):
    """After a job and before its commit, another engine executes all actions that are due."""

    def __init__(self, world: World, at: Callable[[Any], Any]) -> None:
        super().__init__(1, world.executor)
        self._other, self._at = world.engine, at
        self.task_id, self.has_run = "", False

    async def run(self, work: Callable[[Any], Any], job: Any) -> Any:
        """See `FoldPool.run`."""
        outcome = await super().run(work, job)
        if work is self._at and not self.has_run:
            self.has_run = True
            while await self._other.advance(self.task_id) == 0.0:
                pass
        return outcome


@pytest.fixture
def world(parts: tuple[str, BlobStore], tmp_path: Path) -> Iterator[World]:
    url, blobs = parts
    made = World(tmp_path, batch=3, database_url=url, blobs=blobs)
    yield made
    made.close()


@pytest.mark.parametrize("at", [fold_batch, release_sum])
def test_a_late_commit_changes_nothing(world: World, at: Callable[[Any], Any]) -> None:
    pool = _LatePool(world, at)
    pool.task_id = task = world.task(members=4, rounds=1)
    world.run(task)
    clients = world.cohort(task)
    world.contribute(task, *clients)
    world.engine = RoundEngine(world.database, world.blobs, world.clock, pool, batch=3, recheck=1.0)
    world.run(task)
    assert pool.has_run
    assert world.round(task).state == "complete"
    assert world.round(task).survivors == len(clients)
    assert world.total(task, 1) == sum(2.0 ** int(client[2:]) for client in clients)
    kinds = sorted(key.partition("/")[0] for key in world.blobs.keys())  # noqa: SIM118 - a store, not a dict
    assert kinds == ["aggregates", "snapshots"]
