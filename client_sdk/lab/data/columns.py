"""Which columns of a table hold the user, the item, the rating and the time."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Literal, get_args

from client_sdk.lab.data.chunks import Chunk, chunks, csv_rows
from client_sdk.lab.data.interactions import DataError
from protocols.errors import ParameterError

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
_LABELS: Final = frozenset({"label", "click", "clicks", "clicked", "isclick", "isclicked"})
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
        chosen = [column for column in vars(self).values() if column is not None]
        if len(set(chosen)) < len(chosen):
            raise ParameterError("two of user, item, rating and time are read from the same column")
        if any(isinstance(column, int) and column < 0 for column in chosen):
            raise ParameterError("columns are numbered from 0")

    def __str__(self) -> str:
        """Return the text that `parse_columns` reads."""
        return ",".join(f"{role}={column}" for role, column in vars(self).items() if column is not None)


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


def require_columns(columns: Columns | None) -> None:
    """Raise `ParameterError` for what is no `Columns`, such as the text that `parse_columns` reads."""
    if columns is not None and not isinstance(columns, Columns):
        raise ParameterError(
            f"columns must be a Columns, got a {type(columns).__name__}: parse_columns('user=0,item=1') makes one"
        )


def recognise(heading: str) -> Role | None:
    """Return what a usual heading stands for, such as `movieId` or RecBole's `user_id:token`; None for any other."""
    plain = re.sub(r"[-_ ]", "", heading.strip().lower().partition(":")[0])
    return next((role for role in ROLES if plain in _USUAL[role]), None)


def label_of(header: Sequence[str]) -> int | None:
    """Return the number of a column that says whether the user clicked, such as `label`; None without one."""
    plain = [re.sub(r"[-_ ]", "", heading.strip().lower().partition(":")[0]) for heading in header]
    return next((place for place, heading in enumerate(plain) if heading in _LABELS), None)


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


# --- recognises the format of a text file of interactions from its first lines ---------------------------------------

SEPARATORS: Final = {"\t": "tabs", "::": "double colons", ",": "commas", ";": "semicolons", "|": "bars", " ": "blanks"}
"""Separators that are recognised, and their names. If several fit, one of quoted fields is chosen, or the first."""
_SAMPLE_BYTES: Final = 1 << 20
_SAMPLE: Final = 64  # rows
_MOST_COLUMNS: Final = 4  # of a table of whole numbers between blanks
_MATRIX_COLUMNS: Final = 10  # of numbers, from which a table without user and item looks like a rating matrix
_NO_VALUE: Final = frozenset({"", "nan", "na", "n/a", "null", "none", "?", "-"})
_LONG_FORM: Final = (
    "bring it into long form, a line `user,item,rating` for each rating (docs/your-own-data.md says how), "
    "or name the columns with --columns user=...,item=... if each line is one interaction"
)


@dataclass(frozen=True)
class TextTable:
    """A table in text. header: the headings, or None. width: fields of a line. rows: the first rows without header."""

    separator: str
    header: tuple[str, ...] | None
    width: int
    rows: Sequence[Sequence[str]]

    @property
    def quoted(self) -> bool:
        """Whether fields may be quoted as in RFC 4180: with one separating character that is no blank."""
        return _may_quote(self.separator)

    def __str__(self) -> str:
        """Return the format in words."""
        return f"separated by {SEPARATORS[self.separator]}, {'a' if self.header else 'no'} header"


@dataclass(frozen=True)
class IdLists:
    """Lines of a user followed by items, as in the files of LightGCN."""

    def __str__(self) -> str:
        """Return the format in words."""
        return "a user and the items on each line"


def sniff(path: Path, columns: Columns | None = None) -> TextTable | IdLists:
    """Return the format of a file from its first lines.

    columns: what the caller wants to read: the file is a table, and its first line is the header if one is given by its
    heading. Raises `DataError` if no separator is found, and without `columns` for a rating matrix.
    """
    pieces = chunks(path, _SAMPLE_BYTES)
    first = next(pieces)
    pieces.close()
    lines = first.data.decode().split("\n", _SAMPLE)[:_SAMPLE]
    if not lines[-1]:
        del lines[-1]
    if columns is None and _are_id_lists(path, lines):
        return IdLists()
    found = {separator: _rows(path, first, lines, separator) for separator in SEPARATORS}
    widths = {separator: _width(rows) for separator, rows in found.items()}
    quotes = any('"' in line for line in lines)

    def fit(separator: str) -> tuple[float, bool, bool]:
        alike, is_first, _ = widths[separator]
        return alike, is_first, quotes and _may_quote(separator)

    best = max(SEPARATORS, key=fit)  # the first of several
    alike, _, width = widths[best]
    if not alike:
        list(csv_rows(path, first) if quotes else ())  # raises if a quoted field does not end
        names = ", ".join(SEPARATORS.values())
        raise DataError(f"cannot tell what separates the columns: expected {names}", path, 1)
    rows = list(filter(None, found[best]))
    if len(rows[0]) != width:
        raise DataError(f"the line has {len(rows[0])} fields, but most lines have {width}", path, 1)
    header = tuple(name.strip() for name in rows[0]) if _has_header(rows, columns) else None
    table = TextTable(best, header, width, rows[1:] if header else rows)
    if columns is None:
        _refuse_matrix(path, table)
    return table


