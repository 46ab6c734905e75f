"""Plain CSV files with a header line that names the columns."""

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
    """The names of the columns to read; others are ignored. None, or a name the header lacks, where `optional`."""

    user: str = "user"
    """Required: the user's id, any text."""
    item: str = "item"
    """Required: the item's id, any text."""
    rating: str | None = "rating"
    """Optional: a number."""
    timestamp: str | None = "timestamp"
    """Optional: a number that grows with time; the latest interaction is held out."""
    delimiter: str = ","
    """One character."""


def read_csv(path: Path, columns: CsvColumns | None = None, *, duplicates: Duplicates = "last") -> Interactions:
    """Interactions of a CSV file (RFC 4180 quoting, gzip allowed); repeated pairs count as one and show in `merged`.

    Without `columns`, the headings are told by their usual names in any case: user, userId or user_id; item, itemId,
    item_id, movieId or movie_id; rating; timestamp. Ids are kept as integers when all of a column are plain integers,
    as text otherwise. Raises `DataError` naming the line for a missing column, a line of another length, an empty id
    or a value that is not a number.
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
    """The header's own spelling of the usual names; `CsvColumns`' default for a name that is not there."""

    def spelled(usual: str) -> str:
        return next((name for name in header if name.lower() in USUAL_NAMES[usual]), usual)

    return CsvColumns(*map(spelled, USUAL_NAMES))


def _rows(path: Path, delimiter: str) -> tuple[list[str], list[list[str]], list[int]]:
    """Header, rows and the line on which each row ends (a quoted field may span lines)."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        header = [name.strip() for name in next(reader)]
        for row in reader:
            if len(row) != len(header):
                problem = f"{len(row)} fields, but the header names {len(header)}" if row else "a blank line"
                raise DataError(problem, path, reader.line_num)
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"not a CSV line: {error}", path, reader.line_num) from error
    repeated = {name for name in header if header.count(name) > 1}
    if repeated:
        raise DataError(f"the header names {sorted(repeated)[0]!r} more than once", path, 1)
    if not rows:
        raise DataError("the file has a header but no lines", path)
    return header, rows, lines


def _position(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        raise DataError(f"no column named {name!r}: the header has {', '.join(map(repr, header))}", path, 1)
    return header.index(name)


def _ids(path: Path, name: str, values: Sequence[str], lines: list[int]) -> NDArray[Any]:
    """Text ids, or int64 when nothing is lost by it ("7" and "007" stay two ids)."""
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
    raise DataError(f"the {name} column holds a number that is too large", path)
