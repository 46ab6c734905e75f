"""The option `--columns`, and what a value of a table looks like: a number, a date, or a missing id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from protocols.errors import ParameterError
from protocols.headings import ColumnRole

ROLES: Final[tuple[ColumnRole, ...]] = ("user", "item", "rating", "time", "quantity")

NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MONTH: Final = r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
DATE: Final = re.compile(
    r"(\d{4}([-/.])\d\d?\2\d\d?|\d\d?([-/.])\d\d?\3(\d{4}|\d\d))([T ,]+\d.*)?|\d{8}T\d{4,}Z?"
    rf"|([A-Z][a-z]{{2,8}},? )?(\d\d?[-. ]+{_MONTH}[-.,]* ?|{_MONTH}[. ]+\d\d?,? .*)\d\d.*",
    re.ASCII,
)
"""What looks like a date, also one of a form that is not read, such as with a year of two digits."""
LISTS: Final = "1..."
"""What stands for the item where a line has a user and any number of items: `--columns user=0,item=1...`."""
NO_VALUE: Final = ("", "nan", "na", "n/a", "<na>", "null", "none", "nil", "\\n", "?", "-", "#n/a", "undefined")
"""Ids that stand for a missing one, in lower case."""
GUESTS: Final = ("anonymous", "guest", "unknown", "gast", "invité")
"""Ids that stand for a missing user, in lower case."""
LEAST_TIME: Final = 1e8  # seconds since 1970: 1973. No rating is that large


@dataclass(frozen=True)
class Columns:
    """The columns to read, each by its number from 0 or by its heading. Those that are None are not read.

    Raises `ParameterError` if two roles have the same column or a number is negative.
    """

    user: int | str
    item: int | str
    rating: int | str | None = None
    time: int | str | None = None
    quantity: int | str | None = None

    def __post_init__(self) -> None:
        chosen = [column for column in vars(self).values() if column is not None]
        if len(set(chosen)) < len(chosen):
            raise ParameterError("two of user, item, rating, time and quantity are read from the same column")
        if any(isinstance(column, int) and column < 0 for column in chosen):
            raise ParameterError("columns are numbered from 0")

    def __str__(self) -> str:
        """Return the text that `parse_columns` reads."""
        return ",".join(f"{role}={column}" for role, column in vars(self).items() if column is not None)


def parse_columns(text: str) -> Columns:
    """Return the columns in a text such as `user=0,item=1,rating=2,time=3` or `user=who,item=what`.

    A value of digits is a number from 0, any other a heading. `user=0,item=1...` says that each line has a user and any
    number of items. Raises `ParameterError` for any other text.
    """
    found: dict[str, int | str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in ROLES or not equals or not value:
            raise ParameterError(
                f"not a column: {part.strip()!r}; write user=0,item=1,rating=2,time=3, with numbers or headings"
            )
        if name in found:
            raise ParameterError(f"{name} is given twice")
        found[name] = int(value) if value.isascii() and value.isdigit() else value
    if not {"user", "item"} <= found.keys():
        raise ParameterError("columns must say where user and item are, for example user=0,item=1")
    return Columns(**found)


def require_columns(columns: Columns | None) -> None:
    """Raise `ParameterError` for what is no `Columns`, such as the text that `parse_columns` reads."""
    if columns is not None and not isinstance(columns, Columns):
        raise ParameterError(
            f"columns must be a Columns, got a {type(columns).__name__}: parse_columns('user=0,item=1') makes one"
        )


def is_value(field: str) -> bool:
    """Return whether a field is a number or a date, which no heading is."""
    return bool(NUMBER.fullmatch(field.strip()) or DATE.fullmatch(field.strip()))


def is_small(field: str) -> bool:
    """Return whether a field is a number below all times."""
    return NUMBER.fullmatch(field) is not None and abs(float(field)) < LEAST_TIME
