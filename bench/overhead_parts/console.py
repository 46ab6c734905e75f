"""Print the table on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from bench._report import Figure
from bench.overhead_parts.table import COMPARISONS, comparison, notes

__all__ = ["shown"]


def shown(figures: Mapping[str, Figure]) -> None:
    """Print the comparisons and the notes; the single steps are only in the files."""
    console = Console()
    for what, title in COMPARISONS.items():
        headings, rows = comparison(figures, what)
        table = Table(title=title, title_justify="left")
        for place, heading in enumerate(headings):
            table.add_column(heading, justify="right" if place else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for note in notes(figures):
        console.print(f"- {note}", highlight=False)
