"""A command that only computes, `hushrec cost`, and options that are fields of a dataclass."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from client_sdk.cli import app
from client_sdk.cli.common import command_options


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["cost", *arguments])
    return result.exit_code, result.stdout, result.stderr


def document(*arguments: str) -> dict[str, Any]:
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    return dict(json.loads(out))


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_table_shows_the_papers_counting_plain_sums_and_the_mechanism() -> None:
    code, out, _ = run("--recipe", "colr", "--rank", "4", "--mechanism", "ckks", "--up", "0.25", "--down", "0.75")
    assert code == 0
    minutes = next(line for line in out.splitlines() if "minutes, total" in line)
    assert [cell.strip() for cell in minutes.strip("│ ").split("│")][1:] == ["5.03", "5.03", "8.69"]
    assert "the overhead of the encryption" in " ".join(out.split())


def test_json_contains_the_papers_minutes_and_the_parameters() -> None:
    found = document("--recipe", "fedmf", "--mechanism", "plain")
    assert found["countings"]["paper"]["minutes"] == pytest.approx(80.43, abs=0.005)
    assert found["mib_per_second"] == {"up": 0.25, "down": 0.75}
    assert found["parameters"]["recipe"]["items"] == 3706
    assert set(found["countings"]) == {"paper", "plain"}


def test_parameters_are_passed_to_the_recipe_and_the_mechanism() -> None:
    small = document("-r", "rank=2", "-m", "set=compact")
    assert small["parameters"]["mechanism"] == {"set": "compact"}
    assert small["parameters"]["recipe"].items() >= {"items": 3706, "dim": 64, "clip": 4.0, "rank": 2}.items()
    large = document("--rank", "2", "-m", "set=precise", "-m", "wire=expanded")
    assert large["countings"]["ckks"]["up_bytes"] > 3 * small["countings"]["ckks"]["up_bytes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--recipe", "fedmf", "--rank", "4"], "rank"),
        (["--mechanism", "morse"], "unknown mechanism: choose one of ckks"),
        (["--up", "0"], "must be positive"),
        (["-m", "compact"], "name=value"),
        (["--rank", "65"], "rank 65 is greater than dim 64"),
    ],
)
def test_invalid_parameters_are_reported_in_one_sentence(arguments: list[str], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert words in err
    assert err.count("\n") == 1


def test_wrong_usage_exits_with_2() -> None:
    assert run("--rounds", "0")[0] == 2


@dataclass(frozen=True)
class Options:
    path: Annotated[str, typer.Argument(help="A path.")]
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="A count.")] = 3
    names: Annotated[list[str] | None, typer.Option("-r", help="Names.")] = None


@pytest.fixture
def received() -> list[Options]:
    return []


@pytest.fixture
def options_app(received: list[Options]) -> typer.Typer:
    made = typer.Typer()

    @command_options(Options)
    def show(options: Options) -> None:
        """Show the options.

        Example: show x
        """
        received.append(options)

    made.command()(show)
    return made


def test_values_and_defaults_are_passed_as_one_object(options_app: typer.Typer, received: list[Options]) -> None:
    assert CliRunner().invoke(options_app, ["x", "-n", "2", "-r", "a", "-r", "b"]).exit_code == 0
    assert CliRunner().invoke(options_app, ["y"]).exit_code == 0
    assert received == [Options("x", 2, ["a", "b"]), Options("y", 3, None)]


def test_wrong_usage_exits_with_2_and_does_not_run(options_app: typer.Typer, received: list[Options]) -> None:
    assert CliRunner().invoke(options_app, []).exit_code == 2
    assert CliRunner().invoke(options_app, ["x", "-n", "0"]).exit_code == 2
    assert received == []


def test_help_shows_the_docstring_and_the_options(options_app: typer.Typer) -> None:
    shown = CliRunner().invoke(options_app, ["--help"], env={"COLUMNS": "120"}).stdout
    for text in ("Show the options.", "Example: show x", "A path.", "--count", "A count.", "default: 3"):
        assert text in shown
