"""Which columns of a table hold the user, the item, the rating and the time."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Literal, get_args

from client_sdk.data.errors import DataError
from protocols.errors import ParameterError

__all__ = [
    "DATE", "LEAST_TIME", "NUMBER", "ROLES", "Columns", "Role", "Roles",
    "is_value", "parse_columns", "recognise", "resolve",
]  # fmt: skip

Role = Literal["user", "item", "rating", "time"]
"""What a column is read as."""
ROLES: Final[tuple[Role, ...]] = get_args(Role)
Roles = dict[Role, int]
"""Role -> number of the column, from 0. It always has user and item."""

NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
DATE: Final = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)? ?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII)
"""ISO 8601: a date, or a date and a time, with or without an offset from UTC."""
_USUAL: Final[dict[Role, frozenset[str]]] = {
    "user": frozenset({"user", "userid", "uid", "reviewerid", "customer", "customerid", "member", "memberid"}),
    "item": frozenset(
        {"item", "itemid", "iid", "movie", "movieid", "product", "productid", "asin", "parentasin", "book", "bookid",
         "businessid", "article", "articleid", "song", "songid", "track", "trackid", "artistid", "gameid", "recipeid"}
    ),
    "rating": frozenset({"rating", "ratings", "score", "stars", "overall"}),
    "time": frozenset({"timestamp", "time", "unixtime", "unixreviewtime", "unixtimestamp"}),
}  # fmt: skip
"""Headings that are recognised, in lower case without _, - and blanks."""
_SHOWN: Final = 10  # headings in an error
LEAST_TIME: Final = 1e8  # seconds since 1970: 1973. No rating is that large


@dataclass(frozen=True)
class Columns:
    """The columns to read, each by its number from 0 or by its heading. Rating and time may be None: not read.

    Raises `ParameterError` if two roles have the same column or a number is negative.
    """

    user: int | str
    item: int | str
    rating: int | str | None = None
    time: int | str | None = None

    def __post_init__(self) -> None:
        given = [getattr(self, field.name) for field in fields(self)]
        chosen = [column for column in given if column is not None]
        if len(set(chosen)) < len(chosen):
            raise ParameterError("two of user, item, rating and time are read from the same column")
        if any(isinstance(column, int) and column < 0 for column in chosen):
            raise ParameterError("columns are numbered from 0")

    def __str__(self) -> str:
        """Return the text that `parse_columns` reads."""
        found = {role: getattr(self, role) for role in ROLES}
        return ",".join(f"{role}={column}" for role, column in found.items() if column is not None)


def parse_columns(text: str) -> Columns:
    """Return the columns in a text such as `user=0,item=1,rating=2,time=3` or `user=who,item=what`.

    A value of digits is a number from 0, any other a heading. Raises `ParameterError` for any other text.
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


def recognise(heading: str) -> Role | None:
    """Return what a usual heading stands for, such as `movieId` or RecBole's `user_id:token`; None for any other."""
    plain = re.sub(r"[-_ ]", "", heading.strip().lower().partition(":")[0])
    return next((role for role in ROLES if plain in _USUAL[role]), None)


def is_value(field: str) -> bool:
    """Return whether a field is a number or a date, which no heading is."""
    return bool(NUMBER.fullmatch(field.strip()) or DATE.fullmatch(field.strip()))


def resolve(path: Path, columns: Columns | None, header: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> Roles:
    """Return the number of each role's column in a table.

    header: None for a table without one. rows: the first rows. Without `columns`, headings are recognised; a table
    without a header has user, item, then rating and time. Raises `DataError`, with the path, for a column that the
    table does not have, and if user or item cannot be recognised.
    """
    width = len(rows[0]) if rows else len(header or ())
    if columns is not None:
        wanted = {role: getattr(columns, role) for role in ROLES}
        return {role: _number(path, column, header, width) for role, column in wanted.items() if column is not None}
    found = _by_place(rows, width) if header is None else _by_heading(path, header)
    if "user" not in found or "item" not in found:
        have = ", ".join(map(repr, header[:_SHOWN])) if header else f"{width} column" + "s" * (width != 1)
        more = f" and {len(header) - _SHOWN} more" if header and len(header) > _SHOWN else ""
        matrix = "; a file with a column for each item must be brought into long form first" if more else ""
        raise DataError(
            f"cannot tell which columns hold the user and the item (the file has {have}{more}); "
            f"name them with --columns user=...,item=...{matrix}",
            path,
            1,
        )
    return found


def _number(path: Path, column: int | str, header: Sequence[str] | None, width: int) -> int:
    if isinstance(column, int):
        if column >= width:
            raise DataError(f"no column {column}: the file has {width}, numbered from 0", path, 1)
        return column
    names = [] if header is None else [name.strip() for name in header]
    if names.count(column) != 1:
        have = f"the header has {', '.join(map(repr, names))}" if names else "the file has no header"
        problem = "more than one column" if column in names else "no column"
        raise DataError(f"{problem} named {column!r}: {have}", path, 1)
    return names.index(column)


def _by_heading(path: Path, header: Sequence[str]) -> Roles:
    found: Roles = {}
    for place, heading in enumerate(header):
        role = recognise(heading)
        if role is not None and role in found:
            both = f"{header[found[role]]!r} and {heading!r}"
            raise DataError(f"two columns look like the {role}, {both}: choose with --columns", path, 1)
        if role is not None:
            found[role] = place
    return found


def _by_place(rows: Sequence[Sequence[str]], width: int) -> Roles:
    """Return user, item, and the third and fourth column as rating and time.

    At least half of the fields of a rating or time are numbers, or dates of a time; numbers of at least 10^8 are times.
    """
    found: Roles = {"user": 0, "item": 1} if width >= 2 else {}
    for place in range(2, min(width, 4)):
        fields = [row[place].strip() for row in rows if len(row) > place]
        numbers = [float(field) for field in fields if NUMBER.fullmatch(field)]
        numbers += [math.inf for field in fields if DATE.fullmatch(field)]
        if numbers and 2 * len(numbers) >= len(fields):
            role: Role = "time" if min(numbers) >= LEAST_TIME else "rating"
            if role not in found:
                found[role] = place
            elif role == "rating":
                found.setdefault("time", place)
    return found
