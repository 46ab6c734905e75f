"""Which model a task with federated evaluation ends with, and what a client requests for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from client_sdk.agreement.terms import AgreedTerms, TaskTerms
from client_sdk.api.wire import Program
from client_sdk.errors import ContractBroken, ModelUnavailable
from client_sdk.model.best import best_model, curve_of, keep_if_best
from client_sdk.store.client_store import ClientStore, read_best_state
from client_sdk.store.stores import MemoryStore
from protocols.codec import b64encode
from protocols.messages import SnapshotView, TaskView
from protocols.recipes.base import ModelState
from protocols.recipes.evaluated import Evaluated

ITEMS = 6


def view(mechanism: str, evaluation: dict[str, Any] | None) -> TaskView:
    return TaskView.model_validate(
        {
            "task_id": "t_1", "name": "movies", "state": "complete", "seed": b64encode(bytes(32)), "plan": {},
            "recipe": {"name": "fedmf", "parameters": {"items": ITEMS, "dim": 3}},
            "mechanism": {"name": mechanism, "parameters": {}}, "schedule": {"rounds": 9, "cohort_size": 4},
            "opened_by": "anyone" if mechanism == "plain" else "members", "members": 4, "keyed_members": 0,
            "completed_rounds": 4, "failed_rounds": 0, "evaluation": evaluation,
        }
    )  # fmt: skip


def states(terms: TaskTerms, values: list[float]) -> list[ModelState]:
    """The states of a task in which the model after round n was measured as values[n]."""
    recipe = terms.recipe
    assert isinstance(recipe, Evaluated)
    found: list[ModelState] = [recipe.initial_state(terms.seed)]
    for number, value in enumerate(values, 1):
        total = np.ones(recipe.layout(number).length)
        total[-3:] = 4.0, 4 * value, 4 * value
        found.append(recipe.absorb(found[-1], recipe.round_spec(terms.seed, number), total, 4))
    return found


@dataclass
class Server:
    """Serves the snapshot of round `number`; counts requests."""

    terms: TaskTerms
    state: ModelState | None
    number: int
    requests: list[str] = field(default_factory=list)

    def best_snapshot(self, task_id: str) -> Program[SnapshotView | None]:
        self.requests.append("best")
        yield from ()
        if self.state is None:
            return None
        return SnapshotView(round=self.number, bytes=1, digest="0" * 64, author="server")

    def snapshot(self, task_id: str, found: SnapshotView, longest: int) -> Program[bytes | None]:
        self.requests.append(f"snapshot {found.round}")
        yield from ()
        return None if self.state is None else self.terms.recipe.encode_state(self.state)


def outcome(program: Program[ModelState]) -> ModelState:
    with pytest.raises(StopIteration) as ended:
        next(program)
    state: ModelState = ended.value.value
    return state


BEST = {"every": 1, "keep": "best"}
CURVE = [0.1, 0.2, 0.5, 0.3]


def test_the_server_s_snapshot_of_the_best_model_is_checked_against_the_curve() -> None:
    terms = TaskTerms.of(view("plain", BEST))
    made = states(terms, CURVE)
    server = Server(terms, made[2], 2)
    found = outcome(best_model(server, terms, None, made[-1], None))  # type: ignore[arg-type]
    assert found.round_number == 2
    assert terms.recipe.encode_state(found) == terms.recipe.encode_state(made[2])
    with pytest.raises(ContractBroken, match="that of round 3, but the curve says round 2"):
        outcome(best_model(Server(terms, made[3], 3), terms, None, made[-1], None))  # type: ignore[arg-type]
    with pytest.raises(ModelUnavailable, match="does not keep the best model, of round 2"):
        outcome(best_model(Server(terms, None, 2), terms, None, made[-1], None))  # type: ignore[arg-type]


def test_the_initial_model_needs_no_request() -> None:
    terms = TaskTerms.of(view("plain", BEST))
    server = Server(terms, None, 0)
    found = outcome(best_model(server, terms, None, states(terms, [0.9, 0.1])[-1], None))  # type: ignore[arg-type]
    assert found.round_number == 0
    assert server.requests == []


def test_members_of_encrypted_tasks_request_nothing_and_keep_the_best_themselves() -> None:
    terms, store = TaskTerms.of(view("ckks", BEST)), ClientStore(MemoryStore(), "owner")
    made = states(terms, CURVE)
    server = Server(terms, made[2], 2)
    with pytest.raises(ModelUnavailable, match="of round 2, was not kept on this device"):
        outcome(best_model(server, terms, store, made[-1], None))  # type: ignore[arg-type]
    for before, after in zip(made, made[1:], strict=False):
        keep_if_best(terms, store, before, after)
    found = outcome(best_model(server, terms, store, made[-1], None))  # type: ignore[arg-type]
    assert terms.recipe.encode_state(found) == terms.recipe.encode_state(made[2])
    assert server.requests == []


def test_nothing_is_kept_where_the_task_ends_with_its_newest_model() -> None:
    terms, store = TaskTerms.of(view("ckks", {"every": 1})), ClientStore(MemoryStore(), "owner")
    made = states(terms, CURVE)
    keep_if_best(terms, store, made[2], made[3])
    assert read_best_state(store, "t_1", terms.recipe) is None
    plain = TaskTerms.of(view("plain", None))
    assert curve_of(plain.recipe, plain.recipe.initial_state(plain.seed)) is None


@pytest.mark.parametrize("now", [None, {"every": 2, "keep": "best"}, {"every": 1, "keep": "last"}])
def test_a_server_cannot_change_the_evaluation_of_a_task_with_members(now: dict[str, Any] | None) -> None:
    agreed = AgreedTerms.of(view("plain", BEST))
    agreed.require(view("plain", BEST))
    with pytest.raises(ContractBroken, match="evaluation changed after this client joined"):
        agreed.require(view("plain", now))
