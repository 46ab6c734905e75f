"""Options of commands that measure on test interactions: how these are split from the training data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client_sdk.data.splits import SplitKind

__all__ = ["Splitting", "TestFile"]

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
