"""The command `hushrec` in the process of the test, and the tables that it prints."""

from __future__ import annotations

from typer.testing import CliRunner

from client_sdk.cli import app


def hushrec(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run `hushrec ARGUMENTS`; return exit code, standard output and standard error."""
    result = CliRunner().invoke(app, list(arguments), env=environment or None)
    return result.exit_code, result.stdout, result.stderr


def cells(out: str) -> list[list[str]]:
    """The cells of each row of the tables in `out`."""
    return [[cell.strip() for cell in line.strip("│┃ ").split("│")] for line in out.splitlines() if "│" in line]
