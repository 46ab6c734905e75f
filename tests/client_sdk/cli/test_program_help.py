"""The help of both programs answers at once, and unknown commands are refused."""

from __future__ import annotations

import subprocess
import sys

import typer.main
from typer.testing import CliRunner

import aggregator_service.cli
import client_sdk.cli

APPS = {"hushrec": client_sdk.cli.app, "hushrec-server": aggregator_service.cli.command_line()}


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
