"""Several tasks over the same data: their sums differ by enough clients, compared by identity keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from aggregator_service.rounds.transactions import end_collecting
from aggregator_service.storage.rounds import list_rounds
from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow
from aggregator_service.storage.stages import clients_with
from aggregator_service.tasks.plans import plan_task, round_spec, row_terms
from protocols.messages import TaskRequest
from protocols.privacy import combinations as released_combinations
from protocols.recipes.fedmf import FedMF
from tests.support.world import SECONDS, World, sum_again

FLOOR = 4


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the recipe one that sums the same data in every round."""
    sum_again(monkeypatch, FedMF)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def job(world: World, name: str, people: Collection[int], data_set: str | None = "ratings") -> str:
    """A task with these people as members. A person has the same key in every task, and a client id in each."""
    size = len(people)
    request = TaskRequest.model_validate(
        {
            "name": name,
            "recipe": {"name": "fedmf", "parameters": {"items": 2, "dim": 2, "clip": 5.0}},
            "mechanism": {"name": "plain"},
            "schedule": {"cohort_size": size, "min_clients": FLOOR, "collect_seconds": SECONDS, "rounds": 50},
            "data_set": data_set,
        }
    )
    return world.task_of(request, {f".{one:02}": (bytes([one] * 32), one) for one in sorted(people)})


def contribute(world: World, task_id: str, clients: Collection[str]) -> None:
    """Store a contribution of ones for each client."""
    round_ = world.round(task_id)
    with world.database.write() as session:
        plan = plan_task(row_terms(session.get_one(TaskRow, task_id)))
        for client in clients:
            route = plan.route(round_spec(round_), client)
            (block,) = plan.sum_plan.layout.contribution_blocks(route)
            body = plan.mechanism.seal(plan.sum_plan, route, [np.ones(len(block.integral_mask()))], None)
            world.store(session, round_, client, body)


def deliver(world: World, task: str, away: Collection[int] = ()) -> RoundRow:
    """The cohort except the absent clients contributes; return the round after it ended."""
    number = world.round(task).number
    there = [client for client in world.cohort(task) if person(client) not in away]
    contribute(world, task, there)
    world.clock.advance(SECONDS)
    world.run(task)
    with world.database.read() as session:
        return session.scalars(select(RoundRow).where(RoundRow.task_id == task, RoundRow.number == number)).one()


def person(client: str) -> int:
    return int(client[-2:])


def released(world: World) -> list[tuple[str, frozenset[bytes]]]:
    """Data set label and identity keys of every released sum."""
    found = []
    with world.database.read() as session:
        for task in session.scalars(select(TaskRow)):
            for row in list_rounds(session, task.id, 0, 1000, "complete"):
                keys = select(ClientRow.identity_key).where(ClientRow.id.in_(clients_with(row.id, "contribute")))
                found.append((task.data_set or task.id, frozenset(session.scalars(keys))))
    return found


def test_a_second_task_over_all_but_one_client_releases_nothing(world: World) -> None:
    first = job(world, "first", range(10))
    world.run(first)
    assert deliver(world, first).state == "complete"
    second = job(world, "second", range(1, 10))
    world.run(second)
    refused = deliver(world, second)
    assert (refused.state, refused.aggregate_key) == ("failed", None)
    assert "differ from those of an earlier sum by 1 clients" in str(refused.failure)
    again = deliver(world, second)
    assert again.state == "complete"
    assert 10 - again.survivors >= FLOOR


def test_sums_over_the_same_or_entirely_different_people_are_released(world: World) -> None:
    for name, people in {"first": range(10), "same": range(10), "strangers": range(20, 30)}.items():
        task = job(world, name, people)
        world.run(task)
        assert deliver(world, task).state == "complete"


