"""Deadlines do not run while the database or the blob store is away, whoever notices it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aggregator_service.compute.workers import FoldPool
from aggregator_service.problems import Problem
from aggregator_service.rounds.engine import RoundEngine
from aggregator_service.rounds.outages import LONGEST_GAP, OutageWatch
from aggregator_service.storage.stores import bind_store
from tests.support.clock import ManualClock
from tests.support.world import SECONDS, World

OUTAGE = 160.0
Watch = Callable[..., OutageWatch]


@pytest.fixture
def watch(world: World) -> Watch:
    """Makes the watch of another process over the world's storage; by default of one that leads."""
    bind_store(world.database, world.blobs)

    def make(leads: bool = True, right: bool = True) -> OutageWatch:
        clock = world.clock
        return OutageWatch(world.database, world.blobs, clock, lambda: leads, lambda: right, clock.now)

    return make


@pytest.fixture
def first(world: World, watch: Watch) -> OutageWatch:
    """The watch of the world's engine."""
    made = watch()
    pool = FoldPool(1, world.executor)
    works = made.works
    world.engine = RoundEngine(
        world.database, world.blobs, world.clock, pool, may_act=lambda: True, works=works, batch=3, recheck=1.0
    )
    made.note()
    return made


def test_an_outage_that_begins_right_after_a_round_was_opened_counts(world: World, first: OutageWatch) -> None:
    """No note was written since: there was no round."""
    task = world.task(4)
    world.run(task)
    world.clock.advance(OUTAGE)
    first.note()
    assert left(world, task) == pytest.approx(SECONDS)


def begun(world: World, first: OutageWatch, members: int = 4, name: str = "engine") -> str:
    task = world.task({f".{index:02}": (f"{name}{index}".encode(), index) for index in range(members)}, name)
    world.run(task)
    first.note()
    return task


def left(world: World, task: str) -> float:
    return world.round(task).deadline - world.clock.now()


def test_a_round_waits_while_nobody_can_use_the_database(world: World, first: OutageWatch) -> None:
    task = begun(world, first)
    world.contribute(task, *world.cohort(task)[:2])
    world.clock.advance(OUTAGE)
    pause = world.run(task)
    assert (world.round(task).state, pause is not None and 0 < pause < 1) == ("collecting", True)
    with pytest.raises(Problem, match="unavailable"):
        first.judge(world.round(task).deadline)
    first.note()
    assert left(world, task) == pytest.approx(SECONDS)
    first.judge(world.round(task).deadline)
    while left(world, task) > 0:
        world.clock.advance(LONGEST_GAP - 1)
        first.note()  # the notes of a service that works move nothing
    world.run(task)
    assert world.rounds(task)[0].state == "complete"


def test_of_several_processes_one_moves_the_deadlines(world: World, first: OutageWatch, watch: Watch) -> None:
    """Also one that has just started, as after a stop of all servers."""
    task, others = begun(world, first), [watch(False), watch(False)]
    others[0].note()
    world.clock.advance(OUTAGE)
    for process in (others[1], first, others[0], others[1]):
        process.note()
    assert left(world, task) == pytest.approx(SECONDS)


def test_what_was_over_before_an_outage_or_began_in_it_gets_no_time_that_it_had_not(
    world: World, first: OutageWatch, watch: Watch
) -> None:
    over = begun(world, first)
    while left(world, over) > 0:
        world.clock.advance(LONGEST_GAP - 1)
        first.note()
    world.clock.advance(OUTAGE / 2)
    late = world.task(4, "late")
    world.run(late)
    world.clock.advance(OUTAGE / 2)
    watch().note()
    assert left(world, over) < 0
    assert left(world, late) == pytest.approx(SECONDS)


def test_short_gaps_and_set_clocks_move_nothing(world: World, first: OutageWatch) -> None:
    task = begun(world, first)
    world.clock.advance(LONGEST_GAP - 1)
    first.note()
    assert left(world, task) == pytest.approx(SECONDS - LONGEST_GAP + 1)
    ticks = ManualClock()
    steady = OutageWatch(world.database, world.blobs, world.clock, lambda: True, lambda: True, ticks.now)
    steady.note()
    before = world.round(task).deadline
    for jump in (OUTAGE, -2 * OUTAGE, OUTAGE):
        world.clock.advance(jump)
        ticks.advance(1.0)
        steady.note()
    assert world.round(task).deadline == before


def test_a_process_whose_clock_is_wrong_notes_nothing(world: World, first: OutageWatch, watch: Watch) -> None:
    task, wrong = begun(world, first), watch(right=False)
    world.clock.advance(OUTAGE)
    wrong.note()
    assert not wrong.works()
    first.note()
    assert left(world, task) == pytest.approx(SECONDS)


@pytest.mark.parametrize("leads", [True, False])
def test_the_leader_moves_deadlines_while_the_blob_store_is_away(
    world: World, first: OutageWatch, watch: Watch, tmp_path: Path, leads: bool
) -> None:
    """Another process that cannot reach the store does not keep the rounds of all others open."""
    task, process = begun(world, first), watch(leads)
    process.note()
    blobs = tmp_path / "blobs"
    blobs.rename(tmp_path / "away")
    for _ in range(40):
        world.clock.advance(3.0)
        process.note()
    assert (left(world, task) > SECONDS - 4) == leads
    assert not process.works()
    (tmp_path / "away").rename(blobs)
    if leads:
        process.note()
        assert process.works()
        assert left(world, task) == pytest.approx(SECONDS)
