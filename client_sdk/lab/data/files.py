"""The readers of files of interactions: of a whole data set, and of one user.

That of data sets reads tables in text (CSV, TSV, `::`, semicolons, bars, blanks), lists of items by user (LightGCN),
JSON lines and parquet, plain or gzip, in bounded memory, and says what it found. Ids are text, and are numbered from 0;
`Interactions` keeps them.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History, OnUnknown
from client_sdk.lab.data.chunks import chunks
from client_sdk.lab.data.columns import LEAST_TIME, NUMBER, Columns, Layout, layout_of, require_columns
from client_sdk.lab.data.interactions import DataError, Duplicates, Interactions
from protocols.catalogue import Catalogue
from protocols.errors import ParameterError
from protocols.headings import Role, columns_of, small_table

if TYPE_CHECKING:
    from client_sdk.lab.data.tables import TableRows

_PARQUET: Final = b"PAR1"
_FIRST: Final = 3  # interactions that are shown


@dataclass(frozen=True, eq=False)
class DataFile:
    """A file of interactions that was read.

    format: in words. columns: None for lists of ids. why: how the columns were chosen. rows: number of rows that were
    read. first: the first interactions, as they are in the file. unread: headings or numbers of other columns.
    left_out: the first rows that were left out, of `bad` in all. dates: whether times are dates, in microseconds.
    """

    path: Path
    format: str
    columns: Columns | None
    rows: int
    interactions: Interactions
    why: str = ""
    first: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    left_out: tuple[DataError, ...] = ()
    bad: int = 0
    dates: bool = False

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
        if found.ratings is not None and found.size:
            parts.append(f"ratings from {found.ratings.min():g} to {found.ratings.max():g}")
        if found.timestamps is not None and found.size:
            first, last = (
                _time_text(int(each), self.dates) for each in (found.timestamps.min(), found.timestamps.max())
            )
            parts.append(f"times from {first} to {last}")
        if found.merged:
            which = "last" if found.timestamps is None else "latest"
            parts.append(f"{found.merged:,} repeated pairs of user and item: the {which} of each is used")
        if found.returned:
            parts.append(f"{found.returned:,} pairs left out, of which as much came back as was bought")
        if self.bad:
            more = f" and {self.bad - len(self.left_out)} more" if self.bad > len(self.left_out) else ""
            parts.append(f"{self.bad:,} rows left out ({', '.join(map(_place, self.left_out))}{more})")
        return "; ".join(parts)


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
    beside_lists: bool = False,
) -> DataFile:
    """Read the interactions of a file. Tables need polars, of the extra `data`; lists of ids do not.

    columns: which to read; without them a column is read if its heading is a usual one, or the file says by itself what
    it is. skip_bad: up to so many rows that cannot be read are left out. duplicates: what to do with repeated pairs.
    integer_ids: whether an id that is not an integer of at least 0 is an error. beside_lists: whether the other file of
    a given split is one of lists. Times are rounded down to integers; dates become microseconds since 1970. Raises
    `DataError`, with line and column, for a malformed file, and, with the first rows and the option to type, for
    columns that are not named.
    """
    layout = _layout(path, columns, beside_lists)
    if layout.kind == "lists":
        (lists,) = read_lightgcn(path, duplicates=duplicates, numbered=True)
        return DataFile(path, str(layout), None, lists.size + lists.merged, lists)
    rows = _read(path, layout, columns, integer_ids, skip_bad)
    header = layout.header or tuple(map(str, range(layout.width)))
    named = {role: place if header.count(header[place]) > 1 or layout.header is None else header[place]
             for role, place in rows.roles.items()}  # fmt: skip
    first = tuple(" ".join(row[place] for place in rows.roles.values()) for row in layout.rows[:_FIRST])
    unread = tuple(repr(name) if layout.header else f"column {name}, such as {layout.rows[0][place]!r}"
                   for place, name in enumerate(header) if place not in rows.roles.values())  # fmt: skip
    count, bad, left_out = rows.count, rows.bad, tuple(rows.left_out)
    found, dates = rows.interactions(duplicates), bool(rows.dates)
    return DataFile(path, str(layout), Columns(**named), count, found, rows.why, first, unread, left_out, bad, dates)


def write_data_file(file: DataFile, target: Path) -> None:
    """Write the interactions as CSV with the headings user, item, rating and time; dates as in ISO 8601.

    Raises `DataError` if the file exists or cannot be written, and without polars.
    """
    try:
        from client_sdk.lab.data.tables import write_table
    except ImportError as error:
        raise DataError(_NEEDS_POLARS, target) from error
    write_table(file.interactions, target, dates=file.dates)


def by_place(path: Path) -> Columns:
    """Return the columns of a published table without header: user, item, rating and, if there is a fourth, time."""
    return Columns(0, 1, 2, 3 if _layout(path, Columns(0, 1)).width > 3 else None)


def read_rows(path: Path, columns: Columns) -> TableRows:
    """Return the rows of a table with integer ids. Errors: as for `read_data_file`."""
    return _read(path, _layout(path, columns), columns, True, 0)


def _layout(path: Path, columns: Columns | None, beside_lists: bool = False) -> Layout:
    require_columns(columns)
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET)) == _PARQUET
    except OSError as error:
        raise DataError(f"cannot read the file: {error.strerror or error}", path) from error
    if not is_parquet:
        return layout_of(path, columns, beside_lists)
    try:
        from client_sdk.lab.data.tables import layout_of_parquet
    except ImportError as error:
        raise DataError(_NEEDS_POLARS, path) from error
    return layout_of_parquet(path)


def has_lists(path: Path, columns: Columns | None) -> bool:
    """Return whether a file by itself says that each line is a user and the user's items."""
    return _layout(path, columns).kind == "lists"