def _may_quote(separator: str) -> bool:
    return len(separator) == 1 and separator != " "


def _width(rows: Sequence[Sequence[str]]) -> tuple[float, bool, int]:
    """Return the share of rows with the most frequent number of fields, whether the first row has it, and this number.

    All are 0 if the number is 1. A share, because separators differ in rows: some split the lines of a quoted field.
    """
    counts = Counter(map(len, rows))
    if not counts:
        return 0, False, 0
    first = len(rows[0])
    width = max(counts, key=lambda width: (counts[width], width > 1, width == first))
    return (counts[width] / len(rows), width == first, width) if width > 1 else (0, False, 0)


def _rows(path: Path, first: Chunk, lines: Sequence[str], separator: str) -> list[list[str]]:
    """Return the first rows; where fields are not quoted properly for the separator, they end with an empty one."""
    if not _may_quote(separator):
        return [line.removesuffix("\r").split(separator) for line in lines]
    rows = []
    try:
        for _, row in islice(csv_rows(path, first, separator), _SAMPLE):
            rows += [row] if row else []
    except DataError:
        rows.append([])
    return rows


def _are_id_lists(path: Path, lines: Sequence[str]) -> bool:
    """Return whether the lines are whole numbers between blanks that are no table of up to 4 columns.

    They are if lines have different lengths, or more than 4 numbers, or begin with 0, 1, 2, ... in order. Raises
    `DataError` if they look like a rating matrix: of one length, and most of them repeat a number after the first.
    """
    rows = [line.split() for line in lines if "\t" not in line]
    if len(rows) < len(lines):
        return False
    if not all(row and all(word.isascii() and word.isdigit() for word in row) for row in rows):
        return False
    if len({len(row) for row in rows}) > 1:
        return True
    width = len(rows[0])
    if width > _MOST_COLUMNS and 2 * sum(len(set(row[1:])) < width - 1 for row in rows) > len(rows):
        raise _matrix(path, width, rows)
    in_order = len(rows) > 1 and [int(row[0]) for row in rows] == list(range(len(rows)))
    return width > _MOST_COLUMNS or in_order


def _has_header(rows: Sequence[Sequence[str]], columns: Columns | None) -> bool:
    """Return whether the first row is a header.

    It is if a column is given by its heading. Otherwise it is if no field of it is a number or date, and one is a usual
    heading or stands above numbers or dates. A heading before three or more numbers is one too: of a rating matrix.
    """
    if columns is not None and any(isinstance(column, str) for column in vars(columns).values()):
        return True
    first, below = rows[0], rows[1:]

    def above_values(place: int) -> bool:
        return 2 * sum(is_value(row[place]) for row in below if len(row) > place) >= len(below) > 0

    named = [not is_value(field) for field in first]
    if columns is None and len(first) > 3 and named[0] and all(map(_is_small, first[1:])):
        return not first[0].strip() or recognise(first[0]) == "user" or above_values(0)
    return all(named) and (any(map(recognise, first)) or any(map(above_values, range(len(first)))))


def _refuse_matrix(path: Path, table: TextTable) -> None:
    """Raise `DataError` for a table that looks like a rating matrix.

    Behind its first column are only numbers, none as large as a time, and blanks. They are many columns, or they have
    numbers as headings, or headings and blanks.
    """
    header = table.header or ()
    cells = [field.strip() for row in table.rows for field in row[1:]]
    blanks = sum(cell.lower() in _NO_VALUE for cell in cells)
    if {"user", "item"} <= {recognise(name) for name in header} or sum(map(_is_small, cells)) + blanks < len(cells):
        return
    by_item = len(header) > 3 and (blanks > 0 or all(map(is_value, header[1:])))
    if blanks < len(cells) and (table.width >= _MATRIX_COLUMNS or by_item):
        raise _matrix(path, table.width, table.rows)


def _is_small(field: str) -> bool:
    """Return whether a field is a number below all times."""
    return NUMBER.fullmatch(field.strip()) is not None and float(field) < LEAST_TIME


def _matrix(path: Path, width: int, rows: Sequence[Sequence[str]]) -> DataError:
    """Return the error for a rating matrix. rows: the first ones, numbers or blank."""
    whole = [[field.strip() for field in row] for row in rows]
    counts = all(NUMBER.fullmatch(row[0]) for row in whole) and any("99" in row[1:] for row in whole)
    counts = counts and all(float(row[0]) == sum(cell != "99" for cell in row[1:]) for row in whole)
    jester = "; as in Jester, the first column counts the user's ratings, and 99 means not rated" if counts else ""
    words = f"a line for each user and a column for each item, {width} columns{jester}"
    return DataError(f"this looks like a rating matrix ({words}): {_LONG_FORM}", path, 1)
