"""Recommending, training and restarting in every order, for each kind of state: no client loses what it keeps.

One task per recipe on a real server. Each member works through one word: R recommends, T takes part in a round, S
closes the client and opens a new one over the same store. Together the words have each step after each other step.
Words that begin with T are of members that are there when the task starts, and are in its first sum; the others join
while the second round is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from client_sdk import Client, DirectoryStore, Identity, Operator, Policy, task_request
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import ClientState
from protocols.advice import parameters_for
from protocols.messages import Schedule
from protocols.messages.tasks import Evaluation
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess
from tests.support.tasks import play_round

ITEMS: Final = 30
CASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "fedmf": {"items": ITEMS, "dim": 4, "epochs": 1, "count_sums": 1},
    "pfedclr": {"items": ITEMS, "dim": 4, "rank": 2, "count_sums": 1},
    "rfrecf": {"items": ITEMS, "dim": 4, "iterations": 100, "probability": 0.5},
    "topk": {"items": ITEMS, "dim": 4, "support": "own", "reveal_indices": True, "error_feedback": True},
}
"""A recipe of each kind of state on the device, and its parameters. That of fedmf is measured on held-out rows."""
POLICY: Final = Policy(mechanisms=frozenset({"plain"}), min_cohort=2, reveal_indices=True)
WORDS: Final = ("TRTSTT", "TSRTRSTT", "RTSRT", "RSTT")
ROUNDS: Final = 4
"""Enough for four T from the first round, and for two from the third."""


class Member:
    """One member, and what it has yet to do before each of its rounds and after the last."""

    def __init__(self, url: str, task: str, invitation: str, folder: Path, word: str) -> None:
        self.url, self.task, self.store, self.left = url, task, DirectoryStore(folder / word), word.split("T")
        self.identity = Identity.generate()
        rng = np.random.default_rng(WORDS.index(word))
        items = rng.choice(ITEMS, 8, replace=False)
        self.ratings = dict(zip(items.tolist(), rng.integers(1, 6, 8).astype(float).tolist(), strict=True))
        self.client = Client(url, self.identity, self.store, POLICY)
        self.part = self.client.join(task, invitation=invitation)
        if word.startswith("T"):
            self.left.pop(0)

    def close(self) -> None:
        self.client.close()

    def _initial(self) -> ClientState:
        return self.part.part.client_side.initial_client_state(np.random.default_rng(0))

    def stored(self) -> ClientState | None:
        """Return what a new process would read; `LocalFileError` if it cannot."""
        store = ClientStore(self.store, self.part.part.member.store.owner, self.url)
        return store.client_state(self.part.terms.task_id, self._initial())

    def recommend(self) -> list[int]:
        """Return what is recommended from the newest model, and check that nothing that was kept changes."""
        before, found = self.stored(), self.part.recommend(5, self.ratings).items.tolist()
        after = self.stored()
        assert after is not None and after.keys() == self._initial().keys()
        if before is not None:
            assert_same(after, before)
        return found

    def take_part(self) -> None:
        view = self.part.current_round()
        if not view.in_cohort:
            assert self.part.terms.recipe.layout(view.step).sum_class.repeated, "everybody is asked"
            return
        assert play_round(self.part, view, self.ratings).round == view.number
        after = self.stored()
        assert after is not None and after.keys() == self._initial().keys()

    def restart(self) -> None:
        """Open a new client over the same store: it has the same state, and recommends the same items."""
        expected, before = self.recommend(), self.part.part.client_state()
        self.close()
        self.client = Client(self.url, self.identity, self.store, POLICY)
        self.part = self.client.join(self.task)
        after = self.part.part.client_state()
        assert before is not None and after is not None
        assert_same(after, before)
        assert self.recommend() == expected

    def run_until_training(self) -> None:
        """Do what the word has before its next T."""
        for letter in self.left.pop(0) if self.left else "":
            {"R": self.recommend, "S": self.restart}[letter]()


def assert_same(one: ClientState, other: ClientState) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def await_round(operator: Operator, task_id: str, number: int) -> None:
    def opened() -> bool:
        return any(view.state == "collecting" for view in operator.rounds(task_id, after=number - 1))

    wait_until(opened, f"round {number} opens", 120)


@pytest.mark.parametrize("name", CASES)
def test_recommending_training_and_restarting_in_any_order_loses_nothing(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, name: str
) -> None:
    starting, later = ([word for word in WORDS if word.startswith(letter)] for letter in "TR")
    schedule = Schedule(rounds=ROUNDS + 1, cohort_size=len(WORDS), min_clients=2, start_clients=len(starting))
    evaluation = Evaluation(every=1) if name == "fedmf" else None
    asked = task_request(
        f"kept-{name}", name, "plain", schedule, parameters_for(name, CASES[name]), evaluation=evaluation
    )
    task_id = operator.create_task(asked).task_id
    invitation = operator.invite(task_id, uses=len(WORDS)).invitation
    members: list[Member] = []
    with ExitStack() as clients:

        def join(word: str) -> None:
            member = Member(server.url, asked.name, invitation, tmp_path, word)
            clients.callback(member.close)
            members.append(member)

        for word in starting:
            join(word)
        for number in range(1, ROUNDS + 1):
            await_round(operator, task_id, number)
            present = list(members)
            if number == 2:
                for word in later:
                    join(word)
                    members[-1].run_until_training()
            for member in present:
                member.take_part()
            await_round(operator, task_id, number + 1)
            for member in present:
                member.run_until_training()
        for member in members:
            assert not member.left
            member.restart()
