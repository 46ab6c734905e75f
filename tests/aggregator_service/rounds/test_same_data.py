"""Sums over the same data, of one task or of several: who is asked, who leaves, and that no difference is a few people.

A frozen cohort is that of a task that sums the same data in every round. Tasks with one label are compared by identity
keys. Each attack on item counts, at the end, succeeds with the defence taken out.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update

from aggregator_service.rounds.transactions import PLAIN_STAGES, end_stage
from aggregator_service.storage.schema import ClientRow, DisputeRow, RoundRow
from aggregator_service.tasks.membership import revoke_member
from protocols.privacy import isolation as released_combinations
from protocols.recipes.colr import FedMF
from tests.support.world import SECONDS, World, an_operator, sum_again

FLOOR = 4
SUM = {"cohort_size": 10, "start_clients": 10, "min_clients": FLOOR, "rounds": 50}


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make FedMF a recipe that sums the same data in every round."""
    sum_again(monkeypatch, FedMF)


def job(
    world: World,
    name: str,
    people: Collection[int],
    data_set: str | None = "ratings",
    recipe: tuple[str, dict[str, Any]] = ("fedmf", {"items": 2, "dim": 2, "clip": 1e6, "row_clip": 1e6}),
    **schedule: int,
) -> str:
    """A task with these people as members. A person has the same key in every task, and a client id in each."""
    members = {f".{one:02}": (bytes([one] * 32), one) for one in sorted(people)}
    given = {"cohort_size": len(people), "min_clients": FLOOR, "rounds": 50, **schedule}
    return world.task(members, name, recipe, data_set=data_set, **given)


def deliver(world: World, task: str, missing: int = 0) -> RoundRow:
    """The cohort but its first `missing` clients contributes; return the round after it ended."""
    world.run(task)
    number = world.round(task).number
    world.contribute(task, *world.cohort(task)[missing:])
    world.clock.advance(SECONDS)
    world.run(task)
    (row,) = [row for row in world.rounds(task) if row.number == number]
    return row


def test_later_rounds_ask_only_the_survivors(world: World) -> None:
    task = world.task(members=12, **SUM)
    world.run(task)
    first = world.cohort(task)
    assert len(first) == 10
    deliver(world, task)
    assert world.cohort(task) == first
    assert deliver(world, task, missing=8).state == "failed"  # below the floor
    assert world.cohort(task) == first
    assert not world.left()
    dropouts, stay = first[:5], first[5:]
    assert deliver(world, task, missing=5).state == "complete"
    assert world.cohort(task) == stay
    assert not world.left() & set(dropouts + stay)
    (warning,) = [text for text in world.view(task).warnings if "one cohort" in text]
    assert "leaves the task for good" in warning


def test_what_is_advised_lets_members_drop_out(world: World) -> None:
    """Half must stay, and as many leave with one that drops out as sums differ by."""
    sizes = {"cohort_size": 10, "start_clients": 10, "rounds": 50, "max_failed_rounds": 1}
    advised = world.task(members=10, **sizes, min_clients=5, min_difference=2)
    deliver(world, advised)
    for remaining in (8, 6):
        assert f"{remaining} remain" in str(deliver(world, advised, missing=1).failure)
        assert deliver(world, advised).state == "complete"


def test_a_floor_above_half_alone_ends_a_task_with_its_first_dropout(world: World) -> None:
    sizes = {"cohort_size": 10, "start_clients": 10, "rounds": 50, "max_failed_rounds": 1}
    task = world.task(members=10, **sizes, min_clients=9)
    deliver(world, task)
    assert "1 remain" in str(deliver(world, task, missing=1).failure)
    assert world.view(task).state == "failed"


def test_a_sum_that_differs_by_one_is_repeated_over_fewer(world: World) -> None:
    task = world.task(members=12, max_failed_rounds=1, **SUM)
    world.run(task)
    first = world.cohort(task)
    deliver(world, task)
    refused = deliver(world, task, missing=1)
    assert (refused.state, refused.survivors, refused.aggregate_key) == ("failed", 0, None)
    assert "by 1 clients" in str(refused.failure) and "4 clients leave such sums, 6 remain" in str(refused.failure)
    assert first[0] in world.left()
    assert set(world.cohort(task)) == set(first) - world.left()
    assert (world.round(task).number, world.round(task).sum_index, world.round(task).cohort) == (3, 2, 6)
    assert deliver(world, task).state == "complete"
    stay = set(first) - world.left()
    assert world.total(task, 3)[0] == sum(2.0 ** int(client[2:]) for client in stay)
    row = world.row(task)
    assert (row.state, row.completed_rounds, row.failed_rounds, row.failures_in_a_row) == ("open", 2, 1, 0)


def test_the_task_fails_when_too_few_would_remain(world: World) -> None:
    task = world.task(members=7, **SUM | {"cohort_size": 7, "start_clients": 7})
    deliver(world, task)
    refused = deliver(world, task, missing=1)
    assert "3 remain; the task fails, since it needs at least 4" in str(refused.failure)
    assert world.state(task) == "failed"
    assert world.run(task) is None


