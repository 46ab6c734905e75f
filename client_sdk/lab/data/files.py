"""The readers of files of interactions: of a whole data set, and of one user.

That of data sets reads tables in text (CSV, TSV, `::`, semicolons, bars, blanks), lists of items by user (LightGCN),
JSON lines and parquet, plain or gzip, in bounded memory, and says what it found. Ids are text, and are numbered from 0;
`Interactions` keeps them.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History, OnUnknown, time_values
from client_sdk.lab.data.chunks import chunks
from client_sdk.lab.data.columns import LEAST_TIME, NUMBER, Columns, require_columns
from client_sdk.lab.data.interactions import DataError, Duplicates, Interactions
from client_sdk.lab.data.layouts import Layout, layout_of
from client_sdk.lab.data.roles import unclear
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError, missing_extra
from protocols.headings import ColumnRole, columns_of, small_table

if TYPE_CHECKING:
    from client_sdk.lab.data.tables import TableRows

_PARQUET: Final = b"PAR1"
_FIRST: Final = 3  # interactions that are shown
_MANY: Final = 30  # rows, from which on ids must repeat
_MOST_IDS: Final = 0.9  # of the rows
_FEW, _MOST_OF_ONE = 10, 0.1  # users, and the share of all interactions that is said if one of them has it


@dataclass(frozen=True, eq=False)
class DataFile:
    """A file of interactions that was read."""

    path: Path
    format: str
    """In words."""
    columns: Columns | None
    """None for lists of ids."""
    rows: int
    """Number of rows that were read."""
    interactions: Interactions
    why: str = ""
    """How the columns were chosen."""
    first: tuple[str, ...] = ()
    """The first interactions, as they are in the file."""
    unread: tuple[str, ...] = ()
    """Headings or numbers of other columns."""
    left_out: tuple[DataError, ...] = ()
    """The first rows that were left out, of `bad` in all."""
    bad: int = 0
    dates: bool = False
    """Whether times are dates, in microseconds."""

    def __str__(self) -> str:
        """Return what was found, for people: counts, format, columns and why, ranges, and what was not read."""
        found = self.interactions
        parts = [
            f"read {self.rows:,} rows, {found.n_users:,} users, {found.n_items:,} items from {self.path}: {self.format}"
        ]
        if self.columns is not None:
            parts.append(f"columns {self.columns} {self.why}")
        if self.first:
            parts.append(f"the first: {' / '.join(self.first)}")
        if self.unread:
            parts.append(f"not read: {', '.join(self.unread)}")
        degrees = found.user_degrees()
        if found.user_ids is not None and found.n_users >= _FEW and degrees.max() > _MOST_OF_ONE * found.size:
            user = found.user_ids[degrees.argmax()]
            parts.append(f"user {str(user)!r} has {degrees.max():,} of them: if these are guests, leave them out")
        if found.ratings is not None and found.size:
            least = float(found.ratings.min())
            parts.append(f"ratings from {least:g} to {found.ratings.max():g}{_of_none(found.ratings, least)}")
        if found.timestamps is not None and found.size:
            first, last = (
                _time_text(int(each), self.dates) for each in (found.timestamps.min(), found.timestamps.max())
            )
            parts.append(f"times from {first} to {last}")
        if found.merged:
            which = "last" if found.timestamps is None else "latest"
            parts.append(
                f"{found.merged:,} repeated pairs of user and item: the {which} of each is used, without a weight"
            )
        if self.columns is not None and self.columns.quantity is not None:
            parts.append("quantities only say what came back: no recipe takes a weight")
        if found.returned:
            parts.append(f"{found.returned:,} pairs left out, of which as much came back as was bought")
        if self.bad:
            more = f" and {self.bad - len(self.left_out)} more" if self.bad > len(self.left_out) else ""
            parts.append(f"{self.bad:,} rows left out ({', '.join(map(_place, self.left_out))}{more})")
        return "; ".join(parts)


def _of_none(ratings: NDArray[np.float32], least: float) -> str:
    """Return a hint at ratings of -1 or 0 on a scale that begins at 1, as of Book-Crossing and of anime lists."""
    others = ratings[ratings != least]
    if least not in (-1, 0) or others.min(initial=9) < 1 or others.max(initial=0) <= 1:
        return ""
    count = ratings.size - others.size
    return f", {count:,} of them {least:g}: if that stands for no rating, read without rating or leave these rows out"


def _place(error: DataError) -> str:
    return f"line {error.line}: {error.problem}"


def _time_text(value: int, is_date: bool) -> str:
    """Return a time as a date, if it is one or looks like seconds, milliseconds, microseconds or nanoseconds."""
    unit = 1e6 if is_date else next((u for u in (1.0, 1e3, 1e6, 1e9) if LEAST_TIME * u <= value < 5e9 * u), 0.0)
    if not unit:
        return str(value)
    try:
        return f"{datetime.fromtimestamp(value / unit, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return str(value)


def read_data_file(
    path: Path,
    columns: Columns | None = None,
    *,
    skip_bad: int = 0,
    duplicates: Duplicates = "latest",
    integer_ids: bool = False,
) -> DataFile:
    """Read the interactions of a file, with polars, of the extra `data`.

    columns: which to read; without them a column is read if its heading is a usual one, or the file says by itself what
    it is. skip_bad: up to so many rows that cannot be read are left out. duplicates: what to do with repeated pairs.
    integer_ids: whether an id that is not an integer of at least 0 is an error. Times are rounded down to integers;
    dates become microseconds since 1970. Raises `DataError`, with line and column, for a malformed file, and, with the
    first rows and the option to type, for columns that are not named or whose ids are of rows.
    """
    return read_data_files([path], columns, skip_bad, duplicates, integer_ids)[0]


def read_data_files(
    paths: Sequence[Path],
    columns: Columns | None = None,
    skip_bad: int = 0,
    duplicates: Duplicates = "latest",
    integer_ids: bool = False,
) -> list[DataFile]:
    """Read files of one format, the first of training interactions, with one numbering of users and items.

    Lines of numbers in one of them are lists of items if those in another say so. Else as for `read_data_file`.
    """
    layouts = [_layout(path, columns) for path in paths]
    if any(layout.kind == "lists" for layout in layouts):
        layouts = [_layout(path, columns, beside_lists=True) for path in paths]
    if len({layout.kind == "lists" for layout in layouts}) > 1:
        raise DataError(f"the file has {layouts[1]}, but {paths[0]} has {layouts[0]}", paths[1])
    read: list[TableRows] = []
    for path, layout in zip(paths, layouts, strict=True):
        read.append(_read(path, layout, columns, integer_ids, skip_bad, *read[:1]))
    made = _tables(paths[0]).interactions_of(read, duplicates)
    if columns is None and layouts[0].kind != "lists":
        _require_repeated(read[0], made[0])
    return [_described(rows, found) for rows, found in zip(read, made, strict=True)]


def _described(rows: TableRows, found: Interactions) -> DataFile:
    layout, places = rows.layout, rows.roles.values()
    if layout.kind == "lists":
        return DataFile(rows.path, str(layout), None, rows.count, found)
    header = layout.header or tuple(map(str, range(layout.width)))
    named: dict[str, int | str] = {role: rows.name(role) for role in rows.roles}
    first = tuple(" ".join(row[place] for place in places) for row in layout.rows[:_FIRST])
    unread = tuple(repr(name) if layout.header else f"column {name}, such as {layout.rows[0][place]!r}"
                   for place, name in enumerate(header) if place not in places)  # fmt: skip
    return DataFile(rows.path, str(layout), Columns(**cast(Any, named)), rows.count, found, rows.why, first, unread,
                    tuple(rows.left_out), rows.bad, bool(rows.dates))  # fmt: skip


def _require_repeated(rows: TableRows, found: Interactions) -> None:
    """Raise `DataError` if nearly every row has another user, or another item: such ids are of rows, or of orders."""
    degrees_of: dict[ColumnRole, NDArray[np.int64]] = {"user": found.user_degrees(), "item": found.item_degrees()}
    for role, degrees in degrees_of.items():
        count = int(np.count_nonzero(degrees))
        if rows.count >= _MANY and count > _MOST_IDS * rows.count:
            problem = f"{count:,} of {rows.count:,} rows have another {role}, as if the column numbered rows or orders"
            raise unclear(rows.path, rows.layout, problem, rows.roles[role])


def write_data_file(file: DataFile, target: Path) -> None:
    """Write the interactions as CSV with the headings user, item, rating and time; dates as in ISO 8601.

    Raises `DataError` if the file exists or cannot be written, and without polars.
    """
    _tables(target).write_table(file.interactions, target, dates=file.dates)


def by_place(path: Path) -> Columns:
    """Return the columns of a published table without header: user, item, rating and, if there is a fourth, time."""
    return Columns(0, 1, 2, 3 if _layout(path, Columns(0, 1)).width > 3 else None)


def _tables(path: Path) -> ModuleType:
    """Return the module that reads tables. Raises `DataError` without polars."""
    try:
        return import_module("client_sdk.lab.data.tables")
    except ImportError as error:
        raise DataError(str(missing_extra("reading a table needs polars, of", "data")), path) from error


def _layout(path: Path, columns: Columns | None, beside_lists: bool = False) -> Layout:
    require_columns(columns)
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET)) == _PARQUET
    except OSError as error:
        raise DataError(f"cannot read the file: {error.strerror or error}", path) from error
    found: Layout = _tables(path).layout_of_parquet(path) if is_parquet else layout_of(path, columns, beside_lists)
    return found


def _read(
    path: Path, layout: Layout, columns: Columns | None, integer_ids: bool, skip_bad: int, *beside: TableRows
) -> TableRows:
    rows: TableRows = _tables(path).read_table(path, layout, columns, integer_ids, *beside)
    rows.left_out.sort(key=lambda error: error.line or 0)
    if rows.bad > skip_bad:
        first, more = rows.left_out[0], rows.bad - 1
        advice = f"; {more:,} more rows cannot be read: leave them out with --skip-bad {rows.bad}" if more else ""
        if not rows.count and more:
            advice = f"; none of the {rows.bad:,} rows can be read"
            role = next((role for role in rows.roles if str(first.column).endswith(f"({role})")), "user")
            if role not in ("user", "item"):
                rest = ",".join(f"{other}={rows.name(other)}" for other in rows.roles if other != role)
                advice += f": without the {role}, say --columns {shlex.quote(rest)}"
        raise DataError(first.problem + advice, path, first.line, first.column)
    if not rows.count:
        raise DataError("the file has a header but no lines", path)
    return rows


# --- the files of one user: items, ratings and titles; every error names the line -------------------------------------

_MAX_ITEM: Final = 2**31 - 1
_MAX_RATING: Final = 1e6


def read_history(
    path: Path,
    n_items: int | None = None,
    catalogue: Catalogue | None = None,
    any_id: bool = False,
    on_unknown: OnUnknown = "error",
) -> History:
    """Return the items in the file, each listed once, and their ratings if the file has a column for them.

    The file has one item number a line, or is a table with a heading for the item, such as `item`, `movieId` or `sku`,
    and, optionally, ones for the rating and the time. In a task with a catalogue the column has the app's ids. n_items:
    number of items of the task, if it is known. any_id: whether ids are accepted that no catalogue is at hand for: only
    the form of the file is checked then, and the numbers of the result mean nothing. on_unknown: "skip" leaves out
    items that the task does not have. Raises `DataError` with the line number for any other content, including a
    repeated item and one outside 0..n_items-1.
    """
    roles, rows = _rows(path, "item", ("rating", "time"))
    items: dict[int, int] = {}
    ratings: list[float] = []
    times: list[str] = []
    texts: dict[str, int] = {}
    unknown = 0
    headed = rows[0][0] > 1  # ids need a heading, or they could be one
    for line, (text, *rest) in rows:
        if catalogue is not None:
            item = catalogue.numbers.get(text, -1)
        else:
            item = texts.setdefault(text, len(texts)) if any_id and headed else _item(path, line, text)
        if item < 0 or (n_items is not None and item >= n_items):
            unknown += 1
            if on_unknown == "skip":
                continue
            fault = f"the task's catalogue has no item with the id {text[:40]!r}"
            if item >= 0:
                fault = f"item {item} is outside 0..{(n_items or 0) - 1}, the items of the task"
            raise DataError(f"{fault}: correct the file, or leave such items out with --skip-unknown", path, line)
        if item in items:
            raise DataError(f"item {text[:40]} is already on line {items[item]}: list each item once", path, line)
        items[item] = line
        for role, value in zip(roles[1:], rest, strict=True):
            if role == "rating":
                ratings.append(_rating(path, line, value))
            else:
                times.append(value)
    numbers = np.fromiter(items, dtype=np.int32, count=len(items))
    rated = np.array(ratings, dtype=np.float32) if ratings else None
    return History(numbers, rated, unknown, time_values(times) if times else None)


def read_titles(path: Path) -> dict[int, str]:
    """Return item number -> title from a table with headings for both, such as `item` and `title`.

    Raises `DataError` with the line number if the file is malformed.
    """
    return {_item(path, line, text): title for line, (text, title) in _rows(path, "item", ("title",), True)[1]}


def _rows(
    path: Path, first: ColumnRole, others: Sequence[ColumnRole], is_needed: bool = False
) -> tuple[list[ColumnRole], list[tuple[int, list[str]]]]:
    """Return `first` and those of the `others` that have columns, the number of each line and its fields in these.

    A file with a single column of numbers does not need a header, unless all columns are needed.
    """
    text = b"".join(chunk.data for chunk in chunks(path)).decode()
    try:
        rows = small_table(text.splitlines(keepends=True), str(path))
        places = columns_of(rows[0][1])
    except ParameterError as error:
        raise DataError(str(error).removeprefix(f"{path}, "), path) from None
    if not is_needed and len(rows[0][1]) == 1 and rows[0][1][0].isdigit():
        return [first], [(line, [",".join(row)]) for line, row in rows]
    for role in (first, *others):
        if role not in places and (role == first or is_needed):
            prefix = "not " if is_needed else "neither an item number nor "
            raise DataError(f"{prefix}a header with a column named {role!r}, or a usual heading for it", path, 1)
    for line, row in rows:
        if len(row) != len(rows[0][1]):
            raise DataError(f"the line has {len(row)} fields, but the header has {len(rows[0][1])}", path, line)
    if len(rows) == 1:
        raise DataError("the file has a header but no lines", path)
    roles = [role for role in (first, *others) if role in places]
    return roles, [(line, [row[places[role]] for role in roles]) for line, row in rows[1:]]


def _item(path: Path, line: int, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise DataError(f"not an item number: {text[:40]!r}", path, line)
    if int(text[:12]) > _MAX_ITEM:
        raise DataError(f"item number {text[:40]} is greater than {_MAX_ITEM}", path, line)
    return int(text)


def _rating(path: Path, line: int, text: str) -> float:
    if not (NUMBER.fullmatch(text) and abs(float(text)) <= _MAX_RATING):
        raise DataError(f"not a rating: {text[:40]!r}", path, line)
    return float(text)
