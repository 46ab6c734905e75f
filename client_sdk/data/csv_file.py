"""Reader of CSV files with a header line."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.errors import DataError
from client_sdk.data.files import NUMBER, read_text
from client_sdk.data.interactions import Duplicates, Interactions

__all__ = ["CsvColumns", "read_csv"]

USUAL_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "user": ("user", "userid", "user_id"),
    "item": ("item", "itemid", "item_id", "movieid", "movie_id"),
    "rating": ("rating",),
    "timestamp": ("timestamp",),
}


@dataclass(frozen=True)
class CsvColumns:
    """Names of the columns to read; other columns are ignored.

    An optional column may be None or missing in the header.
    """

    user: str = "user"
    """Required. The user's id, any text."""
    item: str = "item"
    """Required. The item's id, any text."""
    rating: str | None = "rating"
    """Optional. A number."""
    timestamp: str | None = "timestamp"
    """Optional. A number that increases with time. `leave_one_out` holds out the latest interaction."""
    delimiter: str = ","
    """One character that separates fields."""


def read_csv(path: Path, columns: CsvColumns | None = None, *, duplicates: Duplicates = "last") -> Interactions:
    """Read the interactions of a CSV file (RFC 4180 quoting, plain or gzip).

    columns: the headings. By default the file may use any of these, in upper or lower case: user, userId or user_id;
    item, itemId, item_id, movieId or movie_id; rating; timestamp. duplicates: what to do with repeated pairs; by
    default the last one is kept, and `merged` counts the others. Ids are integers if all values of the column are
    plain integers, otherwise text. Raises `DataError`, with the line number, for a missing column, a wrong number of
    fields, an empty id or a value that is not a number.
    """
    header, rows, lines = _rows(path, "," if columns is None else columns.delimiter)
    columns = _usual_columns(header) if columns is None else columns
    fields = list(zip(*rows, strict=True))

    def numbers(name: str | None) -> NDArray[np.float64] | None:
        if name is None or name not in header:
            return None
        return _numbers(path, name, fields[header.index(name)], lines)

    user_ids = _ids(path, columns.user, fields[_position(path, header, columns.user)], lines)
    item_ids = _ids(path, columns.item, fields[_position(path, header, columns.item)], lines)
    ratings, times = numbers(columns.rating), numbers(columns.timestamp)
    try:
        return Interactions.from_ids(
            user_ids,
            item_ids,
            ratings=ratings,
            timestamps=None if times is None else np.floor(times).astype(np.int64),
            duplicates=duplicates,
        )
    except DataError as error:
        raise DataError(error.problem, path) from error


def _usual_columns(header: list[str]) -> CsvColumns:
    """Return the usual names as the header spells them, and the default of `CsvColumns` for those not in the header."""

    def find(usual: str) -> str:
        return next((name for name in header if name.lower() in USUAL_NAMES[usual]), usual)

    return CsvColumns(*map(find, USUAL_NAMES))


def _rows(path: Path, delimiter: str) -> tuple[list[str], list[list[str]], list[int]]:
    """Return the header, the rows, and the line on which each row ends. A quoted field may span lines."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        header = [name.strip() for name in next(reader)]
        for row in reader:
            if len(row) != len(header):
                problem = f"the line has {len(row)} fields, but the header has {len(header)}" if row else "a blank line"
                raise DataError(problem, path, reader.line_num)
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"not a CSV line: {error}", path, reader.line_num) from error
    repeated = {name for name in header if header.count(name) > 1}
    if repeated:
        raise DataError(f"the header contains {sorted(repeated)[0]!r} more than once", path, 1)
    if not rows:
        raise DataError("the file has a header but no lines", path)
    return header, rows, lines


def _position(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        raise DataError(f"no column named {name!r}: the header has {', '.join(map(repr, header))}", path, 1)
    return header.index(name)


def _ids(path: Path, name: str, values: Sequence[str], lines: list[int]) -> NDArray[Any]:
    """Return int64 ids if all texts are plain integers, otherwise the texts. "7" and "007" are different ids."""
    texts = np.char.strip(np.array(values))
    empty = np.flatnonzero(texts == "")
    if empty.size:
        raise DataError(f"the {name} is empty", path, lines[empty[0]])
    try:
        integers = texts.astype(np.int64)
    except (ValueError, OverflowError):
        return texts
    return integers if np.array_equal(integers.astype(texts.dtype), texts) else texts


def _numbers(path: Path, name: str, values: Sequence[str], lines: list[int]) -> NDArray[np.float64]:
    try:
        numbers = np.array(values).astype(np.float64)
    except ValueError:
        numbers = np.full(len(values), np.nan)
    if np.isfinite(numbers).all():
        return numbers
    for value, line in zip(values, lines, strict=True):
        if not NUMBER.fullmatch(value.strip()):
            raise DataError(f"the {name} is not a number: {value[:40]!r}", path, line)
    raise DataError(f"the {name} column contains a number that is too large", path)