_NEEDS_POLARS: Final = "a table is read with polars: pip install 'hushrec[data]'"


def _read(path: Path, layout: Layout, columns: Columns | None, integer_ids: bool, skip_bad: int) -> TableRows:
    try:
        from client_sdk.lab.data.tables import read_table
    except ImportError as error:
        raise DataError(_NEEDS_POLARS, path) from error
    rows = read_table(path, layout, columns, integer_ids=integer_ids)
    rows.left_out.sort(key=lambda error: error.line or 0)
    if rows.bad > skip_bad:
        first, more = rows.left_out[0], rows.bad - 1
        advice = f"; {more:,} more rows cannot be read: leave them out with --skip-bad {rows.bad}" if more else ""
        raise DataError(first.problem + advice, path, first.line, first.column)
    if not rows.count:
        raise DataError("the file has a header but no lines", path)
    return rows


# --- reader of LightGCN files: one line per user, `user item item ...`, numbered from 0, without ratings and times ---

_LONGEST: Final = 15  # digits
_MOST_UNUSED: Final = 100  # times as many numbers as occur


def read_lightgcn(*paths: Path, duplicates: Duplicates = "error", numbered: bool = False) -> tuple[Interactions, ...]:
    """Return one `Interactions` for each file, for example `train.txt` and `test.txt`.

    All have the same numbers of users and items: those in the files, up to the largest in any of them, or if `numbered`
    those of the ids that occur, in their order. A line may contain a user without items. duplicates: what to do with
    repeated items of a user. Raises `DataError` for a malformed or repeated user line, with the line number, and, by
    default, for a repeated item of a user.
    """
    parts = [_read_lists(path) for path in paths]
    user_ids, item_ids = (np.unique(np.concatenate(side)) for side in zip(*parts, strict=True))
    item_ids = item_ids[item_ids >= 0]
    n_users, n_items = int(user_ids.max()) + 1, int(item_ids.max(initial=-1)) + 1
    if not numbered and max(n_users, n_items) > _MOST_UNUSED * (user_ids.size + item_ids.size):
        raise DataError("the numbers of users or items are far above their count: number them from 0", paths[0])
    made = []
    for path, (users, items) in zip(paths, parts, strict=True):
        users, items = users[items >= 0], items[items >= 0]
        more: dict[str, Any] = {"n_users": n_users, "n_items": n_items}
        if numbered:
            users, items = np.searchsorted(user_ids, users), np.searchsorted(item_ids, items)
            more = {"n_users": user_ids.size, "n_items": item_ids.size}
            more |= {"user_ids": user_ids.astype(np.str_), "item_ids": item_ids.astype(np.str_)}
        try:
            made.append(Interactions.from_pairs(users, items, duplicates=duplicates, **more))
        except DataError as error:
            raise DataError(error.problem, path) from error
    return tuple(made)


