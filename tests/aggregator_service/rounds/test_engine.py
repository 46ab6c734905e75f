"""The round engine: deadlines, the floor of clients, sampling, failures, when it reads a task, what it folds early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from aggregator_service.compute.jobs import BlobRef
from aggregator_service.rounds import engine
from aggregator_service.rounds.advance import RoundAdvancer
from aggregator_service.rounds.engine import Debounce, RoundEngine
from aggregator_service.rounds.interventions import close_task
from aggregator_service.rounds.leadership import Leadership
from aggregator_service.rounds.transactions import LostRaceError, record_fold
from aggregator_service.storage.blobs import BlobStore, new_key
from aggregator_service.storage.schema import RoundRow, TaskRow
from aggregator_service.storage.stores import collect_orphans
from tests.support.api import aggregator_inside, services
from tests.support.replicas import wait_until
from tests.support.sums import COHORT, KeyedRound
from tests.support.world import SECONDS, World, an_operator


def begun(world: World, **schedule: int) -> tuple[str, list[str]]:
    """A task whose first round has the contributions of its four clients."""
    task = world.task(members=4, **schedule)
    world.run(task)
    world.contribute(task, *world.cohort(task))
    return task, world.cohort(task)


def kinds(blobs: BlobStore) -> set[str]:
    return {key.partition("/")[0] for key in blobs.keys()}  # noqa: SIM118 - a store, not a dict


def test_a_round_ends_when_all_have_contributed(world: World) -> None:
    """With a batch of three: one fold while collecting, one of the fourth contribution, and the sum at once after it.

    The end of collecting wakes no poll: in `folding` no client can do anything but poll once more.
    """
    (task, _), topics, states = begun(world, rounds=1), list[tuple[str, ...]](), list[tuple[str, int]]()
    world.database.listeners.append(lambda effects: topics.extend(one.topics for one in effects.announcements))
    for _ in range(4):
        row = world.round(task)
        states.append((row.state, row.folded))
        asyncio.run(world.engine.advance(task))
    assert states == [("collecting", 0), ("folding", 0), ("folding", 3), ("complete", 4)]
    assert world.run(task) is None
    assert (world.state(task), world.round(task).survivors, world.total(task, 1)[0]) == ("complete", 4, 0b1111)
    assert kinds(world.blobs) == {"aggregates", "snapshots"}
    assert topics == [("folding",), ("round", "snapshot")]


def test_a_round_ends_at_the_deadline_with_enough_survivors(world: World) -> None:
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
    assert world.total(task, 1)[0] == sum(2.0 ** int(client[2:]) for client in survivors)


def test_below_the_floor_nothing_is_released(world: World) -> None:
    task = world.task(members=4, max_failed_rounds=2)
    world.run(task)
    world.contribute(task, world.cohort(task)[0])
    world.clock.advance(SECONDS)
    world.run(task)
    first, second = world.rounds(task)
    assert (first.state, first.survivors, first.aggregate_key, first.partial_key) == ("failed", 0, None, None)
    assert first.failure == "1 of 4 clients contributed in time, but 2 are needed"
    assert not kinds(world.blobs)
    assert (second.number, second.state) == (2, "collecting")
    world.clock.advance(SECONDS)
    assert world.run(task) is None
    assert world.state(task) == "failed"


def test_a_completed_round_resets_the_failures_in_a_row(world: World) -> None:
    task = world.task(members=4, max_failed_rounds=2, rounds=2)
    for delivers in (False, True, False, True):
        world.run(task)
        if delivers:
            world.contribute(task, *world.cohort(task))
        else:
            world.clock.advance(SECONDS)
        world.run(task)
    assert world.state(task) == "complete"
    assert [row.state for row in world.rounds(task)] == ["failed", "complete", "failed", "complete"]
    assert (world.view(task).completed_rounds, world.view(task).failed_rounds) == (2, 2)


def test_the_floor_is_checked_again_at_the_release(world: World) -> None:
    """A folding round with too few survivors, which cannot happen, is not released."""
    task = world.task(members=4)
    world.run(task)
    world.contribute(task, world.cohort(task)[0])
    with world.database.write() as session:
        session.get_one(RoundRow, world.round(task).id).state = "folding"
    for _ in range(3):
        assert world.run(task) is not None
    assert (world.round(task).state, world.round(task).aggregate_key) == ("folding", None)
    assert kinds(world.blobs) == {"contributions", "partials"}


def test_closing_a_task_fails_its_round(world: World) -> None:
    task, _ = begun(world)
    for _ in range(2):  # idempotent
        with world.database.write() as session:
            close_task(session, session.get_one(TaskRow, task), an_operator(world.clock.now()))
    assert (world.round(task).state, world.round(task).failure) == ("failed", "the task was closed")
    assert world.run(task) is None
    assert not kinds(world.blobs)


def test_uniform_sampling_differs_from_round_to_round(world: World) -> None:
    task = world.task(members=9, max_failed_rounds=50, sampling="uniform")
    cohorts = set()
    for _ in range(6):
        world.run(task)
        cohort = world.cohort(task)
        assert len(cohort) == len(set(cohort)) == 4
        cohorts.add(tuple(cohort))
        world.clock.advance(SECONDS)
    assert len(cohorts) > 1


def test_a_full_batch_is_folded_while_collecting_and_by_one_of_two_engines(world: World) -> None:
    task = world.task(members=4)
    world.run(task)
    cohort = world.cohort(task)
    world.contribute(task, *cohort[:3])
    world.run(task)
    round_ = world.round(task)
    assert (round_.state, round_.folded, round_.aggregate_key) == ("collecting", 3, None)
    with pytest.raises(LostRaceError), world.database.write() as session:
        record_fold(session, round_.id, cohort[:3], None, BlobRef("partials/again", "0" * 64))
    current = BlobRef(str(round_.partial_key), str(round_.partial_digest))
    with pytest.raises(LostRaceError), world.database.write() as session:
        record_fold(session, round_.id, cohort[2:], current, BlobRef("partials/again", "0" * 64))
    assert world.round(task).folded == 3


def test_only_orphans_are_deleted(world: World) -> None:
    task, _ = begun(world)
    kept = set(world.blobs.keys())
    for kind in ("contributions", "partials", "aggregates", "snapshots"):
        world.blobs.put(new_key(kind, task, 1), b"left by a crash")
    strangers = new_key("partials", "t_anotherdatabases", 1)
    world.blobs.put(strangers, b"of another database over the same store")
    assert collect_orphans(world.database, world.blobs, before=time.time() - 60) == 0  # a row may name it soon
    assert collect_orphans(world.database, world.blobs) == 4
    assert set(world.blobs.keys()) == {*kept, strangers}
    for _ in range(3):
        world.blobs.put(new_key("partials", task, 1), b"left by another crash")
    assert collect_orphans(world.database, world.blobs, before=time.time() + 60) == 3
    assert set(world.blobs.keys()) == {*kept, strangers}


def test_messages_that_arrive_together_cause_one_read_later_ones_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_MIN_PAUSE", 0.1)
    called = list[int]()

    async def inside() -> list[int]:
        def call() -> None:
            called.append(1)
            made.worked(0.0)

        made, counts = Debounce(call), list[int]()
        for pause in (0.01, 0.0, 0.5):
            for _ in range(100):
                made.soon()
            await asyncio.sleep(pause)
            counts.append(len(called))
        made.soon()
        made.stop()
        await asyncio.sleep(0.2)
        return counts

    assert asyncio.run(inside()) == [1, 1, 2]
    assert len(called) == 2


def test_only_a_message_that_changes_what_is_to_do_has_the_task_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fills a batch, and the last expected one; the others do not, and neither does a look after a time."""
    task, reads, read = world.task(members=5, cohort_size=5, rounds=1), list[int](), RoundAdvancer.read
    monkeypatch.setattr(world.engine, "_recheck", 3600.0)
    monkeypatch.setattr(engine, "_MAX_PAUSE", 0.01)
    monkeypatch.setattr(engine, "_MIN_PAUSE", 0.01)

    def counted(advancer: RoundAdvancer, task_id: str) -> object:
        found = read(advancer, task_id)
        reads.append(len(reads))
        return found

    async def settled() -> int:
        before = -1
        while before != len(reads):
            before = len(reads)
            await asyncio.sleep(0.2)
        return before

    async def inside() -> None:
        running = asyncio.create_task(world.engine.run())
        while not world.rounds(task):
            await asyncio.sleep(0.01)
        for client, changes in zip(world.cohort(task), (False, False, True, False, True), strict=True):
            before = await settled()  # a batch is three
            world.contribute(task, client)
            world.engine.delivered(task)
            while changes and len(reads) == before:
                await asyncio.sleep(0.01)
            assert changes or await settled() == before
        while world.state(task) == "open":
            await asyncio.sleep(0.01)
        running.cancel()

    monkeypatch.setattr(RoundAdvancer, "read", counted)
    asyncio.run(asyncio.wait_for(inside(), 120))
    assert (world.state(task), world.total(task, 1)[0]) == ("complete", 0b11111)


