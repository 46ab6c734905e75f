"""Options of commands that read a data set: which one, which columns, which split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client_sdk.cli.console import console
from client_sdk.data.columns import Columns, parse_columns
from client_sdk.data.splits import SplitKind

__all__ = ["ColumnsText", "DataDir", "Splitting", "TestFile", "chosen_columns", "say"]

DataDir = Annotated[Path | None, typer.Option(help="Folder that contains the data set.", show_default="data")]
ColumnsText = Annotated[
    str | None,
    typer.Option(
        help="Columns of a file, by number from 0 or by heading: user=0,item=1,rating=2,time=3.",
        show_default="recognised",
    ),
]
TestFile = Annotated[
    Path | None, typer.Option("--test", help="File of test interactions; --dataset is then the training file.")
]
Splitting = Annotated[
    SplitKind | None,
    typer.Option(
        "--split",
        help="leave-one-out (the latest interaction of each user), random (a fifth), or given (a test file).",
        show_default="by recipe and data",
    ),
]


def chosen_columns(text: str | None) -> Columns | None:
    """Return the columns of the option `--columns`, None without it."""
    return None if text is None else parse_columns(text)


def say(text: str) -> None:
    """Print what was found in a file."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