def test_a_sum_that_isolates_a_client_together_with_two_others_is_refused(world: World) -> None:
    """S(0..4), S(5..9) and S(0..10): the sets differ by five clients or more, the sums by one client's vector."""
    for name, people in {"first": range(5), "second": range(5, 10)}.items():
        task = job(world, name, people)
        world.run(task)
        assert deliver(world, task).state == "complete"
    third = job(world, "third", range(11))
    world.run(third)
    refused = deliver(world, third)
    assert (refused.state, refused.aggregate_key) == ("failed", None)
    assert refused.failure == (
        "this sum and earlier ones, added and subtracted, give a sum over 1 clients, but sums over the same data must "
        "not isolate fewer than 4: nothing is released, 1 clients leave such sums, 10 remain"
    )
    again = deliver(world, third)
    assert (again.state, again.survivors) == ("complete", 10)


def test_a_sum_that_is_too_complex_to_judge_is_refused_and_counts_as_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, people in {"first": range(5), "second": range(5, 10)}.items():
        task = job(world, name, people)
        world.run(task)
        assert deliver(world, task).state == "complete"
    monkeypatch.setattr(released_combinations, "MOST_SETS", 2)
    third = job(world, "third", range(11))
    for number in range(1, 6):  # max_failed_rounds
        world.run(third)
        refused = deliver(world, third)
        assert (refused.number, refused.state, refused.aggregate_key) == (number, "failed", None)
        assert str(refused.failure).startswith("cannot compute what this sum reveals together with earlier sums")
    with world.database.read() as session:
        assert not session.scalars(select(ClientRow.id).where(ClientRow.left_data_in.is_not(None))).all()
    assert world.state(third) == "failed"


@pytest.mark.parametrize("label", [None, "other"])
def test_tasks_of_other_labels_are_not_compared(world: World, label: str | None) -> None:
    first, second = job(world, "first", range(10)), job(world, "second", range(1, 10), label)
    for task in (first, second):
        world.run(task)
        assert deliver(world, task).state == "complete"


def test_a_sum_that_is_about_to_be_released_is_compared(world: World) -> None:
    first, second = job(world, "first", range(10)), job(world, "second", range(1, 10))
    world.run(first)
    world.run(second)
    for task in (first, second):
        contribute(world, task, world.cohort(task))
    with world.database.write() as session:  # both are judged before either is folded
        one = end_collecting(session, world.round(first).id, world.clock.now())
    with world.database.write() as session:
        other = end_collecting(session, world.round(second).id, world.clock.now())
    assert (one.state, other.state) == ("folding", "failed")


def test_a_task_without_a_sum_draws_another_cohort_and_ends(world: World) -> None:
    first = job(world, "first", range(10))
    world.run(first)
    deliver(world, first)
    second = job(world, "second", range(1, 7))  # too similar whoever leaves
    for _ in range(20):
        world.run(second)
        if world.state(second) != "open" or world.round(second).state == "complete":
            break
        if world.round(second).state == "collecting":
            deliver(world, second)
    sets = [keys for _, keys in released(world)]
    assert all(a == b or len(a ^ b) >= FLOOR for a, b in combinations(sets, 2))


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sets(st.integers(0, 11), min_size=FLOOR, max_size=12),
            st.sets(st.integers(0, 11), max_size=3),
            st.sampled_from(["ratings", "ratings", "other"]),
        ),
        min_size=2,
        max_size=4,
    )
)
def test_sums_of_a_label_never_differ_by_a_few_people(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[tuple[set[int], set[int], str]]
) -> None:
    world = World(tmp_path_factory.mktemp("jobs"))
    tasks = [(job(world, f"job-{place}", people, label), away) for place, (people, away, label) in enumerate(jobs)]
    for turn in range(3):
        for task, away in tasks:
            world.run(task)
            if world.state(task) == "open" and world.round(task).state == "collecting":
                deliver(world, task, away if turn == 1 else ())
    for (label, one), (other_label, other) in combinations(released(world), 2):
        assert label != other_label or one == other or len(one ^ other) >= FLOOR
        assert len(one) >= FLOOR
    world.close()
