"""The reader of files of interactions: recognises the format, reads it in bounded memory, and says what it found.

It reads tables in text (CSV, TSV, `::`, semicolons, bars, blanks; with or without a header), lists of items by user
(LightGCN) and parquet, plain or gzip. Ids of any kind are numbered from 0; `Interactions` keeps the ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from client_sdk.data.columns import Columns, is_value
from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Duplicates, Interactions
from client_sdk.data.lightgcn import read_lightgcn
from client_sdk.data.sniff import IdLists, TextTable, sniff

if TYPE_CHECKING:
    from client_sdk.data.tables import TableRows

__all__ = ["DataFile", "read_data_file", "read_rows"]

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
        from client_sdk.data.tables import read_parquet, read_text
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
