"""A sum of counts holds the items of `min_clients` clients or more: attacks of members and of a lying server.

Clients that were counted used to send zeros to later sums of counts. The zeros counted towards `min_clients`, and the
sum was the item list of the one client that was not counted before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk import Client, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.api.http import SyncDriver
from client_sdk.errors import TaskFailed
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.rounds.events import Event, RoundAbstained, TaskEnded
from client_sdk.task import Task
from protocols.advice import parameters_for
from protocols.messages import Schedule
from protocols.recipes.factors import CountedFactors
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import ITEMS, TRIAL, SmallTask, interactions, joined, play_round

Counts = NDArray[np.float64]


def counting_task(
    operator: Operator, name: str, mechanism: str, schedule: Schedule, recipe: str = "colr", **given: Any
) -> SmallTask:
    """A task with the recommended parameters, which count items first."""
    parameters = parameters_for(recipe, {"items": ITEMS, "dim": 8, "clip": 2.0, **given})
    request = task_request(name, recipe, mechanism, schedule, parameters, organiser=TRIAL.pin)
    return SmallTask.of(operator, request, 50)


def item_list(items: NDArray[np.int32]) -> list[int]:
    return sorted(items.tolist())


def counts_of(model: object) -> Counts:
    assert isinstance(model, CountedFactors)
    return model.item_counts


# --- an honest server ------------------------------------------------------------------------------------------------


def test_no_sum_of_a_default_task_is_the_item_list_of_a_member(server: AggregatorProcess, operator: Operator) -> None:
    """Cohorts of all members but one, as any member sees it: the counts of one round less those of the round before."""
    users, chosen = 8, interactions(8)
    task = counting_task(operator, "default", "masked", Schedule(rounds=3, cohort_size=7, start_clients=users), rank=2)
    seen: list[Counts] = [np.zeros(ITEMS)]
    with Fleet(server.url, chosen, FleetOptions(seed=1, downloads="once")) as fleet:
        fleet.enrol(task.invitation, certificates=task.certificates)
        played = fleet.run(lambda _: seen.append(counts_of(fleet.model())))
    assert [(done.state, done.survivors) for done in played] == [("complete", 7)] * 3
    released = [after - before for before, after in zip(seen, seen[1:], strict=False)]
    lists = [item_list(items) for items in chosen]
    assert not [np.flatnonzero(each).tolist() for each in released if np.flatnonzero(each).tolist() in lists]
    assert released[0].sum() == 7 * 6
    assert not any(each.any() for each in released[1:])


# --- a lying server --------------------------------------------------------------------------------------------------

MEMBERS, VICTIM = 5, 5
"""Five members are counted in sum 1. The sixth, the victim, is silent until the server asks for sum 1 again."""


class Members:
    """Six members of one task, each with a store of its own."""

    def __init__(self, server: AggregatorProcess, task: SmallTask) -> None:
        self.chosen = interactions(MEMBERS + 1)
        policy = Policy(mechanisms=frozenset({"masked", "plain"}))
        self._open = ExitStack()
        self.parts: list[Task] = self._open.enter_context(joined(server.url, task, len(self.chosen), policy))
        self.close = self._open.close

    def play(self, number: int, indices: Sequence[int]) -> None:
        """Let these members take part in round `number`, once it is open."""

        def one(index: int) -> None:
            part = self.parts[index]
            while (view := part.current_round(20.0)) is None or view.number < number:
                pass
            play_round(part, view, self.chosen[index])

        with ThreadPoolExecutor(len(indices)) as pool:
            list(pool.map(one, indices))

    def await_complete(self, number: int) -> None:
        """Wait until round `number` is complete."""
        while (view := self.parts[0].current_round(20.0)) is None or view.number == number:
            if view is not None and view.state in ("complete", "failed"):
                assert view.state == "complete", view.failure
                return

    def follow(self) -> list[list[Event]]:
        """Let all members take part until the task ends; return what each was told."""
        events: list[list[Event]] = [[] for _ in self.parts]

        def one(index: int) -> None:
            with suppress(TaskFailed):
                self.parts[index].take_part(self.chosen[index], events[index].append)

        with ThreadPoolExecutor(len(self.parts)) as pool:
            list(pool.map(one, range(len(self.parts))))
        return events


@contextmanager
def five_counted_members(
    tmp_path: Path, mechanism: str, rounds: int, lie: str, **given: Any
) -> Iterator[tuple[AggregatorProcess, Members, Counts]]:
    """Members that took part in `rounds` rounds, before the server's database says what the statements of `lie` make
    it say; and the first sum of counts."""
    deadlines = {"stage_seconds": 3.0, "collect_seconds": 3.0}  # the victim is waited for so long
    schedule = Schedule(rounds=5, cohort_size=6, start_clients=6, max_failed_rounds=2, **deadlines)
    with running_aggregator(tmp_path / "data") as server, Operator(server.url, server.operator_token) as operator:
        task = counting_task(operator, "lied-about", mechanism, schedule, rank=2, **given)
        members = Members(server, task)
        try:
            for number in range(1, rounds + 1):
                members.play(number, range(MEMBERS))
                members.await_complete(number)
            first = counts_of(members.parts[0].model()).copy()
            assert first.sum() == MEMBERS * 6
            server.kill()
            with closing(sqlite3.connect(server.data_dir / "hushrec.db")) as database, database:
                database.executescript(lie)
            server.start()
            yield server, members, first
        finally:
            members.close()


def assert_members_abstain(server: AggregatorProcess, members: Members, step: int, why: str) -> None:
    """All members take part until the task ends: those that were counted send nothing, and nothing is released."""
    events = members.follow()
    for told in events[:MEMBERS]:
        abstained = [event for event in told if isinstance(event, RoundAbstained)]
        assert len(abstained) == 2  # the loop goes on after the first
        assert all(why in event.reason for event in abstained)
        assert isinstance(told[-1], TaskEnded)
    assert not any(isinstance(event, RoundAbstained) for event in events[VICTIM])
    with closing(sqlite3.connect(server.data_dir / "hushrec.db")) as database:
        found = database.execute(
            "SELECT sum_index, rounds.state, aggregate_digest, reason, COUNT(*) FROM refusals "
            "JOIN rounds ON id = round_id GROUP BY round_id, reason"
        ).fetchall()
    assert found == [(step, "failed", None, "no-data", MEMBERS)] * 2


FORGETS_WHO_WAS_COUNTED = "DELETE FROM contributions;"


def test_the_first_sum_again(tmp_path: Path) -> None:
    """The server says that no round so far was complete, and asks for the counts again, with the victim's."""
    lie = """
        UPDATE tasks SET completed_rounds = 0, failures_in_a_row = 0;
        UPDATE rounds SET state = 'failed';
        DELETE FROM snapshots;
    """
    with five_counted_members(tmp_path, "masked", 2, FORGETS_WHO_WAS_COUNTED + lie) as (server, members, _):
        assert_members_abstain(server, members, 1, "repeats sum 1")


def test_counted_members_are_no_crowd_for_a_victim(tmp_path: Path) -> None:
    with five_counted_members(tmp_path, "plain", 1, FORGETS_WHO_WAS_COUNTED, count_sums=2) as played:
        server, members, _ = played
        assert_members_abstain(server, members, 2, "are in sum 1")


def test_a_client_is_recorded_as_counted_before_it_sends(server: AggregatorProcess, operator: Operator) -> None:
    """Else one whose answer is lost would be counted again, in another sum."""
    task = counting_task(operator, "record", "masked", Schedule(cohort_size=6), rank=2)
    store, identity = MemoryStore(), Identity.generate()
    with Client(server.url, identity, store) as client:
        core = task.join(client).part
        recipe, seed = core.member.terms.recipe, core.member.terms.seed
        with SyncDriver() as driver:
            training = core.train(recipe.round_spec(seed, 1), recipe.initial_state(seed), core.history([2, 5]))
            local = driver.run(training)
        assert np.flatnonzero(local.blocks[0]).tolist() == [2, 5]
    with Client(server.url, identity, store) as restarted:
        kept = restarted.join(task.name).part.member.store.given(task.task_id, None, "rows")
    assert kept.counted == (task.task_id, 1)
