"""Commands whose options are the fields of a dataclass: names, defaults, help and parsing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from client_sdk.cli.common import command_options


@dataclass(frozen=True)
class Options:
    path: Annotated[str, typer.Argument(help="A path.")]
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="A count.")] = 3
    names: Annotated[list[str] | None, typer.Option("-r", help="Names.")] = None


@pytest.fixture
def received() -> list[Options]:
    return []


@pytest.fixture
def app(received: list[Options]) -> typer.Typer:
    made = typer.Typer()

    @command_options(Options)
    def show(options: Options) -> None:
        """Show the options.

        Example: show x
        """
        received.append(options)

    made.command()(show)
    return made


def test_values_and_defaults_are_passed_as_one_object(app: typer.Typer, received: list[Options]) -> None:
    assert CliRunner().invoke(app, ["x", "-n", "2", "-r", "a", "-r", "b"]).exit_code == 0
    assert CliRunner().invoke(app, ["y"]).exit_code == 0
    assert received == [Options("x", 2, ["a", "b"]), Options("y", 3, None)]


def test_wrong_usage_exits_with_2_and_does_not_run(app: typer.Typer, received: list[Options]) -> None:
    assert CliRunner().invoke(app, []).exit_code == 2
    assert CliRunner().invoke(app, ["x", "-n", "0"]).exit_code == 2
    assert received == []


def test_help_shows_the_docstring_and_the_options(app: typer.Typer) -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).stdout
    for text in ("Show the options.", "Example: show x", "A path.", "--count", "A count.", "default: 3"):
        assert text in shown
