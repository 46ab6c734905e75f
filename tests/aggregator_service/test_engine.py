"""The round engine with a clock that is moved by hand: deadlines, the privacy floor, sampling, failures."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from aggregator_service.clock import ManualClock
from aggregator_service.housekeeping import collect_orphans
from aggregator_service.plans import plan_task, round_spec, row_terms
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.rounds.folding import BlobRef
from aggregator_service.rounds.operations import LostRaceError, close_task, record_fold
from aggregator_service.rounds.workers import FoldPool
from aggregator_service.storage.blobs import DirectoryBlobs, new_key
from aggregator_service.storage.database import Database, Effects
from aggregator_service.storage.migrate import migrate
from aggregator_service.storage.rounds import cohort_clients, last_round, list_rounds
from aggregator_service.storage.schema import ClientRow, ContributionRow, RoundRow, TaskRow
from aggregator_service.tasks import create_task, task_view
from protocols.messages import TaskRequest

SECONDS = 100.0


class World:
    """Database, blobs, clock and engine, without HTTP."""

    def __init__(self, root: Path, batch: int = 3) -> None:
        self.database = Database(f"sqlite:///{root / 'test.db'}", connections=4)
        migrate(self.database)
        self.blobs = DirectoryBlobs(root / "blobs")
        self.database.listeners.append(self._forget)
        self.clock = ManualClock()
        self.executor = ThreadPoolExecutor(1)
        pool = FoldPool(1, self.executor)
        self.engine = RoundEngine(self.database, self.blobs, self.clock, pool, batch=batch, recheck=1.0)
        self.uploads = root / "uploads"

    def _forget(self, effects: Effects) -> None:
        for key in effects.orphans:
            self.blobs.delete(key)

    def task(self, members: int, **schedule: Any) -> str:
        """A plain task with members enrolled."""
        request = TaskRequest.model_validate(
            {
                "name": "engine",
                "recipe": {"name": "fedmf", "parameters": {"items": 2, "dim": 2, "clip": 100.0}},
                "mechanism": {"name": "plain"},
                "schedule": {"cohort_size": 4, "min_clients": 2, "collect_seconds": SECONDS, **schedule},
            }
        )
        with self.database.write() as session:
            task = create_task(session, request, self.clock.now())
            for index in range(members):
                session.add(
                    ClientRow(
                        id=f"c_{index:02}",
                        task_id=task.id,
                        sequence=index + 1,
                        role="member",
                        identity_key=bytes([index] * 32),
                        mailbox_key=bytes(32),
                        token_hash=f"{index:064}",
                        enrolled_at=0.0,
                        turn=(index * 7) % 11,
                    )
                )
            return task.id

    def contribute(self, task_id: str, *clients: str) -> None:
        """Store a durable contribution of value 2^index for each client."""
        with self.database.write() as session:
            task = session.get_one(TaskRow, task_id)
            round_ = self._round(task_id)
            plan = plan_task(row_terms(task))
            for client in clients:
                route = plan.route(round_spec(round_), client)
                (block,) = plan.plan.layout.contribution_blocks(route)
                values = np.where(block.integral_mask(), 1.0, 2.0 ** int(client[2:]))
                body = plan.mechanism.seal(plan.plan, route, [values], None)
                key = new_key("contributions", task_id, round_.number, client)
                self.blobs.put(key, body)
                session.add(
                    ContributionRow(
                        round_id=round_.id,
                        client_id=client,
                        digest=hashlib.sha256(body).hexdigest(),
                        bytes=len(body),
                        stored_at=self.clock.now(),
                        blob_key=key,
                    )
                )

    def run(self, task_id: str) -> float | None:
        """Step until there is nothing due; the last answer of the engine."""

        async def steps() -> float | None:
            for _ in range(50):
                pause = await self.engine.step(task_id)
                if pause is None or pause > 0:
                    return pause
            raise AssertionError("the engine does not come to rest")

        return asyncio.run(steps())

    def _round(self, task_id: str) -> RoundRow:
        with self.database.read() as session:
            found = last_round(session, task_id)
            assert found is not None
            return found

    def round(self, task_id: str) -> RoundRow:
        return self._round(task_id)

    def cohort(self, task_id: str) -> list[str]:
        with self.database.read() as session:
            return cohort_clients(session, self._round(task_id).id)

    def state(self, task_id: str) -> str:
        with self.database.read() as session:
            return session.get_one(TaskRow, task_id).state

    def total(self, task_id: str, number: int) -> float:
        with self.database.read() as session:
            (row,) = [row for row in list_rounds(session, task_id, 0, 100, None) if row.number == number]
            plan = plan_task(row_terms(session.get_one(TaskRow, task_id)))
        assert row.aggregate_key is not None and row.aggregate_digest is not None
        body = bytes(self.blobs.view(row.aggregate_key, row.aggregate_digest))
        return float(plan.mechanism.open(plan.plan, body, row.survivors, None)[0])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.executor.shutdown()
    made.database.close()


def test_a_round_waits_for_its_members(world: World) -> None:
    task = world.task(members=3)
    assert world.run(task) is not None
    with world.database.read() as session:
        assert last_round(session, task) is None


def test_start_clients_opens_earlier(world: World) -> None:
    task = world.task(members=3, start_clients=3)
    world.run(task)
    assert world.round(task).cohort == 3


def test_all_received(world: World) -> None:
    task = world.task(members=4, rounds=1)
    assert world.run(task) == SECONDS
    world.contribute(task, *world.cohort(task))
    assert world.run(task) is None
    assert (world.round(task).state, world.round(task).survivors) == ("complete", 4)
    assert world.total(task, 1) == 0b1111
    assert world.state(task) == "complete"
    assert {key.partition("/")[0] for key in world.blobs.keys()} == {"aggregates", "snapshots"}  # noqa: SIM118


def test_a_full_batch_is_folded_while_collecting(world: World) -> None:
    task = world.task(members=4)
    world.run(task)
    world.contribute(task, *world.cohort(task)[:3])
    world.run(task)
    assert (world.round(task).state, world.round(task).folded) == ("collecting", 3)
    assert world.round(task).aggregate_key is None


def test_the_deadline_with_enough_survivors(world: World) -> None:
    task = world.task(members=4, rounds=1)
    world.run(task)
    survivors = world.cohort(task)[1:3]
    world.contribute(task, *survivors)
    world.clock.advance(SECONDS - 1)
    assert world.run(task) == pytest.approx(1.0)
    assert world.round(task).state == "collecting"
    world.clock.advance(1)
    world.run(task)
    assert (world.round(task).state, world.round(task).survivors) == ("complete", 2)
    assert world.total(task, 1) == sum(2.0 ** int(client[2:]) for client in survivors)


def test_below_the_floor_nothing_is_released(world: World) -> None:
    task = world.task(members=4, max_failed_rounds=2)
    world.run(task)
    world.contribute(task, world.cohort(task)[0])
    world.clock.advance(SECONDS)
    world.run(task)
    with world.database.read() as session:
        first, second = list_rounds(session, task, 0, 10, None)
    assert (first.state, first.survivors, first.aggregate_key, first.partial_key) == ("failed", 0, None, None)
    assert first.failure == "1 of 4 clients delivered in time, and 2 are needed"
    assert not list(world.blobs.keys())
    assert (second.number, second.state) == (2, "collecting")
    world.clock.advance(SECONDS)
    assert world.run(task) is None
    assert world.state(task) == "failed"


def test_a_completed_round_forgives_failures(world: World) -> None:
    task = world.task(members=4, max_failed_rounds=2, rounds=2)
    for delivers in (False, True, False, True):
        world.run(task)
        if delivers:
            world.contribute(task, *world.cohort(task))
        else:
            world.clock.advance(SECONDS)
        world.run(task)
    assert world.state(task) == "complete"
    with world.database.read() as session:
        view = task_view(session, session.get_one(TaskRow, task))
        states = [row.state for row in list_rounds(session, task, 0, 10, None)]
    assert states == ["failed", "complete", "failed", "complete"]
    assert (view.completed_rounds, view.failed_rounds) == (2, 2)


def test_the_floor_holds_even_when_a_row_says_otherwise(world: World) -> None:
    """A folding round with too few survivors (which no path leads to) is not released."""
    task = world.task(members=4)
    world.run(task)
    world.contribute(task, world.cohort(task)[0])
    with world.database.write() as session:
        session.get_one(RoundRow, world.round(task).id).state = "folding"
    for _ in range(3):
        assert world.run(task) is not None
    assert (world.round(task).state, world.round(task).aggregate_key) == ("folding", None)
    assert {key.partition("/")[0] for key in world.blobs.keys()} == {"contributions", "partials"}  # noqa: SIM118


def test_closing_a_task_fails_its_round(world: World) -> None:
    task = world.task(members=4)
    world.run(task)
    world.contribute(task, *world.cohort(task))
    for _ in range(2):  # idempotent
        with world.database.write() as session:
            close_task(session, session.get_one(TaskRow, task))
    assert (world.round(task).state, world.round(task).failure) == ("failed", "the task was closed")
    assert world.run(task) is None
    assert not list(world.blobs.keys())


def test_uniform_sampling_differs_from_round_to_round(world: World) -> None:
    task = world.task(members=9, max_failed_rounds=50)
    cohorts = set()
    for _ in range(12):
        world.run(task)
        cohort = world.cohort(task)
        assert len(cohort) == len(set(cohort)) == 4
        cohorts.add(tuple(cohort))
        world.clock.advance(SECONDS)
    assert len(cohorts) > 1


def test_round_robin_asks_everybody_equally_often(world: World) -> None:
    task = world.task(members=6, sampling="round-robin", max_failed_rounds=50)
    asked: dict[str, int] = {}
    for _ in range(6):
        world.run(task)
        for client in world.cohort(task):
            asked[client] = asked.get(client, 0) + 1
        world.clock.advance(SECONDS)
    assert asked == {f"c_{index:02}": 4 for index in range(6)}


def test_a_damaged_contribution_fails_the_round(world: World) -> None:
    task = world.task(members=4)
    world.run(task)
    world.contribute(task, *world.cohort(task))
    with world.database.read() as session:
        key = session.scalars(select(ContributionRow.blob_key)).first()
    assert key is not None
    path = world.blobs.root / key
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    asyncio.run(world.engine.step(task))  # all received
    asyncio.run(world.engine.step(task))  # the first batch
    with world.database.read() as session:
        states = [row.state for row in list_rounds(session, task, 0, 10, None)]
    assert states[0] == "failed" or asyncio.run(world.engine.step(task)) == 0.0
    with world.database.read() as session:
        (first, *_) = list_rounds(session, task, 0, 10, None)
    assert first.state == "failed"
    assert "storage is damaged" in str(first.failure)


def test_of_two_engines_only_one_folds(world: World) -> None:
    task = world.task(members=4)
    world.run(task)
    cohort = world.cohort(task)
    world.contribute(task, *cohort[:3])
    world.run(task)
    round_ = world.round(task)
    with pytest.raises(LostRaceError), world.database.write() as session:
        record_fold(session, round_.id, cohort[:3], None, BlobRef("partials/again", "0" * 64))
    current = BlobRef(str(round_.partial_key), str(round_.partial_digest))
    with pytest.raises(LostRaceError), world.database.write() as session:
        record_fold(session, round_.id, cohort[2:], current, BlobRef("partials/again", "0" * 64))
    assert world.round(task).folded == 3


def test_orphans_are_collected_and_nothing_else(world: World) -> None:
    task = world.task(members=4)
    world.run(task)
    world.contribute(task, *world.cohort(task))
    kept = set(world.blobs.keys())
    for kind in ("contributions", "partials", "aggregates", "snapshots"):
        world.blobs.put(new_key(kind, "orphan"), b"left by a crash")
    (world.blobs.root / "partials" / "half.tmp").write_bytes(b"half a write")
    world.uploads.mkdir()
    (world.uploads / "stray").write_bytes(b"half a body")
    assert collect_orphans(world.database, world.blobs, world.uploads) == 5
    assert set(world.blobs.keys()) == kept
    assert not list(world.uploads.iterdir())
    assert not list(world.blobs.root.glob("*/*.tmp"))
