"""Sums of counts and of power iterations of several tasks over one data set: no difference of two is a person's list.

Each attack succeeds with the defence taken out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from aggregator_service.storage.rounds import last_completed
from aggregator_service.storage.schema import ClientRow, TaskRow
from aggregator_service.tasks.plans import plan_round, round_spec
from aggregator_service.tasks.tasks import task_view
from protocols.messages import TaskRequest
from tests.support.world import SECONDS, World

ITEMS, VICTIM = 12, 5
LISTS = np.random.default_rng(3).integers(0, 2, (VICTIM + 1, ITEMS)).astype(float)
"""Whether each of six people has each item."""
COUNTS = {"items": ITEMS, "dim": 2, "rank": 2, "clip": 1.0, "item_bias": "counts"}
RECIPES = {"privirec-k": {"items": ITEMS, "components": 2, "iterations": 2}, "colr": COUNTS}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def job(world: World, name: str, recipe: str, people: Collection[int]) -> str:
    """A task of this data set. A person has the same key in every task, and a client id in each."""
    request = TaskRequest.model_validate(
        {
            "name": name,
            "recipe": {"name": recipe, "parameters": RECIPES[recipe]},
            "mechanism": {"name": "plain"},
            "schedule": {"cohort_size": 6, "min_clients": 3, "start_clients": 5, "collect_seconds": SECONDS},
            "data_set": "ratings",
        }
    )
    return world.task_of(request, {f".{one}": (bytes([one] * 32), one) for one in sorted(people)})


def deliver(world: World, task_id: str) -> None:
    """Let the whole cohort contribute its lists, and end the round."""
    world.run(task_id)
    round_, asked = world.round(task_id), world.cohort(task_id)
    with world.database.write() as session:
        plan = plan_round(session.get_one(TaskRow, task_id), round_)
        for client in asked:
            route = plan.route(round_spec(round_), client)
            body = plan.mechanism.seal(plan.sum_plan, route, [LISTS[int(client[-1])]], None)
            world.store(session, round_, client, body)
    world.run(task_id)


def released(world: World, task_id: str) -> NDArray[np.float64]:
    """The newest sum that anybody may read."""
    with world.database.read() as session:
        row = last_completed(session, task_id)
        assert row is not None and row.aggregate_key is not None and row.aggregate_digest is not None
        plan = plan_round(session.get_one(TaskRow, task_id), row)
    body = bytes(world.blobs.view(row.aggregate_key, row.aggregate_digest))
    return plan.mechanism.open(plan.sum_plan, body, row.survivors, None)


def test_item_counts_less_degrees_of_another_task(world: World) -> None:
    """PriviRec-k sums the degrees of five people, a CoLR task the same counts of six, which would show the sixth's."""
    first, second = job(world, "first", "privirec-k", range(VICTIM)), job(world, "second", "colr", range(VICTIM + 1))
    deliver(world, first)
    deliver(world, second)
    assert world.round(second).cohort == VICTIM, "the sum is repeated over the five"
    deliver(world, second)
    np.testing.assert_array_equal(released(world, second), released(world, first))


def test_item_counts_less_those_of_another_task(world: World) -> None:
    """Two CoLR tasks: the second counts nobody again, and waits for members that are not counted."""
    first, second = job(world, "first", "colr", range(VICTIM)), job(world, "second", "colr", range(VICTIM + 1))
    deliver(world, first)
    world.run(second)
    with world.database.read() as session:
        assert last_completed(session, second) is None
        waiting = task_view(session, session.get_one(TaskRow, second)).waiting_for
    assert waiting == (
        "new members: sum 1 counts each client's data once in data set 'ratings'; it needs 3 members that no other sum "
        "holds, and has 1"
    )


def test_who_leaves_the_counts_goes_on_training(world: World) -> None:
    """The sixth is in no sum over the same data, and in the cohorts that train."""
    first, second = job(world, "first", "privirec-k", range(VICTIM)), job(world, "second", "colr", range(VICTIM + 1))
    deliver(world, first)
    deliver(world, second)
    deliver(world, second)
    assert len(world.cohort(second)) == VICTIM + 1
    with world.database.read() as session:
        left = session.scalars(select(ClientRow.id).where(ClientRow.left_data_in.is_not(None))).all()
    assert left == [f"{second}.{VICTIM}"]
