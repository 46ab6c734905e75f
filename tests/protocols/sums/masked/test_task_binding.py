from __future__ import annotations

from typing import Any

import pytest

from protocols.codec import b64encode
from protocols.messages import TaskView
from protocols.sums.masked.task_binding import broadcast_digest

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


def test_the_digest_is_pinned() -> None:
    """Clients and servers of different releases must agree on it within a task."""
    assert broadcast_digest(task(), 1, None).hex() == "315ca7e5014fd72f664cdafb80f53ca04edb0bc0391d9e013c4b718aa7fdc202"
    assert (
        broadcast_digest(task(), 2, SNAPSHOT).hex()
        == "fd9e36af5da2584e6322f1fde6e5413001b6c550f01b6efbaeb5bc55005722da"
    )


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
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_terms_give_another_digest(changes: dict[str, Any]) -> None:
    assert broadcast_digest(task(**changes), 1, None) != broadcast_digest(task(), 1, None)


def test_another_model_or_another_sum_gives_another_digest() -> None:
    digests = {broadcast_digest(task(), sum_index, model) for sum_index in (1, 2) for model in (None, SNAPSHOT)}
    assert len(digests) == 4
