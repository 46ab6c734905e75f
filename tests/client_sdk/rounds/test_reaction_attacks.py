"""A server that replaces an encrypted sum learns nothing from what a member does then: its requests stay the same.

Each attack is run on a real member, with the defence and without it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from client_sdk import Identity, MemoryStore, Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Program, Request, Response, content_digest
from client_sdk.history import History
from client_sdk.model.follow import ModelFollower
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.events import AggregateRejected, Event, Progress, RoundMissed, RoundReport, TrainingFailed
from client_sdk.rounds.loop import _Contributor
from client_sdk.rounds.member import Member
from client_sdk.rounds.part import Part
from client_sdk.store.client_store import ClientStore, Membership
from client_sdk.training import client_half
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.keys import Keyring
from protocols.errors import HushRecError
from protocols.layout import whole_route
from protocols.messages import RoundPage, RoundView, UploadReceipt
from protocols.recipes.base import FactorState, ModelState
from tests.support.programs import ProgramRunner, problem
from tests.support.views import SEED, round_view, task_view

SURVIVORS = 4
PARAMETERS: dict[str, dict[str, Any]] = {"ckks": {"set": "compact"}, "paillier": {}}


def terms_of(mechanism: str) -> TaskTerms:
    parameters = {"items": 6, "dim": 4, "clip": 1.0}
    return TaskTerms.of(task_view("fedmf", parameters, mechanism, PARAMETERS[mechanism], completed_rounds=1))


def attempt(part: Part, view: RoundView, history: History, progress: Progress) -> Program[None]:
    """Take part in a round as `take_part` does, with its outcome as an event."""
    progress((yield from _Contributor(part, history, progress)._attempt(view)))


@dataclass
class Attack:
    """A task whose round 1 is complete with the sum `aggregate`, and one member that is asked in round 2."""

    terms: TaskTerms
    keyring: Keyring
    aggregate: bytes
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        calls = ApiCalls("https://server.example", "hrc_token")
        store = ClientStore(MemoryStore(), "me")
        membership = Membership(calls.url, "t_1", "movies", "c_1", "member", "hrc_token")
        policy, check = Policy(snapshot_every=0), MembershipCheck(None)
        self.part = Part(
            Member(calls, self.terms, membership, Identity.generate(), store, policy, check),
            ModelFollower(calls, self.terms, store, self.keyring),
            client_half(self.terms.recipe, None, None),
            np.random.default_rng(1),
        )
        self.runner = ProgramRunner(self._answer)

    def take_part(self) -> list[tuple[str, str, int]]:
        """Return all that the server sees of the member's part in round 2: methods, addresses and lengths."""
        history = History.of([0, 2, 3], 6)
        try:
            self.runner.run(attempt(self.part, self.view(2), history, self.events.append))
        except HushRecError as error:
            self.events.append(RoundMissed(2, str(error)))
        for request in self.runner.requests:
            if "/contributions/" in request.url:  # opened or not, it states the bytes that it downloaded
                stated = AggregateChain.first("t_1").extended(1, self.aggregate).digest.hex()
                assert request.headers["aggregate-chain"] == stated
        return [(request.method, request.url, len(request.body)) for request in self.runner.requests]

    def model(self) -> ModelState:
        return self.part.follower.at_hand()

    def view(self, number: int) -> RoundView:
        seed = self.terms.recipe.round_spec(SEED, number).seed
        return round_view(number, "complete" if number == 1 else "collecting", seed, SURVIVORS, self.aggregate)

    def _answer(self, request: Request) -> Response:
        path = request.url.split("/v1/tasks/t_1/")[1]
        if path.startswith("rounds?"):
            return Response(200, {}, RoundPage(rounds=[self.view(1)], more=False).model_dump_json().encode())
        if path.endswith("/aggregate"):
            return Response(200, {"content-digest": content_digest(self.aggregate)}, self.aggregate)
        if path.startswith("rounds/2/contributions/"):
            digest = hashlib.sha256(request.body).hexdigest()
            receipt = UploadReceipt(round=2, client_id="c_1", bytes=len(request.body), digest=digest)
            return Response(201, {}, receipt.model_dump_json().encode())
        return problem("not-found")


def aggregate_of(terms: TaskTerms, keyring: Keyring, clients: int, value: float = 0.01) -> bytes:
    plan, mechanism = terms.sum_plan, terms.mechanism
    route = whole_route(plan.layout)
    vectors = [np.where(block.integral_mask(), 1.0, value) for block in plan.layout.blocks]
    bodies = [(route, mechanism.seal(plan, route, vectors, keyring)) for _ in range(clients)]
    return mechanism.release(plan, mechanism.fold(plan, None, bodies))


@pytest.fixture(scope="module", params=["ckks", "paillier"])
def task(request: pytest.FixtureRequest) -> tuple[TaskTerms, Keyring]:
    terms = terms_of(request.param)
    return terms, terms.mechanism.generate_keyring(terms.sum_plan)


def seen_in_an_honest_round(task: tuple[TaskTerms, Keyring]) -> list[tuple[str, str, int]]:
    honest = Attack(*task, aggregate_of(*task, SURVIVORS))
    seen = honest.take_part()
    assert [type(event) for event in honest.events] == [RoundReport]
    return seen


@pytest.mark.parametrize("forged", ["under another key", "of random bytes"])
def test_a_sum_that_does_not_open(task: tuple[TaskTerms, Keyring], forged: str) -> None:
    terms, _ = task
    if forged == "under another key":
        aggregate = aggregate_of(terms, terms.mechanism.generate_keyring(terms.sum_plan), SURVIVORS)
    else:
        aggregate = np.random.default_rng(2).bytes(terms.sum_plan.aggregate_bytes)
    attack = Attack(*task, aggregate)
    seen = attack.take_part()
    assert seen == seen_in_an_honest_round(task)
    told, report = attack.events
    assert isinstance(told, AggregateRejected)
    assert told.round == 1
    assert isinstance(report, RoundReport)
    first = terms.recipe.initial_state(SEED)
    assert attack.model().round_number == 1
    np.testing.assert_array_equal(item_factors(attack.model()), item_factors(first))


def test_a_sum_with_impossible_values(task: tuple[TaskTerms, Keyring]) -> None:
    """The server sums a contribution twice and more: values of 9 clips, of what it calls 4 contributions."""
    attack = Attack(*task, aggregate_of(*task, 9, 1.0))
    assert attack.take_part() == seen_in_an_honest_round(task)
    first = item_factors(task[0].recipe.initial_state(SEED))
    assert np.array_equal(item_factors(attack.model()), first)
    assert any(isinstance(event, AggregateRejected) for event in attack.events)


def test_training_that_fails_on_an_opened_sum(task: tuple[TaskTerms, Keyring], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum within the bounds makes training diverge: the member sends a ciphertext of zeros."""

    def diverges(*_: Any) -> None:
        raise HushRecError("training diverged")

    attack = Attack(*task, aggregate_of(*task, SURVIVORS))
    monkeypatch.setattr(attack.part, "train", diverges)
    seen = attack.take_part()
    monkeypatch.undo()
    assert seen == seen_in_an_honest_round(task)
    assert isinstance(attack.events[0], TrainingFailed)


def item_factors(state: ModelState) -> np.ndarray:
    assert isinstance(state, FactorState)
    return state.item_factors
