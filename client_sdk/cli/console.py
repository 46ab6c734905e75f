"""Where the commands print: one console, one form of table, one way to end with an error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["console", "fail", "stderr", "table"]

console: Final = Console()
stderr: Final = Console(stderr=True)


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table with its first column on the left and the others on the right."""
    made = Table(title=title, title_justify="left", show_header=any(headings), min_width=cell_len(title))
    for place, heading in enumerate(headings):
        made.add_column(heading, justify="left" if place == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def fail(message: str, hint: str = "") -> NoReturn:
    """Say what went wrong, and what to do, on standard error; exit with 1."""
    stderr.print(f"[red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    if hint:
        stderr.print(f"  {escape(hint)}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)
