"""The docs and the committed OpenAPI document match the code: diagram, problem types, routes, commands.

`tests/fuzz` checks that the app behaves as the document says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from aggregator_service.app import create_app
from aggregator_service.round_states import (
    ACTIVE,
    ENDED_BY_OPERATORS,
    OPENING,
    TABLE,
    TERMINAL,
    IllegalTransitionError,
    RoundEvent,
    diagram,
    next_state,
)
from aggregator_service.routes.openapi import document_text
from aggregator_service.settings import Settings
from aggregator_service.tasks.task_views import plan_request
from protocols.messages import TaskRequest
from protocols.messages.stages import RoundState

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_diagram_matches_the_transition_table() -> None:
    text = (DOCS / "rounds.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{diagram()}\n```" in text, "run: hushrec-server diagram"


def test_a_state_accepts_no_other_event_and_every_round_can_end() -> None:
    with pytest.raises(IllegalTransitionError, match="complete"):
        next_state("complete", RoundEvent.RELEASED)
    assert set(ACTIVE) | set(TERMINAL) == set(RoundState)
    reached = set(OPENING)
    for _ in RoundState:
        reached |= {target for state in reached for target in TABLE[state].values()}
    assert reached == set(RoundState)
    for state in ACTIVE:
        assert {event for event, target in TABLE[state].items() if target is RoundState.FAILED} >= ENDED_BY_OPERATORS


COMMITTED = ROOT / "openapi" / "openapi.json"


def test_the_committed_document_is_current() -> None:
    expected = document_text(create_app(Settings()))
    assert COMMITTED.read_text(encoding="utf-8") == expected, "run: make openapi"


@pytest.mark.parametrize(("mechanism", "least"), [("masked", 3), ("oneshot", 3), ("plain", 2), ("ckks", 2)])
def test_the_smallest_cohort_of_each_mechanism_is_exact(mechanism: str, least: int) -> None:
    document = json.loads(COMMITTED.read_text(encoding="utf-8"))
    schema = {"$ref": "#/components/schemas/TaskRequest", "components": document["components"]}
    for size in (least - 1, least):
        schedule = {"cohort_size": size, "min_clients": size}
        recipe = {"name": "colr", "parameters": {"items": 30, "dim": 8, "rank": 2}}
        given = {"name": "small", "recipe": recipe, "mechanism": {"name": mechanism}, "schedule": schedule}
        assert Draft202012Validator(schema).is_valid(given) == (size == least)
        assert _accepted(given) == (size == least)


def _accepted(given: dict[str, Any]) -> bool:
    try:
        plan_request(TaskRequest.model_validate(given))
    except ValueError:  # also ValidationError and ParameterError
        return False
    return True
