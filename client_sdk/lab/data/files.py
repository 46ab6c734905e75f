"""The readers of files of interactions: of a whole data set, and of one user.

That of data sets recognises the format, reads in bounded memory, and says what it found. It reads tables in text (CSV,
TSV, `::`, semicolons, bars, blanks; with or without a header), lists of items by user (LightGCN) and parquet, plain or
gzip. Ids of any kind are numbered from 0; `Interactions` keeps the ids.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.history import History
from client_sdk.lab.data.chunks import chunks, csv_rows
from client_sdk.lab.data.columns import NUMBER, Columns, IdLists, TextTable, is_value, require_columns, sniff
from client_sdk.lab.data.interactions import DataError, Duplicates, Interactions
from protocols.catalogue import Catalogue

if TYPE_CHECKING:
    from client_sdk.lab.data.tables import TableRows

_PARQUET: Final = b"PAR1"
_FEW: Final = 10  # rows, which do not tell a header from data


@dataclass(frozen=True, eq=False)
class DataFile:
    """A file of interactions that was read.

    format: in words. columns: None for lists of ids. doubt: what was assumed without evidence and how to say otherwise,
    "" for nothing.
    """

    path: Path
    format: str
    columns: Columns | None
    rows: int
    interactions: Interactions
    doubt: str = ""

    def __str__(self) -> str:
        """Return what was found, for people: counts, format, columns, ranges, repeated pairs and doubts."""
        found = self.interactions
        parts = [
            f"read {self.rows:,} rows, {found.n_users:,} users, {found.n_items:,} items from {self.path}: {self.format}"
        ]
        if self.columns is not None:
            parts.append(f"columns {self.columns}")
        if found.ratings is not None and found.size:
            parts.append(f"ratings from {found.ratings.min():g} to {found.ratings.max():g}")
        if found.timestamps is not None and found.size:
            parts.append(f"times from {found.timestamps.min()} to {found.timestamps.max()}")
        if found.merged:
            parts.append(f"{found.merged:,} repeated pairs of user and item: the last of each is used")
        if self.doubt:
            parts.append(self.doubt)
        return "; ".join(parts)


def read_data_file(
    path: Path, columns: Columns | None = None, *, duplicates: Duplicates = "last", integer_ids: bool = False
) -> DataFile:
    """Read the interactions of a file. Tables need polars, of the extra `data`; lists of ids do not.

    columns: which to read; by default usual headings are recognised, and a table without a header has user, item, then
    rating and time. duplicates: what to do with repeated pairs. integer_ids: whether an id that is not an integer of at
    least 0 is an error. Ids are integers if all of the column are, written without leading zeros, otherwise text. Times
    are rounded down to integers; dates become microseconds since 1970. Raises `DataError`, with line and column, for a
    malformed file, and for a first line of text that seems to be a header with unusual headings.
    """
    require_columns(columns)
    table = None if _is_parquet(path) else sniff(path, columns)
    if isinstance(table, IdLists):
        (lists,) = read_lightgcn(path, duplicates=duplicates)
        return DataFile(path, str(table), None, lists.size + lists.merged, lists)
    rows = _read(path, table, columns, integer_ids)
    names = {
        role: place if rows.header is None or rows.header.count(rows.header[place]) > 1 else rows.header[place]
        for role, place in rows.roles.items()
    }
    count = rows.count
    found = rows.interactions(duplicates)
    doubt = _doubt(path, table, found) if table is not None and columns is None else ""
    return DataFile(path, "parquet" if table is None else str(table), Columns(**names), count, found, doubt)


def read_rows(path: Path, columns: Columns | None = None, *, integer_ids: bool = False) -> TableRows:
    """Return the rows of a table. Parameters and errors: as for `read_data_file`."""
    require_columns(columns)
    table = None if _is_parquet(path) else sniff(path, columns)
    if isinstance(table, IdLists):
        raise DataError(f"not a table: it looks like {table}", path)
    return _read(path, table, columns, integer_ids)


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_PARQUET)) == _PARQUET
    except OSError as error:
        raise DataError(f"cannot read the file: {error.strerror or error}", path) from error


def _read(path: Path, table: TextTable | None, columns: Columns | None, integer_ids: bool) -> TableRows:
    """Return the rows of a table in text, or of a parquet file if `table` is None."""
    try:
        from client_sdk.lab.data.tables import read_parquet, read_text
    except ImportError as error:
        raise DataError("a table is read with polars: pip install 'hushrec[data]'", path) from error
    if table is None:
        rows = read_parquet(path, columns, integer_ids=integer_ids)
    else:
        rows = read_text(path, table, columns, integer_ids=integer_ids)
    if not rows.count:
        raise DataError("the file has a header but no lines", path)
    return rows


def _doubt(path: Path, table: TextTable, found: Interactions) -> str:
    """Return what to say about a first line of text that was read as data, "" if there is none.

    Raises `DataError` if it seems to be a header: the only line whose user and item occur on no other.
    """
    if table.header is not None or any(map(is_value, table.rows[0])):
        return ""
    user, item = (field.strip() for field in table.rows[0][:2])
    named = f"--columns user={user},item={item}"
    users = np.flatnonzero(found.user_degrees() == 1)
    items = found.items[found.indptr[users]]
    alone = found.item_degrees()[items] == 1
    user_ids, item_ids = np.asarray(found.user_ids)[users[alone]], np.asarray(found.item_ids)[items[alone]]
    pairs = list(zip(map(str, user_ids), map(str, item_ids), strict=True))
    if found.size >= _FEW and pairs == [(user, item)]:
        problem = f"{user!r} and {item!r} occur nowhere else, so this seems to be a header of unusual headings"
        raise DataError(
            f"{problem}: name the columns with {named}, or read it as data with --columns user=0,item=1", path, 1
        )
    return f"the first line, {user!r} and {item!r}, was read as data: if it is a header, say {named}"


# --- reader of LightGCN files: one line per user, `user item item ...`, numbered from 0, without ratings and times ---

_LONGEST: Final = 15  # digits


def read_lightgcn(*paths: Path, duplicates: Duplicates = "error") -> tuple[Interactions, ...]:
    """Return one `Interactions` for each file, for example `train.txt` and `test.txt`.

    All have the same numbers of users and items, from the largest ids in any of the files. A line may contain a user
    without items. duplicates: what to do with repeated items of a user. Raises `DataError` for a malformed or repeated
    user line, with the line number, and, by default, for a repeated item of a user.
    """
    parts = [_read_lists(path) for path in paths]
    n_users = max(int(users.max()) for users, _ in parts) + 1
    n_items = max(int(items.max(initial=-1)) for _, items in parts) + 1
    made = []
    for path, (users, items) in zip(paths, parts, strict=True):
        try:
            has = items >= 0
            made.append(
                Interactions.from_pairs(users[has], items[has], n_users=n_users, n_items=n_items, duplicates=duplicates)
            )
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
    for chunk in chunks(path):
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

_ITEM: Final = "item"
_RATING: Final = "rating"
_TITLE: Final = "title"
_INTEGER: Final = re.compile(r"\d{1,15}", re.ASCII)
_MAX_ITEM: Final = 2**31 - 1
_MAX_RATING: Final = 1e6


def read_history(
    path: Path, n_items: int | None = None, catalogue: Catalogue | None = None, any_id: bool = False
) -> History:
    """Return the items in the file, each listed once, and their ratings if the file has a column for them.

    The file has one item number a line, or is a CSV file with a header that has the column `item` and, optionally, the
    column `rating`. In a task with a catalogue the column has the app's ids. n_items: number of items of the task, if
    it is known. any_id: whether ids are accepted that no catalogue is at hand for: only the form of the file is checked
    then, and the numbers of the result mean nothing. Raises `DataError` with the line number for any other content,
    including a repeated item and one outside 0..n_items-1.
    """
    rows = _rows(path, (_ITEM,), _RATING)
    items: dict[int, int] = {}
    ratings: list[float] = []
    texts: dict[str, int] = {}
    headed = rows[0][0] > 1  # ids need a heading, or they could be one
    for line, (text, *rating) in rows:
        if catalogue is not None:
            item = catalogue.numbers.get(text.strip(), -1)
            if item < 0:
                raise DataError(f"the task's catalogue has no item with the id {text.strip()[:40]!r}", path, line)
        else:
            item = texts.setdefault(text.strip(), len(texts)) if any_id and headed else _item(path, line, text)
        if item in items:
            raise DataError(f"item {item} is already on line {items[item]}: list each item once", path, line)
        if n_items is not None and item >= n_items:
            fault = f"item {item} is outside 0..{n_items - 1}, the items of the task"
            raise DataError(f"{fault}: correct the file and run the command again", path, line)
        items[item] = line
        ratings += [_rating(path, line, text) for text in rating]
    numbers = np.fromiter(items, dtype=np.int32, count=len(items))
    return History(numbers, np.array(ratings, dtype=np.float32) if ratings else None)


def read_titles(path: Path) -> dict[int, str]:
    """Return item number -> title from a CSV file with the columns `item` and `title`.

    Raises `DataError` with the line number if the file is malformed.
    """
    return {_item(path, line, text): title for line, (text, title) in _rows(path, (_ITEM, _TITLE))}


def _rows(path: Path, names: Sequence[str], optional: str | None = None) -> list[tuple[int, list[str]]]:
    """Return the number of each line and its cells.

    The cells of a line are those of the columns `names`, followed by that of the column `optional` if there is one.
    A file with a single column does not need a header.
    """
    rows = [row for chunk in chunks(path) for row in csv_rows(path, chunk)]
    if len(names) == 1 and _INTEGER.fullmatch(",".join(rows[0][1]).strip()):
        return [(line, [",".join(row)]) for line, row in rows]
    header = [name.strip().lower() for name in rows[0][1]]
    wanted = [*names, *([optional] if optional in header else [])]
    for name in wanted:
        if header.count(name) != 1:
            prefix = "neither an item number nor " if len(names) == 1 else "not "
            raise DataError(f"{prefix}a header with one column named {name!r}", path, 1)
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"the line has {len(row)} fields, but the header has {len(header)}", path, line)
    if len(rows) == 1:
        raise DataError("the file has a header but no lines", path)
    return [(line, [row[header.index(name)] for name in wanted]) for line, row in rows[1:]]


def _item(path: Path, line: int, text: str) -> int:
    text = text.strip()
    if not _INTEGER.fullmatch(text):
        raise DataError(f"not an item number: {text[:40]!r}", path, line)
    if int(text) > _MAX_ITEM:
        raise DataError(f"item number {text} is greater than {_MAX_ITEM}", path, line)
    return int(text)


def _rating(path: Path, line: int, text: str) -> float:
    text = text.strip()
    if not (NUMBER.fullmatch(text) and abs(float(text)) <= _MAX_RATING):
        raise DataError(f"not a rating: {text[:40]!r}", path, line)
    return float(text)