def revoke(world: World, task: str, *clients: str) -> None:
    with world.database.write() as session:
        for client in clients:
            revoke_member(session, task, client, an_operator(world.clock.now()))


@pytest.mark.parametrize("left", [0, FLOOR - 1])
def test_the_task_fails_when_too_few_members_of_its_cohort_are_left(world: World, left: int) -> None:
    """At the opening of the next round: it could only fail, and new members cannot be in it."""
    task = world.task(members=12, **SUM)
    deliver(world, task)
    revoke(world, task, *world.cohort(task)[left:])
    assert deliver(world, task, missing=10).state == "failed"
    assert world.run(task) is None
    assert (world.state(task), len(world.rounds(task))) == ("failed", 2)
    assert f"{left} clients are left, and a sum needs 4" in world.view(task).warnings[0]


def test_a_cohort_with_exactly_the_least_size_goes_on(world: World) -> None:
    task = world.task(members=12, **SUM)
    deliver(world, task)
    revoke(world, task, *world.cohort(task)[FLOOR:])
    deliver(world, task, missing=10)
    assert (world.state(task), len(world.cohort(task)), world.round(task).number) == ("open", FLOOR, 3)


CHAIN = "privirec-k", {"items": 6, "components": 2, "iterations": 2, "reveal_gram": True, "min_owners": 1}
QUORUM = 5
"""Clients of nine without which nobody confirms a sum, more than the schedule's `min_clients`."""


@pytest.fixture
def masked(world: World) -> str:
    """A masked task of nine clients over the same data, whose first round failed before anybody contributed."""
    schedule = {"cohort_size": 9, "min_clients": FLOOR, "stage_seconds": SECONDS}
    task = world.task(9, "masked", CHAIN, "masked", mechanism_parameters={"corrupt": 0.0, "dropout": 0.34}, **schedule)
    world.run(task)
    return task


def end_first(world: World, task: str) -> None:
    world.clock.advance(SECONDS)
    world.run(task)


def test_clients_kept_apart_leave_a_quorum(world: World, masked: str) -> None:
    """Of six clients that are all in dispute with each other two are asked again: without them nobody would confirm."""
    with world.database.write() as session:
        for owner, reporter in combinations(world.cohort(masked)[:6], 2):
            session.add(DisputeRow(round_id=world.round(masked).id, owner=owner, reporter=reporter))
    end_first(world, masked)
    assert (world.round(masked).number, world.round(masked).cohort) == (2, QUORUM)


def test_a_new_cohort_below_the_quorum_is_not_drawn(world: World, masked: str) -> None:
    """The round waits for new members: the cohort is not frozen yet."""
    revoke(world, masked, *world.cohort(masked)[FLOOR:])
    end_first(world, masked)
    assert (world.state(masked), world.round(masked).number) == ("open", 1)


@pytest.mark.parametrize(("rounds", "last"), [(2, 1), (3, 2)])
def test_a_measurement_that_too_few_can_make_is_abandoned(world: World, rounds: int, last: int) -> None:
    """Members that left sums over their data still train. Everybody hears if it was the task's last sum."""
    task = world.task(6, recipe=COUNTS, evaluation={"every": 1}, **SMALL | {"rounds": rounds})
    world.run(task)
    leaving = select(ClientRow.id).order_by(ClientRow.id).limit(4)
    with world.database.write() as session:
        session.execute(update(ClientRow).where(ClientRow.id.in_(leaving)).values(left_data_in=1))
    topics: list[tuple[str, ...]] = []
    for vector in (LISTS, np.zeros((6, 2 * ITEMS)))[:last]:
        world.contribute(task, *world.cohort(task), vector=lambda person, vector=vector: vector[person])
        world.database.listeners.append(lambda effects: topics.extend(one.topics for one in effects.announcements))
        world.run(task)
    row = world.row(task)
    assert (row.state, row.completed_rounds, row.abandoned_sums) == ("complete", last, 1)
    assert [(one.number, one.cohort, one.failure) for one in world.rounds(task, "failed")] == [
        (2, 0, "the model is not measured: 2 clients are left, and 3 are needed")
    ]
    assert ("round", "members", "snapshot") in topics


def test_a_task_goes_on_when_members_of_its_measuring_cohort_are_revoked(world: World) -> None:
    recipe = "colr", {"items": ITEMS, "dim": 2, "rank": 2, "clip": 1.0}
    task = world.task(12, recipe=recipe, evaluation={"every": 1}, **SMALL)
    world.run(task)
    measuring = world.cohort(task)
    for length in (3, 2 * ITEMS):
        world.contribute(task, *world.cohort(task), vector=lambda person, length=length: np.zeros(length))
        revoke(world, task, *measuring[:4])
        world.run(task)
    newest, row = world.round(task), world.row(task)
    assert (row.state, row.completed_rounds, row.abandoned_sums) == ("open", 2, 1)
    assert (newest.number, newest.sum_index, newest.sum_data, newest.cohort) == (4, 4, None, 4)


def test_the_minimum_difference_can_be_set(world: World) -> None:
    task = world.task(members=10, **SUM, min_difference=2)
    deliver(world, task)
    assert deliver(world, task, missing=2).state == "complete"
    assert deliver(world, task, missing=1).state == "failed"
    assert world.round(task).cohort == 6


