"""The budget of an identity when several threads or processes change it, and what a restored device is told."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import Client, MemoryStore, Operator, Policy, PolicyRefused, task_request
from client_sdk.agreement.terms import TaskTerms
from client_sdk.rounds.ledger import read_budget, release_budget, reserve_budget, spend_budget
from client_sdk.store import DirectoryStore, Store
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import Spending
from protocols.messages import Schedule
from protocols.messages.privacy import Privacy
from tests.support.programs import task_view
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRIAL, SmallTask, enrolled_fleet

POLICY, SUMS = Policy(max_epsilon=8), 3
SCHEDULE = {"cohort_size": 10, "min_clients": 5, "rounds": 9}


def terms_of(task_id: str, state: str = "open") -> TaskTerms:
    block = {"epsilon": 6.0, "delta": 1e-6, "rounds": SUMS}
    parameters = {"items": 6, "dim": 4, "rank": 2}
    named = {"task_id": task_id, "name": task_id, "state": state}
    return TaskTerms.of(task_view("colr", parameters, "masked", {}, privacy=block, schedule=SCHEDULE, **named))


def spend(store: ClientStore, terms: TaskTerms, times: int = 1) -> int:
    """Contribute up to so many times; return how often the budget allowed it."""
    spec, done = terms.recipe.round_spec(terms.seed, 1, 1), 0
    with suppress(PolicyRefused):
        while done < times:
            spend_budget(store, terms, spec)
            done += 1
    return done


class Interrupted:
    """A store that lets `meanwhile` run, up to its end or to a lock, after its first read of a budget."""

    def __init__(self, store: Store, meanwhile: Callable[[], object]) -> None:
        self.store, self.thread = store, threading.Thread(target=meanwhile)
        self._waits = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def read(self, owner: str, task_id: str, name: str) -> bytes | None:
        found = self.store.read(owner, task_id, name)
        if name == "privacy.json" and self._waits:
            self._waits = False
            self.thread.start()
            self.thread.join(0.5)
        return found


@pytest.fixture(params=["memory", "directory"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else DirectoryStore(tmp_path)


def test_a_repeated_round_counts_and_another_server_finds_the_budget_reserved(shared: Store) -> None:
    terms, here = terms_of("t_1"), ClientStore(shared, "me", "https://a")
    reserve_budget(here, POLICY, terms, 0)
    for number in (1, 1, 2):
        spend_budget(here, terms, terms.recipe.round_spec(terms.seed, number, number))
    with pytest.raises(PolicyRefused, match="round 3: "):
        spend_budget(here, terms, terms.recipe.round_spec(terms.seed, 3, 3))
    with pytest.raises(PolicyRefused, match="for other tasks"):
        reserve_budget(ClientStore(shared, "me", "https://b"), POLICY, terms, 0)


def test_a_server_cannot_reopen_a_task_whose_budget_another_task_has(shared: Store) -> None:
    first, second, here = terms_of("t_1"), terms_of("t_2"), ClientStore(shared, "me", "https://a")
    reserve_budget(here, POLICY, first, 0)
    assert spend(here, first) == 1
    release_budget(here, "t_1")
    reserve_budget(here, POLICY, second, 0)
    with pytest.raises(PolicyRefused, match="for other tasks"):
        reserve_budget(here, POLICY, first, 0)
    assert spend(here, first) == 0


def test_a_task_that_is_closed_when_it_is_joined_reserves_nothing_and_gets_nothing(shared: Store) -> None:
    here = ClientStore(shared, "me", "https://a")
    reserve_budget(here, POLICY, terms_of("t_1", "closed"), 0)
    assert read_budget(here, POLICY).reserved == 0
    assert spend(here, terms_of("t_1")) == 0


def test_contributions_while_the_task_is_joined_again_are_all_counted(shared: Store) -> None:
    terms, here = terms_of("t_1"), ClientStore(shared, "me", "https://a")
    reserve_budget(here, POLICY, terms, 0)
    joining = Interrupted(shared, lambda: spend(here, terms, 2))
    reserve_budget(ClientStore(joining, "me", "https://a"), POLICY, terms, 0)
    joining.thread.join()
    assert here.spending("t_1").sums == 2
    assert spend(here, terms, SUMS) == 1


def test_two_tasks_that_are_joined_at_once_do_not_spend_the_same_budget(shared: Store) -> None:
    refused: list[str] = []

    def join_other() -> None:
        try:
            reserve_budget(ClientStore(shared, "me", "https://b"), POLICY, terms_of("t_2"), 0)
        except PolicyRefused as error:
            refused.append(str(error))

    joining = Interrupted(shared, join_other)
    reserve_budget(ClientStore(joining, "me", "https://a"), POLICY, terms_of("t_1"), 0)
    joining.thread.join()
    assert len(refused) == 1 and "for other tasks" in refused[0]
    assert read_budget(ClientStore(shared, "me", "https://a"), POLICY).reserved <= POLICY.max_epsilon


def test_a_contribution_while_the_task_ends_is_not_forgotten(shared: Store) -> None:
    terms, here = terms_of("t_1"), ClientStore(shared, "me", "https://a")
    reserve_budget(here, POLICY, terms, 0)
    spent: list[int] = []
    ending = Interrupted(shared, lambda: spent.append(spend(here, terms)))
    release_budget(ClientStore(ending, "me", "https://a"), "t_1")
    ending.thread.join()
    found = here.spending("t_1")
    assert found.over and spent == [found.sums]
    assert spend(here, terms) == 0


def test_a_lock_of_one_identity_does_not_keep_another_one_out(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    with store.exclusive("me"), store.exclusive("you"):
        store.write("me", "t_1", "name", b"")
    assert store.tasks("me") == ["t_1"]
    with store.exclusive("me"):
        pass


def test_the_larger_count_of_device_and_server_holds(shared: Store) -> None:
    terms, here = terms_of("t_1"), ClientStore(shared, "me", "https://a")
    reserve_budget(here, POLICY, terms, 0)
    spend(here, terms, 2)
    own = here.spending("t_1")
    reserve_budget(here, POLICY, terms, 1)
    assert np.array_equal(here.spending("t_1").spent, own.spent) and here.spending("t_1").sums == 2
    reserve_budget(here, POLICY, terms, 50)
    found = here.spending("t_1")
    assert (found.sums, spend(here, terms)) == (SUMS, 0)
    assert np.array_equal(found.spent, found.reserved)


def test_a_device_restored_from_a_backup_counts_the_sums_that_the_server_lists(
    server: AggregatorProcess, operator: Operator
) -> None:
    users = 5
    schedule = Schedule(rounds=3, cohort_size=users, min_clients=users, start_clients=users)
    wanted = task_request("restored", "colr", "masked", schedule, {"items": 30, "dim": 4, "rank": 2}, {"dropout": 0.0},
                          organiser=TRIAL.pin, privacy=Privacy(epsilon=6.0, delta=1e-6, rounds=5))  # fmt: skip
    task = SmallTask.of(operator, wanted, users)
    rows = [list(range(user, user + 9)) for user in range(users)]
    with enrolled_fleet(server.url, task, rows) as fleet:
        fleet.run(rounds=2)
        member = fleet.clients[0].member
        kept, identity, own = member.store.store, member.identity, member.store.spending(member.task_id)
    assert own.sums == 2
    backup = copy.deepcopy(kept)
    restored = ClientStore(backup, identity.fingerprint, server.url)
    restored.keep_spending(member.task_id, Spending(own.task_name, own.most_sums, own.reserved))
    with Client(server.url, identity, backup) as client:
        client.join("restored")
        assert client.budget().tasks[0].sums == 2
    assert np.allclose(restored.spending(member.task_id).spent, member.terms.recipe.cost(2))