def _read_lists(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return users and items of all pairs, int64 (pairs,); item -1 for a user whose line has no items."""
    numbers, lengths = read_id_lists(path)
    starts = np.cumsum(lengths) - lengths
    owners = numbers[starts]
    require_distinct(path, owners, "a line")
    is_item = np.ones(numbers.size, dtype=bool)
    is_item[starts] = False
    alone = owners[lengths == 1]
    return (
        np.concatenate([np.repeat(owners, lengths - 1), alone]),
        np.concatenate([numbers[is_item], np.full(alone.size, -1)]),
    )


def require_distinct(path: Path, users: NDArray[np.int64], what: str) -> None:
    """Raise `DataError` for the first line whose user is that of an earlier one, and already has `what`."""
    _, first = np.unique(users, return_index=True)
    if first.size < users.size:
        again = int(np.setdiff1d(np.arange(users.size), first)[0])
        raise DataError(f"user {users[again]} already has {what}", path, again + 1)


def read_id_lists(path: Path, separators: str = " \t") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read lines of one or more integers. Return all integers, int64 (total,), and the count per line, int64 (lines,).

    separators: characters that separate numbers, in any number. Raises `DataError`, with the line number, for a
    malformed or blank line.
    """
    blanks = bytes.maketrans(separators.encode(), b" " * len(separators))
    numbers, lengths = array("q"), array("q")
    for chunk in chunks(path, quoted=False):
        for line, text in enumerate(chunk.data.translate(blanks).split(b"\n")[:-1], start=chunk.line):
            words = text.split()
            if not words:
                raise DataError("a blank line in the middle of the file", path, line)
            if not b"".join(words).isdigit() or max(map(len, words)) > _LONGEST:
                wrong = next(word for word in words if not word.isdigit() or len(word) > _LONGEST).decode()[:40]
                raise DataError(f"not a whole number of at least 0: {wrong!r}", path, line)
            numbers.extend(map(int, words))
            lengths.append(len(words))
    return np.array(numbers, np.int64), np.array(lengths, np.int64)


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
    and, optionally, one for the rating. In a task with a catalogue the column has the app's ids. n_items: number of
    items of the task, if it is known. any_id: whether ids are accepted that no catalogue is at hand for: only the form
    of the file is checked then, and the numbers of the result mean nothing. on_unknown: "skip" leaves out items that
    the task does not have. Raises `DataError` with the line number for any other content, including a repeated item and
    one outside 0..n_items-1.
    """
    rows = _rows(path, "item", "rating")
    items: dict[int, int] = {}
    ratings: list[float] = []
    texts: dict[str, int] = {}
    unknown = 0
    headed = rows[0][0] > 1  # ids need a heading, or they could be one
    for line, (text, *rating) in rows:
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
        ratings += [_rating(path, line, text) for text in rating]
    numbers = np.fromiter(items, dtype=np.int32, count=len(items))
    return History(numbers, np.array(ratings, dtype=np.float32) if ratings else None, unknown)


def read_titles(path: Path) -> dict[int, str]:
    """Return item number -> title from a table with headings for both, such as `item` and `title`.

    Raises `DataError` with the line number if the file is malformed.
    """
    return {_item(path, line, text): title for line, (text, title) in _rows(path, "item", "title", is_needed=True)}


def _rows(path: Path, first: Role, second: Role, is_needed: bool = False) -> list[tuple[int, list[str]]]:
    """Return the number of each line and its fields in the column of `first` and, if there is one, of `second`.

    A file with a single column of numbers does not need a header, unless both columns are needed.
    """
    text = b"".join(chunk.data for chunk in chunks(path)).decode()
    try:
        rows = small_table(text.splitlines(keepends=True), str(path))
        places = columns_of(rows[0][1])
    except ParameterError as error:
        raise DataError(str(error).removeprefix(f"{path}, "), path) from None
    if not is_needed and len(rows[0][1]) == 1 and rows[0][1][0].isdigit():
        return [(line, [",".join(row)]) for line, row in rows]
    for role in (first, second):
        if role not in places and (role == first or is_needed):
            prefix = "not " if is_needed else "neither an item number nor "
            raise DataError(f"{prefix}a header with a column named {role!r}, or a usual heading for it", path, 1)
    for line, row in rows:
        if len(row) != len(rows[0][1]):
            raise DataError(f"the line has {len(row)} fields, but the header has {len(rows[0][1])}", path, line)
    if len(rows) == 1:
        raise DataError("the file has a header but no lines", path)
    return [(line, [row[places[role]] for role in (first, second) if role in places]) for line, row in rows[1:]]


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