def test_other_recipes_draw_a_new_cohort(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    task = world.task(members=10, **SUM)
    deliver(world, task)
    assert deliver(world, task, missing=1).state == "complete"
    assert world.round(task).cohort == 10


def test_a_second_task_over_all_but_one_client_releases_nothing(world: World) -> None:
    assert deliver(world, job(world, "first", range(10))).state == "complete"
    second = job(world, "second", range(1, 10))
    refused = deliver(world, second)
    assert (refused.state, refused.aggregate_key) == ("failed", None)
    assert "differ from those of an earlier sum by 1 clients" in str(refused.failure)
    again = deliver(world, second)
    assert again.state == "complete"
    assert 10 - again.survivors >= FLOOR


def test_sums_over_the_same_or_other_people_or_of_other_labels_are_released(world: World) -> None:
    for name, people in {"first": range(10), "same": range(10), "strangers": range(20, 30)}.items():
        assert deliver(world, job(world, name, people)).state == "complete"
    for name, label in {"unnamed": None, "another": "other"}.items():
        assert deliver(world, job(world, name, range(1, 10), label)).state == "complete"


@pytest.fixture
def third(world: World) -> str:
    """A task over eleven people, of whom two sums have five each: what it adds to them is one client's vector."""
    for name, people in {"first": range(5), "second": range(5, 10)}.items():
        assert deliver(world, job(world, name, people)).state == "complete"
    return job(world, "third", range(11), max_failed_rounds=2)


def test_a_sum_that_isolates_a_client_together_with_two_others_is_refused(world: World, third: str) -> None:
    refused = deliver(world, third)
    assert (refused.state, refused.aggregate_key) == ("failed", None)
    assert "give a sum over 1 clients" in str(refused.failure) and "10 remain" in str(refused.failure)
    again = deliver(world, third)
    assert (again.state, again.survivors) == ("complete", 10)


def test_a_sum_too_complex_to_judge_is_refused(world: World, third: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released_combinations, "MOST_SETS", 2)
    for number in (1, 2):
        refused = deliver(world, third)
        assert (refused.number, refused.state, refused.aggregate_key) == (number, "failed", None)
        assert str(refused.failure).startswith("cannot compute what this sum reveals together with earlier sums")
    assert not world.left()
    assert world.state(third) == "failed"


def test_a_sum_that_is_about_to_be_released_is_compared(world: World) -> None:
    first, second = job(world, "first", range(10)), job(world, "second", range(1, 10))
    world.run(first)
    world.run(second)
    for task in (first, second):
        world.contribute(task, *world.cohort(task))
    with world.database.write() as session:  # both are judged before either is folded
        one = end_stage(session, PLAIN_STAGES, world.round(first).id, world.clock.now())
    with world.database.write() as session:
        other = end_stage(session, PLAIN_STAGES, world.round(second).id, world.clock.now())
    assert (one.state, other.state) == ("folding", "failed")


ITEMS, VICTIM = 12, 5
LISTS = np.random.default_rng(3).integers(0, 2, (VICTIM + 1, ITEMS)).astype(float)
"""Whether each of six people has each item."""
DEGREES = "privirec-k", {"items": ITEMS, "components": 2, "iterations": 2, "reveal_gram": True, "min_owners": 1}
COUNTS = "colr", {"items": ITEMS, "dim": 2, "rank": 2, "clip": 1.0, "item_bias": "counts"}
SMALL = {"cohort_size": 6, "min_clients": 3, "start_clients": 5}


def deliver_lists(world: World, *tasks: str) -> None:
    """Let the whole cohort of each task contribute its lists, and end the round."""
    for task in tasks:
        world.run(task)
        world.contribute(task, *world.cohort(task), vector=lambda person: LISTS[person])
        world.run(task)


def test_item_counts_less_degrees_of_another_task(world: World) -> None:
    """PriviRec-k sums the degrees of five people, a CoLR task the same counts of six, which would show the sixth's."""
    first = job(world, "first", range(VICTIM), recipe=DEGREES, **SMALL)
    second = job(world, "second", range(VICTIM + 1), recipe=COUNTS, **SMALL)
    deliver_lists(world, first, second)
    assert world.round(second).cohort == VICTIM, "the sum is repeated over the five"
    deliver_lists(world, second)
    np.testing.assert_array_equal(world.total(second, 2), world.total(first, 1))
    assert len(world.cohort(second)) == VICTIM + 1  # the sixth is in the cohorts that train
    assert world.left() == {f"{second}.{VICTIM:02}"}


def test_item_counts_less_those_of_another_task(world: World) -> None:
    """Two CoLR tasks: the second counts nobody again, and waits for members that are not counted."""
    first = job(world, "first", range(VICTIM), recipe=COUNTS, **SMALL)
    second = job(world, "second", range(VICTIM + 1), recipe=COUNTS, **SMALL)
    deliver_lists(world, first)
    world.run(second)
    assert not world.rounds(second, "complete")
    assert "needs 3 members that no other sum holds, and has 1" in str(world.view(second).waiting_for)
