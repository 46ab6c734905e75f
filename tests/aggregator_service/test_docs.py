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


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RoundState, RoundEvent)))
def test_each_state_accepts_exactly_its_events(state: RoundState, event: RoundEvent) -> None:
    if event in TABLE[state]:
        assert next_state(state.value, event) is TABLE[state][event]
    else:
        with pytest.raises(IllegalTransitionError, match=state.value):
            next_state(state.value, event)


def test_every_round_can_end() -> None:
    assert set(ACTIVE) | set(TERMINAL) == set(RoundState)
    reached = set(OPENING)
    for _ in RoundState:
        reached |= {target for state in reached for target in TABLE[state].values()}
    assert reached == set(RoundState)
    for state in ACTIVE:
        assert {event for event, target in TABLE[state].items() if target is RoundState.FAILED} >= ENDED_BY_OPERATORS


@pytest.mark.parametrize("slug", PROBLEM_TYPES)
def test_a_problem_of_every_type_says_whose_fault_it_is(slug: str) -> None:
    made = document(slug, "why")
    assert (made.slug, made.fault) == (slug, "server" if PROBLEM_TYPES[slug][0] >= 500 else "client")


def test_every_route_is_documented() -> None:
    text = (DOCS / "http-api.md").read_text(encoding="utf-8")
    spec = json.loads((ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8"))
    for path in spec["paths"]:
        assert path.replace("{number}", "{n}").removesuffix("/enrolments") in text, path


def top_commands() -> dict[str, Any]:
    """The commands and groups of `hushrec-server` by name."""
    group: Any = typer.main.get_command(command_line())
    return {name: group.get_command(None, name) for name in group.list_commands(None)}


def test_the_help_of_every_command_has_an_example() -> None:
    commands: dict[str, Any] = {}
    for name, command in top_commands().items():
        below = getattr(command, "commands", None)
        commands |= {name: command} if below is None else {f"{name} {nested}": below[nested] for nested in below}
    assert {"init", "serve", "invite", "export-openapi", "diagram", "task create", "token rotate"} <= set(commands)
    for name, command in commands.items():
        assert "Example: hushrec-server" in (command.help or ""), name


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


@pytest.mark.parametrize(("name", "operation"), operations(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_operation_is_described(name: str, operation: dict[str, Any]) -> None:
    assert operation["summary"]
    assert operation["description"]
    assert operation["tags"]
    assert any(status in operation["responses"] for status in ("200", "201", "204"))
    refusals = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
    assert refusals
    for answer in refusals.values():
        assert set(answer["content"]) == {"application/problem+json"}
        assert answer["content"]["application/problem+json"]["examples"]
    if name.startswith(("PUT", "PATCH")):
        for media_type, body in operation["requestBody"]["content"].items():
            assert re.fullmatch(r"application/(octet-stream|partial-upload|vnd\.hushrec\.[a-z]+)", media_type)
            assert body["schema"] == {"type": "string", "format": "binary"}
    if name not in ("POST /v1/enrolments", "GET /v1/enrolments/task", "GET /healthz", "GET /readyz"):
        assert operation["security"] == [{"bearer": []}, {"bearer": [], "signatureInput": [], "signature": []}]


def test_every_json_body_has_an_example() -> None:
    schemas = json.loads(COMMITTED.read_text(encoding="utf-8"))["components"]["schemas"]
    for message in ("TaskRequest", "TaskView", "RoundView", "Enrolment", "EnrolmentRequest", "UploadReceipt"):
        assert schemas[message]["examples"]


def test_what_the_types_of_the_routes_do_not_say() -> None:
    document = json.loads(COMMITTED.read_text(encoding="utf-8"))
    assert {scheme["in"] for scheme in document["components"]["securitySchemes"].values() if "in" in scheme} == {
        "header"
    }
    for _, operation in operations():
        assert "Allow" in operation["responses"]["405"]["headers"]
    patch = document["paths"]["/v1/tasks/{task}/rounds/{number}/contributions/{client}"]["patch"]
    (found,) = (header for header in patch["parameters"] if header["name"] == "Repr-Digest")
    assert not found["required"]


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