async def cancelled(task: asyncio.Task[Any], turns: int) -> bool:
    """Whether a task ends that is cancelled after so many turns of the event loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=0.5)
    return task.done()


async def woken_driver() -> asyncio.Task[Any]:
    """A driver of rounds that was just woken."""
    engine = RoundEngine.__new__(RoundEngine)
    engine._wake, engine._recheck = {"t": asyncio.Event()}, 60.0

    async def advance(_task: str) -> float:
        return 60.0

    engine.advance = advance
    driver = asyncio.create_task(engine._drive_rounds("t"))
    await asyncio.sleep(0.01)
    engine.wake("t")
    return driver


class Pending(ThreadPoolExecutor):
    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        self.asked: Future[Any] = Future()
        return self.asked


async def answered_follower() -> asyncio.Task[Any]:
    """A follower that was just told that it does not lead."""
    thread, leadership = Pending(1), Leadership(Mock(), lambda _leads: None, lambda: True)
    following = asyncio.create_task(leadership._run(thread, ()))
    await asyncio.sleep(0.01)
    thread.asked.set_result(False)
    return following


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("waiting", [woken_driver, answered_follower])
def test_what_is_woken_and_cancelled_ends(waiting: Callable[[], Awaitable[asyncio.Task[Any]]], turns: int) -> None:
    """One of these turns is the moment between what is waited for and what comes then."""

    async def play() -> bool:
        return await cancelled(await waiting(), turns)

    assert asyncio.run(play())


@pytest.mark.parametrize(("mechanism_name", "early"), [("ckks", 4), ("plain", COHORT - 1)], ids=["slow", "fast"])
def test_slow_contributions_are_folded_while_collecting(tmp_path: Path, mechanism_name: str, early: int) -> None:
    """As soon as there are four a worker. A fold of a few fast ones would cost more than it adds: they wait."""
    with aggregator_inside(tmp_path / "data", split_bytes=1, fold_batch=COHORT) as api:
        round_ = KeyedRound(api, mechanism_name)
        round_.contribute(0, early)
        if mechanism_name == "ckks":
            wait_until(lambda: round_.task.round(1)["folded"] >= early, "a few are folded while collecting")
        else:
            time.sleep(0.5)
            assert round_.task.round(1)["folded"] == 0
        assert round_.task.round(1)["state"] == "collecting"
        round_.contribute(early)
        round_.assert_exact()
        sent = {"contributions", "partials"}
        wait_until(lambda: not kinds(services(api).blobs) & sent, "what clients sent is deleted")
