"""The reader of files of interactions: recognises the format, reads it in bounded memory, and says what it found.

It reads tables in text (CSV, TSV, `::`, semicolons, bars, blanks; with or without a header), lists of items by user
(LightGCN) and parquet, plain or gzip. Ids of any kind are numbered from 0; `Interactions` keeps the ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from client_sdk.data.chunks import chunks
from client_sdk.data.columns import Columns, resolve
from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Duplicates, Interactions
from client_sdk.data.lightgcn import read_lightgcn
from client_sdk.data.parquet import is_parquet, read_parquet
from client_sdk.data.rows import CollectedRows
from client_sdk.data.sniff import IdLists, sniff
from client_sdk.data.text_table import read_batches

__all__ = ["DataFile", "read_data_file", "read_rows"]


@dataclass(frozen=True, eq=False)
class DataFile:
    """A file of interactions that was read. format: in words. columns: None for lists of ids."""

    path: Path
    format: str
    columns: Columns | None
    rows: int
    interactions: Interactions

    def __str__(self) -> str:
        """Return what was found, for people: counts, format, columns, kinds of ids, range of times, repeated pairs."""
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
        return "; ".join(parts)


def read_data_file(
    path: Path, columns: Columns | None = None, *, duplicates: Duplicates = "last", integer_ids: bool = False
) -> DataFile:
    """Read the interactions of a file.

    columns: which to read; by default usual headings are recognised, and a table without a header has user, item, then
    rating and time. duplicates: what to do with repeated pairs. integer_ids: whether an id that is not an integer of at
    least 0 is an error. Ids are integers if all of the column are, written without leading zeros, otherwise text. Times
    are rounded down to integers. Raises `DataError`, with line and column, for a malformed file.
    """
    found = _id_lists(path) if columns is None and not is_parquet(path) else None
    if found is not None:
        return found
    rows, form = read_rows(path, columns, integer_ids=integer_ids)
    header = rows.header
    names = {
        role: place if header is None or header.count(header[place]) > 1 else header[place]
        for role, place in rows.roles.items()
    }
    return DataFile(path, form, Columns(**names), rows.count, rows.interactions(duplicates))


def read_rows(path: Path, columns: Columns | None = None, *, integer_ids: bool = False) -> tuple[CollectedRows, str]:
    """Return the rows of a table, and its format in words. Parameters and errors: as for `read_data_file`."""
    if is_parquet(path):
        return read_parquet(path, columns, integer_ids=integer_ids), "parquet"
    pieces = chunks(path)
    first = next(pieces)
    table = sniff(path, first, columns)
    if isinstance(table, IdLists):
        raise DataError(f"not a table: it looks like {table}", path)
    roles = resolve(path, columns, table.header, table.rows)
    collected = CollectedRows(path, roles, table.header, integer_ids)
    for batch in read_batches(path, chain([first], pieces), table, roles):
        collected.add_cells(batch.cells, batch.line_of)
    if not collected.count:
        raise DataError("the file has a header but no lines", path)
    return collected, str(table)


def _id_lists(path: Path) -> DataFile | None:
    """Return the file if it consists of lists of ids, otherwise None."""
    pieces = chunks(path)
    table = sniff(path, next(pieces))
    pieces.close()
    if not isinstance(table, IdLists):
        return None
    (lists,) = read_lightgcn(path)
    return DataFile(path, str(table), None, lists.size, lists)
