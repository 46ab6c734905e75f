"""The command `hushrec` in the process of the test; blocks of the documentation in shells, as a reader runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from typer.testing import CliRunner

from client_sdk.cli import app


def named_blocks(page: Path, changes: Mapping[str, str]) -> dict[str, str]:
    """The blocks of a page that follow `<!-- name -->`, by name, with the texts replaced that are keys of `changes`."""
    text = page.read_text(encoding="utf-8")
    for old, new in changes.items():
        text = text.replace(old, new)
    return dict(re.findall(r"^<!-- (\w+) -->\n```(?:sh|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def environment(**more: str) -> dict[str, str]:
    """The variables of a shell in which the commands of this interpreter's environment are found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HUSHREC_")}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | more


@contextmanager
def terminal(script: str, folder: Path, log: str, variables: Mapping[str, str] | None = None) -> Iterator[None]:
    """A shell that runs `script` in the background; ended with all its processes."""
    with (folder / log).open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-euc", script],
            cwd=folder,
            env=environment() if variables is None else variables,
            stdout=output,
            stderr=output,
            start_new_session=True,
            close_fds=False,  # of descriptors that are to be inherited there are those of `forked_commands` only
        )
        try:
            yield
        finally:
            end_group(shell.pid)
            shell.wait(30)


def end_group(group: int) -> None:
    """End all processes of a shell, unless they have ended."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)


def wait_for(port: int, folder: Path) -> None:
    """Wait until a server answers at a port of this machine; the error has the folder's logs."""
    with httpx.Client(timeout=5) as http:
        for _ in range(600):
            try:
                http.get(f"http://127.0.0.1:{port}/")
            except httpx.TransportError:
                time.sleep(0.1)
            else:
                return
    raise AssertionError("\n".join(path.read_text() for path in folder.glob("*.log")))


def hushrec(*arguments: str, input: str | None = None, **environment: str) -> tuple[int, str, str]:
    """Run `hushrec ARGUMENTS`; return exit code, standard output and standard error. input: what is typed."""
    result = CliRunner().invoke(app, list(arguments), input=input, env=environment or None)
    return result.exit_code, result.stdout, result.stderr


def cells(out: str) -> list[list[str]]:
    """The cells of each row of the tables in `out`."""
    return [[cell.strip() for cell in line.strip("│┃ ").split("│")] for line in out.splitlines() if "│" in line]
