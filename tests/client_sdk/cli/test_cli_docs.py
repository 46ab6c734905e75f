"""docs/cli.md documents every command and option of both programs; every command's help has an example."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import aggregator_service.cli
import client_sdk.cli

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
APPS = {"hushrec": client_sdk.cli.app, "hushrec-server": aggregator_service.cli.command_line()}


def commands() -> Iterator[tuple[str, Any]]:
    """The words and the command object of every command of both programs."""
    for program, app in APPS.items():
        yield from _leaves(program, typer.main.get_command(app))


def _leaves(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield words, command
        return
    for name in command.list_commands(None):
        yield from _leaves(f"{words} {name}", command.get_command(None, name))


def sections() -> dict[str, str]:
    """Heading of level three -> the text below it."""
    parts = re.split(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize(("words", "command"), [pytest.param(*found, id=found[0]) for found in commands()])
def test_a_command_is_documented_with_its_options_and_an_example(words: str, command: Any) -> None:
    section = sections().get(words)
    assert section is not None, f"docs/cli.md has no section '### {words}'"
    assert re.search(rf"^{re.escape(words)}( |$)", section, re.MULTILINE), f"no example of {words}"
    for parameter in command.params:
        for name in parameter.opts if parameter.param_type_name == "option" else ():
            if name not in ("--help", "--install-completion", "--show-completion"):
                assert f"`{name}" in section, f"{words} {name} is not documented"
    assert f"Example: {words}" in (command.help or "")


def test_every_documented_command_exists() -> None:
    assert set(sections()) == {words for words, _ in commands()}


def test_the_help_of_hushrec_imports_no_command() -> None:
    """The help is printed from a table, so that it answers at once; its lines begin like the commands' own help."""
    program = "hushrec"
    module = APPS[program].info.cls.__module__
    heavy = ("numpy", "pydantic", "httpx", "sqlalchemy", "fastapi")
    code = f"""
import sys
from {module} import main
sys.argv = [{program!r}, "--help"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
print("imported:", [name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "imported: []" in done.stdout
    for name in typer.main.get_command(APPS[program]).list_commands(None):  # type: ignore[attr-defined]
        assert f" {name} " in done.stdout


def test_unknown_commands_are_refused() -> None:
    for app in APPS.values():
        done = CliRunner().invoke(app, ["nope"])
        assert done.exit_code == 2
        assert "No such command 'nope'" in done.stderr
