"""Options of commands that read a data set: where it is, and which columns of a file it is in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_sdk.cli.common import console

if TYPE_CHECKING:  # numpy is imported when the command runs, not for its help
    from client_sdk.lab.data.columns import Columns

__all__ = [
    "ColumnsText",
    "DataDir",
    "chosen_columns",
    "say",
]


DataDir = Annotated[Path | None, typer.Option(help="Folder that contains the data set.", show_default="data")]
ColumnsText = Annotated[
    str | None,
    typer.Option(
        help="Columns of a file, by number from 0 or by heading: user=0,item=1,rating=2,time=3.",
        show_default="recognised",
    ),
]


def chosen_columns(text: str | None) -> Columns | None:
    """Return the columns of the option `--columns`, None without it."""
    from client_sdk.lab.data.columns import parse_columns

    return None if text is None else parse_columns(text)


def say(text: str) -> None:
    """Print what was found in a file."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
