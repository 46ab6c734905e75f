"""The docs match the code: diagram, problem types, routes, commands, settings, transitions."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import typer.main

from aggregator_service.cli import command_line
from aggregator_service.problems import document
from aggregator_service.round_states import (
    ACTIVE,
    OPENING,
    TABLE,
    TERMINAL,
    IllegalTransitionError,
    RoundEvent,
    diagram,
    next_state,
)
from aggregator_service.settings import Settings
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
        assert RoundEvent.TASK_CLOSED in TABLE[state]


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


def test_every_setting_is_on_the_configuration_page() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    for name in Settings.model_fields:
        assert f"HUSHREC_{name.upper()}`" in text, name
