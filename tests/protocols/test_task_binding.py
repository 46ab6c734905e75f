from __future__ import annotations

import json
from typing import Any

import pytest

from protocols.codec import b64encode
from protocols.errors import ParameterError
from protocols.layout import TRAINED, Block, Segment, VectorLayout
from protocols.messages import TaskView
from protocols.recipes.fedmf import FedMFParameters
from protocols.sums.masked.context import RoundContext
from protocols.sums.masked.mechanism import MASKED
from protocols.sums.masked.parameters import MaskedParameters
from protocols.task_binding import bound_terms, broadcast_digest, differing_part, state_binding

SNAPSHOT = bytes(range(32))


def task(**changes: Any) -> TaskView:
    fields: dict[str, Any] = {
        "task_id": "t_1",
        "name": "movies",
        "state": "open",
        "recipe": {"name": "fedmf", "parameters": {"items": 30, "dim": 4}},
        "mechanism": {"name": "masked", "parameters": {"bits": 32}},
        "schedule": {"cohort_size": 5, "rounds": 10},
        "seed": b64encode(bytes(32)),
        "plan": {},
        "opened_by": "anyone",
        "members": 0,
        "keyed_members": 0,
        "completed_rounds": 0,
        "failed_rounds": 0,
    }
    return TaskView.model_validate(fields | changes)


def test_the_digest_is_the_same_for_everyone_with_the_same_terms_and_model() -> None:
    counters = {"members": 7, "keyed_members": 5, "completed_rounds": 3, "state": "closed", "plan": {"bits": 32}}
    assert broadcast_digest(task(), 2, SNAPSHOT) == broadcast_digest(task(**counters), 2, SNAPSHOT)


def test_the_order_of_parameters_does_not_matter() -> None:
    turned = {"name": "fedmf", "parameters": {"dim": 4, "items": 30}}
    assert broadcast_digest(task(recipe=turned), 1, None) == broadcast_digest(task(), 1, None)


def test_parameters_that_a_task_leaves_out_are_bound_with_their_defaults() -> None:
    """Parties with other defaults, such as another release, have masks that do not cancel."""
    for of, stated in (("recipe", {"items": 30, "dim": 4, "clip": 4}), ("mechanism", {"bits": 32, "sigma": 64})):
        same = task(**{of: {"name": getattr(task(), of).name, "parameters": stated}})
        assert bound_terms(same) == bound_terms(task())
    terms = json.loads(bound_terms(task()))
    assert terms["recipe"]["parameters"].keys() == FedMFParameters.model_fields.keys()
    assert terms["mechanism"]["parameters"].keys() == MaskedParameters.model_fields.keys()
    with pytest.raises(ParameterError, match="mechanism 'masked': bits"):
        bound_terms(task(mechanism={"name": "masked", "parameters": {"bits": 8}}))


@pytest.mark.parametrize(
    "changes",
    [
        {"task_id": "t_2"},
        {"recipe": {"name": "fedmf", "parameters": {"items": 30, "dim": 5}}},
        {"mechanism": {"name": "masked", "parameters": {"bits": 33}}},
        {"schedule": {"cohort_size": 6, "rounds": 10}},
        {"seed": b64encode(bytes([1]) + bytes(31))},
        {"organiser": {"key": b64encode(bytes(32)), "scope": "movies"}},
        {"evaluation": {"every": 5}},
        {"catalogue_digest": "0" * 64},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_terms_give_another_digest(changes: dict[str, Any]) -> None:
    assert broadcast_digest(task(**changes), 1, None) != broadcast_digest(task(), 1, None)


def test_another_model_or_another_sum_gives_another_digest() -> None:
    digests = {broadcast_digest(task(), sum_index, model) for sum_index in (1, 2) for model in (None, SNAPSHOT)}
    assert len(digests) == 4


def context(number: int) -> RoundContext:
    layout = VectorLayout((Block("values", (Segment("values", 6, 1.0),)),), sum_class=TRAINED)
    return RoundContext("t_1", number, bytes(32), MASKED.plan({"dropout": 0.0}, layout, 5), bytes(32), 5)


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ((task(), SNAPSHOT, 2, context(1)), ""),
        ((task(seed=b64encode(bytes([1]) + bytes(31))), SNAPSHOT, 2, context(1)), "the task's terms differ"),
        ((task(), None, 2, context(1)), "the model differs"),
        ((task(), SNAPSHOT, 1, context(1)), "the model differs"),
        ((task(), SNAPSHOT, 2, context(2)), "the round's facts differ"),
    ],
    ids=["the same", "terms", "model", "sum", "round"],
)
def test_the_part_that_differs_is_named(theirs: tuple[TaskView, bytes | None, int, RoundContext], words: str) -> None:
    told = differing_part(state_binding(*theirs), task(), SNAPSHOT, 2, context(1))
    assert told.startswith(words)
    assert bool(told) is bool(words)


def test_a_malformed_or_missing_binding_names_nothing() -> None:
    for stated in ("", "terms", "terms=:AAAA:"):
        assert differing_part(stated, task(), SNAPSHOT, 2, context(1)) == ""
