"""What commands share: consoles, tables, error output, options as a dataclass, and the options of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Option

if TYPE_CHECKING:  # numpy is imported when the command runs, not for its help
    from client_sdk.lab.data.columns import Columns

_NARROWEST: Final = 20  # columns: rich cannot draw a table in two


def _console(*, stderr: bool = False) -> Console:
    """Return a console that is as wide as the terminal, or as COLUMNS says, and at least 20 columns wide."""
    made = Console(stderr=stderr)
    if made.width < _NARROWEST:
        made.width = _NARROWEST
    return made


console: Final = _console()
stderr: Final = _console(stderr=True)


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


def fail(message: str, remedy: str | None = None) -> NoReturn:
    """Print `error: message` and, on a second line, `remedy` to standard error; raise `typer.Exit` with code 1."""
    stderr.print(f"[red]error:[/] {escape(message)}", highlight=False, soft_wrap=True, emoji=False)
    if remedy:
        stderr.print(f"  {escape(remedy)}", highlight=False, soft_wrap=True, emoji=False)
    raise typer.Exit(1)


def command_group(help_text: str) -> typer.Typer:
    """Return a group of commands with this text in the help."""
    return typer.Typer(no_args_is_help=True, help=help_text, rich_markup_mode=None)


def picked(source: object, *names: str) -> dict[str, Any]:
    """Return these attributes of `source` by name, for a record that has them too."""
    return {name: getattr(source, name) for name in names}


# --- commands whose arguments and options are the fields of one dataclass --------------------------------------------

T = TypeVar("T")


def command_options(function: Callable[[T], None]) -> Callable[..., None]:
    """Make a typer command of a function with one parameter, whose type is a dataclass.

    Each field is an argument or option of the command, in order; its type is `Annotated[type, Option(...)]` or
    `Annotated[type, Argument(...)]`, its default is the option's default.
    """
    (parameter,) = signature(function, eval_str=True).parameters.values()
    kind = parameter.annotation

    @wraps(function)
    def command(**values: Any) -> None:
        function(kind(**values))

    # typer reads arguments and options from the signature
    command.__signature__ = signature(kind, eval_str=True)  # type: ignore[attr-defined]
    return command


AsJson = Annotated[bool, Option("--json", help="Print JSON instead of tables.")]
MinCohort = Annotated[int, Option(help="Refuse sums of fewer clients than this.")]
RecipeParameters = Annotated[list[str] | None, Option("-r", help="Recipe parameter, name=value; repeatable.")]
MechanismParameters = Annotated[list[str] | None, Option("-m", help="Mechanism parameter, name=value; repeatable.")]


# --- options of commands that read a data set: where it is, and which columns of a file it is in ---------------------

DataDir = Annotated[Path | None, Option(help="Folder that contains the data set.", show_default="data")]
ColumnsText = Annotated[
    str | None,
    Option(
        help="Columns of a file, by number from 0 or by heading: user=0,item=1,rating=2,time=3.",
        show_default="recognised",
    ),
]

SkipBad = Annotated[int, Option(min=0, help="Leave out up to so many rows of a file that cannot be read.")]


def chosen_columns(text: str | None) -> Columns | None:
    """Return the columns of the option `--columns`, None without it."""
    from client_sdk.lab.data.columns import parse_columns

    return None if text is None else parse_columns(text)


def say(text: str) -> None:
    """Print what was found in a file."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
