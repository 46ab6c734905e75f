"""Cohorts that take turns: the same ones in every turn, whatever else the task sums, and whoever joins or is away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from sqlalchemy import select

from aggregator_service.storage.schema import ClientRow
from aggregator_service.tasks.plans import plan_round
from aggregator_service.tasks.tidying import tidy_task
from tests.support.world import SECONDS, World, client_row

RECIPE: Final = ("fedmf", {"items": 2, "dim": 2, "clip": 5000.0, "row_clip": 1e6})
COUNTS_FIRST: Final = ("colr", {"items": 4, "dim": 2, "rank": 1, "item_bias": "counts"})


class Turns(World):
    def next_cohort(self, task: str) -> frozenset[str]:
        """Open the next round, which all of its cohort answer, and return them."""
        self.run(task)
        number, cohort = self.round(task).number, self.cohort(task)
        length = plan_round(self.row(task), self.round(task)).sum_plan.layout.length
        self.contribute(task, *cohort, vector=lambda _: np.ones(length))
        self.run(task)
        assert self.rounds(task)[number - 1].state == "complete"
        return frozenset(cohort)

    def fail(self, task: str) -> frozenset[str]:
        """Open the next round, which nobody answers, and return its cohort."""
        self.run(task)
        cohort = frozenset(self.cohort(task))
        self.clock.advance(SECONDS)
        self.run(task)
        return cohort

    def join(self, task: str, *turns: int) -> None:
        """Enrol members with these places in the order."""
        with self.database.write() as session:
            known = session.scalars(select(ClientRow.id).where(ClientRow.task_id == task)).all()
            for index, turn in enumerate(turns, start=len(known)):
                session.add(client_row(f"c_{index:02}", task, sequence=index + 1, turn=turn))

    def of_members(self, count: int, **changes: Any) -> str:
        """A task whose members have their places in the order of their ids."""
        task = self.task({}, **{"start_clients": 2, "max_failed_rounds": 50, **changes})
        self.join(task, *(10 * index for index in range(count)))
        return task


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Turns]:
    with closing(Turns(tmp_path)) as made:
        yield made


def ids(*indexes: int) -> frozenset[str]:
    return frozenset(f"c_{index:02}" for index in indexes)


@pytest.mark.parametrize(("members", "sizes"), [(8, [4, 4]), (9, [3, 3, 3]), (10, [4, 3, 3]), (3, [3]), (4, [4])])
def test_cohorts_are_the_same_in_every_turn(world: Turns, members: int, sizes: list[int]) -> None:
    """By default, also where their size does not divide the members, and where these are fewer than a cohort."""
    task = world.of_members(members)
    cohorts = [world.next_cohort(task) for _ in range(2 * len(sizes))]
    first, second = cohorts[: len(sizes)], cohorts[len(sizes) :]
    assert first == second and [len(one) for one in first] == sizes
    assert frozenset[str]().union(*first) == ids(*range(members))


def test_members_that_make_small_batches_are_asked_equally_often(world: Turns) -> None:
    """Batches of 3, of whom nobody could stay away: cohorts of 4 follow each other."""
    task = world.of_members(5, min_clients=3)
    cohorts = [world.next_cohort(task) for _ in range(5)]
    assert cohorts[:2] == [ids(0, 1, 2, 3), ids(4, 0, 1, 2)]
    assert set(Counter(client for cohort in cohorts for client in cohort).values()) == {4}


def test_sums_that_measure_the_model_use_up_nobodys_turn(world: Turns) -> None:
    """A measurement after each sum asks one cohort, whose members train as often as the others."""
    task = world.of_members(8, recipe=RECIPE, evaluation={"every": 1})
    asked: dict[str | None, list[frozenset[str]]] = {None: [], "held-out": []}
    for _ in range(8):
        cohort = world.next_cohort(task)
        asked[world.rounds(task, "complete")[-1].sum_data].append(cohort)
    assert asked[None] == [ids(0, 1, 2, 3), ids(4, 5, 6, 7)] * 2
    assert len(set(asked["held-out"])) == 1 and len(asked["held-out"]) == 4


def test_a_sum_of_counts_uses_up_nobodys_turn_and_other_members_count_after_one_that_failed(world: Turns) -> None:
    task = world.of_members(8, recipe=COUNTS_FIRST)
    assert world.fail(task) == ids(0, 1, 2, 3)
    assert world.next_cohort(task) == ids(4, 5, 6, 7)
    assert world.rounds(task, "complete")[0].sum_rule == "once"
    assert [world.next_cohort(task) for _ in range(3)] == [ids(0, 1, 2, 3), ids(4, 5, 6, 7), ids(0, 1, 2, 3)]


def test_members_that_are_away_keep_nobody_waiting_and_are_asked_in_the_next_turn(world: Turns) -> None:
    task = world.of_members(8)
    assert world.fail(task) == ids(0, 1, 2, 3)
    assert [world.next_cohort(task) for _ in range(3)] == [ids(4, 5, 6, 7), ids(0, 1, 2, 3), ids(4, 5, 6, 7)]


def test_the_first_cohort_of_sums_over_the_same_members_is_another_one_after_it_was_away(world: Turns) -> None:
    frozen = ("privirec-k", {"items": 6, "components": 2, "iterations": 2, "reveal_gram": True, "min_owners": 1})
    task = world.of_members(10, recipe=frozen)
    cohorts = [world.fail(task) for _ in range(3)]
    assert cohorts == [ids(0, 1, 2, 3), ids(4, 5, 6, 7), ids(8, 9, 0, 1)]


def test_one_that_joins_late_is_asked_at_its_place_and_starts_no_cohort_of_its_own(world: Turns) -> None:
    task = world.of_members(8)
    assert world.next_cohort(task) == ids(0, 1, 2, 3)  # and the next round is open
    world.join(task, 35, 1_000)  # c_08 between c_03 and c_04, c_09 at the end
    assert world.next_cohort(task) == ids(4, 5, 6, 7)
    assert [world.next_cohort(task) for _ in range(4)] == [ids(6, 7, 9), ids(0, 1, 2, 3), ids(8, 4, 5), ids(6, 7, 9)]
    with world.database.read() as session:
        asked = dict([tuple(row) for row in session.execute(select(ClientRow.id, ClientRow.times_asked))])
    assert (asked["c_08"], asked["c_09"]) == (1, 2)


def test_turns_go_on_when_the_rows_of_earlier_rounds_are_deleted(world: Turns) -> None:
    task = world.of_members(8)
    for cohort in [ids(0, 1, 2, 3), ids(4, 5, 6, 7)] * 3:
        assert world.next_cohort(task) == cohort
        with world.database.write() as session:
            tidy_task(session, task, keep=1)


def test_a_privacy_block_is_spent_by_all_alike(world: Turns) -> None:
    block = {"epsilon": 8.0, "delta": 1e-5, "rounds": 3}
    task = world.of_members(
        8,
        recipe=("fedmf", {"items": 4, "dim": 2}),
        min_clients=3,
        privacy=block,
        mechanism="masked",
        rounds=6,
        start_clients=8,
    )
    asked = Counter[str]()
    for _ in range(6):
        world.run(task)
        asked.update(world.cohort(task))
        world.clock.advance(SECONDS)
    assert set(asked.values()) == {3}
