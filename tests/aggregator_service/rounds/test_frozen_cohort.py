"""Tasks with a frozen cohort: who is asked, who leaves, and that released sums never differ by a few clients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from aggregator_service.storage.rounds import list_rounds
from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow
from aggregator_service.storage.stages import clients_with
from aggregator_service.tasks.tasks import task_view
from protocols.recipes.fedmf import FedMF
from tests.support.world import SECONDS, World, sum_again

FLOOR = 4
SUM = {"cohort_size": 10, "start_clients": 10, "min_clients": FLOOR, "rounds": 50}


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the recipe one that sums the same data in every round."""
    sum_again(monkeypatch, FedMF)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def deliver(world: World, task: str, missing: int = 0) -> RoundRow:
    """All clients of the cohort but the first `missing` contribute; return the round after it ended."""
    number = world.round(task).number
    world.contribute(task, *world.cohort(task)[missing:])
    if missing:
        world.clock.advance(SECONDS)
    world.run(task)
    with world.database.read() as session:
        (row,) = [row for row in list_rounds(session, task, 0, 1000, None) if row.number == number]
        return row


def retired(world: World) -> set[str]:
    with world.database.read() as session:
        return set(session.scalars(select(ClientRow.id).where(ClientRow.left_data_in.is_not(None))))


def test_later_rounds_ask_only_the_survivors(world: World) -> None:
    task = world.task(members=12, **SUM)
    world.run(task)
    first = world.cohort(task)
    assert len(first) == 10
    deliver(world, task)
    assert world.cohort(task) == first
    dropouts, stay = first[:5], first[5:]
    assert deliver(world, task, missing=5).state == "complete"
    assert world.cohort(task) == stay
    assert not retired(world) & set(dropouts + stay)
    with world.database.read() as session:
        (warning,) = [
            text for text in task_view(session, session.get_one(TaskRow, task)).warnings if "one cohort" in text
        ]
    assert "leaves the task for good" in warning


def test_a_sum_that_differs_by_one_is_repeated_over_fewer(world: World) -> None:
    task = world.task(members=12, max_failed_rounds=1, **SUM)
    world.run(task)
    first = world.cohort(task)
    deliver(world, task)
    refused = deliver(world, task, missing=1)
    assert (refused.state, refused.survivors, refused.aggregate_key) == ("failed", 0, None)
    assert refused.failure == (
        "the survivors differ from those of an earlier sum by 1 clients, but sums over the same data must differ by at "
        "least 4: nothing is released, 4 clients leave such sums, 6 remain"
    )
    assert first[0] in retired(world)
    assert set(world.cohort(task)) == set(first) - retired(world)
    assert (world.round(task).number, world.round(task).sum_index, world.round(task).cohort) == (3, 2, 6)
    assert deliver(world, task).state == "complete"
    stay = set(first) - retired(world)
    assert world.total(task, 3) == sum(2.0 ** int(client[2:]) for client in stay)
    with world.database.read() as session:
        row = session.get_one(TaskRow, task)
        assert (row.state, row.completed_rounds, row.failed_rounds, row.failures_in_a_row) == ("open", 2, 1, 0)


def test_retired_clients_stay_retired_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    task = world.task(members=12, **SUM)
    world.run(task)
    deliver(world, task)
    deliver(world, task, missing=1)
    cohort, out = world.cohort(task), retired(world)
    world.close()
    again = World(tmp_path)
    assert (again.cohort(task), retired(again)) == (cohort, out)
    deliver(again, task)
    assert again.cohort(task) == cohort
    again.close()


def test_the_task_fails_when_too_few_would_remain(world: World) -> None:
    task = world.task(members=7, **SUM | {"cohort_size": 7, "start_clients": 7})
    world.run(task)
    deliver(world, task)
    refused = deliver(world, task, missing=1)
    assert "4 clients leave such sums, 3 remain; the task fails, since it needs at least 4" in str(refused.failure)
    assert world.state(task) == "failed"
    assert world.run(task) is None


def test_the_minimum_difference_can_be_set(world: World) -> None:
    task = world.task(members=10, **SUM, min_difference=2)
    world.run(task)
    deliver(world, task)
    assert deliver(world, task, missing=2).state == "complete"
    assert deliver(world, task, missing=1).state == "failed"
    assert world.round(task).cohort == 6


def test_other_recipes_draw_a_new_cohort(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    task = world.task(members=10, **SUM)
    world.run(task)
    deliver(world, task)
    assert deliver(world, task, missing=1).state == "complete"
    assert world.round(task).cohort == 10


def test_a_round_below_its_floor_keeps_the_cohort(world: World) -> None:
    task = world.task(members=10, **SUM)
    world.run(task)
    first = world.cohort(task)
    deliver(world, task)
    assert deliver(world, task, missing=8).state == "failed"
    assert world.cohort(task) == first
    assert not retired(world)


@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.generate],  # shrinking would create hundreds of databases
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(2, 4))
def test_sums_over_random_dropouts_never_differ_by_a_few(dropouts: list[int], wanted: int) -> None:
    with TemporaryDirectory() as root:
        world = World(Path(root))
        task = world.task(members=10, **SUM, min_difference=wanted, max_failed_rounds=1000)
        world.run(task)
        for missing in dropouts:
            if world.state(task) == "open":
                deliver(world, task, missing=min(missing, len(world.cohort(task))))
        with world.database.read() as session:
            sets = [
                set(session.scalars(clients_with(row.id, "contribute")))
                for row in list_rounds(session, task, 0, 1000, "complete")
            ]
        world.close()
    for one, other in combinations(sets, 2):
        assert len(one ^ other) == 0 or len(one ^ other) >= wanted
    assert all(len(survivors) >= FLOOR for survivors in sets)
