"""Where commands put a new operator token: on a terminal, or in a file that only its user can read."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from aggregator_service.settings import Settings
from protocols.messages import OperatorToken

__all__ = ["TokenFile", "hand_over"]

TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File for the token, mode 0600.",
        show_default="the terminal; without one, NAME.token in the data directory",
    ),
]


def hand_over(made: OperatorToken, settings: Settings, token_file: Path | None) -> str:
    """Return what a command prints about a new token: the token, or the path of the file that it was written to.

    The token is returned only if standard output is a terminal and no file was named: a pipe, a log collector or a
    container's log would keep it. To be called before the transaction ends, so that a file that cannot be written
    leaves no token behind.
    """
    if token_file is None and sys.stdout.isatty():
        return made.token
    path = (token_file or settings.data_dir / f"{made.name}.token").absolute()
    if token_file is None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write_private(path, f"{made.token}\n")
    return str(path)


def _write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600. An earlier file or a link at `path` is replaced, not written to."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp creates it with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise
