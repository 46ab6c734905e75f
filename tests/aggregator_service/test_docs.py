"""The docs and the committed OpenAPI document match the code: diagram, problem types, routes, commands.

`tests/fuzz` checks that the app behaves as the document says.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from jsonschema import Draft202012Validator

from aggregator_service.app import create_app
from aggregator_service.cli import command_line
from aggregator_service.problems import document
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
from aggregator_service.tasks.tasks import plan_request
from protocols.messages import TaskRequest
from protocols.messages.problem import PROBLEM_TYPES
from protocols.messages.stages import RoundState

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_diagram_matches_the_transition_table() -> None:
    text = (DOCS / "rounds.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{diagram()}\n```" in text, "run: hushrec-server diagram"


def test_each_state_accepts_exactly_its_events_and_every_round_can_end() -> None:
    for state, event in itertools.product(RoundState, RoundEvent):
        if event in TABLE[state]:
            assert next_state(state.value, event) is TABLE[state][event]
        else:
            with pytest.raises(IllegalTransitionError, match=state.value):
                next_state(state.value, event)
    assert set(ACTIVE) | set(TERMINAL) == set(RoundState)
    reached = set(OPENING)
    for _ in RoundState:
        reached |= {target for state in reached for target in TABLE[state].values()}
    assert reached == set(RoundState)
    for state in ACTIVE:
        assert {event for event, target in TABLE[state].items() if target is RoundState.FAILED} >= ENDED_BY_OPERATORS


def test_a_problem_of_every_type_says_whose_fault_it_is() -> None:
    for slug, (status, _) in PROBLEM_TYPES.items():
        assert (document(slug, "why").slug, document(slug, "why").fault) == (
            slug,
            "server" if status >= 500 else "client",
        )


def test_the_help_of_every_command_has_an_example() -> None:
    group: Any = typer.main.get_command(command_line())
    seen = 0
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        for one in getattr(command, "commands", {name: command}).values():
            assert "Example: hushrec-server" in (one.help or ""), (name, one.name)
            seen += 1
    assert seen > 15


COMMITTED = ROOT / "openapi" / "openapi.json"


def test_the_committed_document_is_current() -> None:
    expected = document_text(create_app(Settings()))
    assert COMMITTED.read_text(encoding="utf-8") == expected, "run: make openapi"


def operations() -> list[tuple[str, dict[str, Any]]]:
    document = json.loads(COMMITTED.read_text(encoding="utf-8"))
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_operation_is_described() -> None:
    for name, operation in operations():
        assert operation["summary"] and operation["description"] and operation["tags"], name
        assert any(status in operation["responses"] for status in ("200", "201", "204")), name
        refusals = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
        assert refusals, name
        for answer in refusals.values():
            assert set(answer["content"]) == {"application/problem+json"}, name
            assert answer["content"]["application/problem+json"]["examples"], name
        if name.startswith(("PUT", "PATCH")):
            for media_type, body in operation["requestBody"]["content"].items():
                assert re.fullmatch(r"application/(octet-stream|partial-upload|vnd\.hushrec\.[a-z]+)", media_type)
                assert body["schema"] == {"type": "string", "format": "binary"}
        if name not in ("POST /v1/enrolments", "GET /v1/enrolments/task", "GET /healthz", "GET /readyz"):
            assert operation["security"] == [{"bearer": []}, {"bearer": [], "signatureInput": [], "signature": []}]


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
