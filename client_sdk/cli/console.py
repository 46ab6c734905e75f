"""Consoles, tables and error output shared by all commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NoReturn

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["console", "expiry_text", "fail", "stderr", "table"]

console: Final = Console()
stderr: Final = Console(stderr=True)


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose first column is left-aligned and whose other columns are right-aligned.

    The header row is left out if all `headings` are empty. Each row has as many cells as there are headings; cells may
    contain rich markup.
    """
    made = Table(title=title, title_justify="left", show_header=any(headings), min_width=cell_len(title))
    for place, heading in enumerate(headings):
        made.add_column(heading, justify="left" if place == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def expiry_text(not_after: int) -> str:
    """Return the last second of a certificate's validity, in seconds since the epoch, as a date and time in UTC."""
    try:
        return f"{datetime.fromtimestamp(not_after, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):  # what `fromtimestamp` raises depends on the size of the number
        return "after the year 9999"


def fail(message: str, hint: str = "") -> NoReturn:
    """Print `error: message` and, on a second line, `hint` to standard error; raise `typer.Exit` with code 1."""
    stderr.print(f"[red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    if hint:
        stderr.print(f"  {escape(hint)}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)
