"""Reader of tables with polars (the extra `data`): text in chunks of whole rows, parquet by columns.

polars leaves short lines unmentioned and drops a quote inside a quoted field. A chunk whose separators or quotes do not
fit what polars made of it is read by the csv module, which takes about ten times as long and names the line.

Of each row, 4 bytes are kept for an id or a rating and 8 for a time, and each distinct id once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_sdk.lab.data.chunks import Chunk, chunks, csv_rows
from client_sdk.lab.data.columns import DATE, Columns, Role, Roles, TextTable, label_of, resolve
from client_sdk.lab.data.interactions import DataError, Duplicates, Interactions

LONGEST_FIELD: Final = 255  # bytes
_LARGEST: Final = {"rating": float(np.finfo(np.float32).max), "time": 2.0**62}
_SLICE: Final = 1 << 18  # rows of a parquet file that are converted at once
_TIMES: Final = ("T%H:%M:%S%.f%#z", "T%H:%M%#z", "T%H:%M:%S%.f", "T%H:%M", "")  # what follows the date
_UNIT: Final = "\x1f"  # ASCII's unit separator stands for `::`, because polars splits at single bytes

Locate = Callable[[int], int]
"""A function from the number of a row of a part to its last line in the file."""


@dataclass
class TableRows:
    """Collects the rows of a file part by part. roles, header: for the errors, which name the column."""

    path: Path
    roles: Roles
    header: Sequence[str] | None
    integer_ids: bool = False
    _parts: dict[Role, list[pl.Series]] = field(default_factory=dict)
    _categories: dict[Role, pl.Categories] = field(default_factory=dict)
    _dates: bool | None = None  # whether times are dates; None before the first

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(map(len, self._parts.get("user", ())))

    def add(self, role: Role, texts: pl.Series, line_of: Locate) -> None:
        """Add a column of the next rows, in text.

        Raises `DataError`, with line and column, for an empty field, a long id, and a rating or time that is none.
        """
        texts = texts.str.strip_chars()

        def check(good: pl.Series, problem: str) -> None:
            if not good.all(ignore_nulls=False):
                row = int((~good.fill_null(False)).arg_max() or 0)
                raise self.error(role, line_of(row), f"the {role} {problem}".format(text=(texts[row] or "")[:40]))

        check(texts.is_not_null(), "is missing")
        check(texts != "", "is empty")
        if role == "time" and self._dates is None and len(texts):
            self._dates = DATE.fullmatch(texts[0]) is not None
        if role == "time" and self._dates:
            part = _parsed_dates(texts)
            check(part.is_not_null(), "is not a date and time as in ISO 8601: {text!r}")
        elif role in ("rating", "time"):
            values = texts.cast(pl.Float64, strict=False)
            check(values.is_finite(), "is not a number: {text!r}")
            check(values.abs() <= _LARGEST[role], "is too large: {text!r}")
            if role == "rating":
                part = values.cast(pl.Float32)
            else:
                part = texts.cast(pl.Int64, strict=False).fill_null(values.floor().cast(pl.Int64))
        else:
            check(texts.str.len_bytes() <= LONGEST_FIELD, f"has more than {LONGEST_FIELD} bytes")
            if self.integer_ids:
                whole = texts.str.contains(r"^(0|[1-9]\d{0,17})$")
                check(whole, "must be a whole number of at least 0, got {text!r}")
            part = texts.cast(pl.Categorical(self._categories.setdefault(role, pl.Categories.random())))
        self._parts.setdefault(role, []).append(part)

    def error(self, role: Role, line: int | None, problem: str) -> DataError:
        """Return an error that names the column of `role`."""
        place = self.roles[role]
        name = str(place) if self.header is None else repr(self.header[place])
        return DataError(problem, self.path, line, f"{name} ({role})")

    def ids(self, role: Role) -> NDArray[np.int64]:
        """Return the integer ids of `role`, int64 (rows,), which are given up."""
        distinct, codes = self._numbered(role)
        return np.asarray(distinct[codes], dtype=np.int64)

    def numbers(self, role: Role) -> NDArray[Any] | None:
        """Return the ratings, float32 (rows,), or times, int64 (rows,), which are given up; None without them."""
        parts = self._parts.pop(role, None)
        return None if parts is None else np.concatenate([part.to_numpy() for part in parts])

    def interactions(self, duplicates: Duplicates) -> Interactions:
        """Return the collected rows, which are given up. Raises `DataError` for repeated pairs on "error"."""
        user_ids, users = self._numbered("user")
        item_ids, items = self._numbered("item")
        ratings, times = self.numbers("rating"), self.numbers("time")
        try:
            return Interactions.from_pairs(
                users,
                items,
                n_users=user_ids.size,
                n_items=item_ids.size,
                ratings=ratings,
                timestamps=times,
                user_ids=user_ids,
                item_ids=item_ids,
                duplicates=duplicates,
            )
        except DataError as error:
            raise DataError(error.problem, self.path) from error

    def _numbered(self, role: Role) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Return the distinct ids, int64 or str (ids,), ascending, and the number of each row's, int32 (rows,).

        Ids are integers if all are in their shortest form, otherwise text.
        """
        column = pl.concat(self._parts.pop(role))
        distinct = column.unique()
        known, codes = distinct.cast(pl.String), distinct.to_physical().to_numpy()
        whole = known.cast(pl.Int64, strict=False)
        ids = whole if (whole.cast(pl.String) == known).all(ignore_nulls=False) else known
        order = ids.arg_sort().to_numpy()
        number = np.zeros(int(codes.max()) + 1, np.int32)
        number[codes[order]] = np.arange(order.size, dtype=np.int32)
        names = ids.to_numpy()[order]
        return names if names.dtype.kind == "i" else names.astype(np.str_), number[column.to_physical().to_numpy()]


def read_text(path: Path, table: TextTable, columns: Columns | None, *, integer_ids: bool = False) -> TableRows:
    """Return the rows of a table in text. columns, integer_ids: as in `read_data_file`.

    Raises `DataError`, with line and column, for a line with another number of fields than most, and as `add` does.
    """
    roles = resolve(path, columns, table.header, table.rows)
    collected = TableRows(path, roles, table.header, integer_ids)
    skipped = 0 if table.header is None else 1
    label = label_of(table.header or ()) if columns is None else None
    for chunk in chunks(path):
        frame, line_of = _frame(path, chunk, table, skipped)
        for role, place in roles.items():
            collected.add(role, frame.to_series(place), line_of)
        if label is not None:
            _refuse_label(path, table.header or (), label, frame.to_series(label))
        skipped = 0
    return collected


def read_parquet(path: Path, columns: Columns | None, *, integer_ids: bool = False) -> TableRows:
    """Return the rows of a parquet file, read one column at a time. columns: as in `read_data_file`.

    Raises `DataError` for a damaged file, a column that the file does not have or of a type that cannot be read, and a
    missing value.
    """
    try:
        header = tuple(pl.read_parquet_schema(path))
        collected = TableRows(path, resolve(path, columns, header, [header]), header, integer_ids)
        if columns is None and (label := label_of(header)) is not None:
            _refuse_label(path, header, label, pl.read_parquet(path, columns=[header[label]], glob=False).to_series())
        for role, place in collected.roles.items():
            column = pl.read_parquet(path, columns=[header[place]], glob=False).to_series()
            for start in range(0, len(column), _SLICE):
                texts = _as_text(collected, role, column.slice(start, _SLICE))
                collected.add(role, texts, partial(operator.add, start + 1))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"not a readable parquet file: {str(error).splitlines()[0]}", path) from error
    return collected


def _frame(path: Path, chunk: Chunk, table: TextTable, skipped: int) -> tuple[pl.DataFrame, Locate]:
    """Return the fields of a chunk after `skipped` rows, all as text, and a function from a row to its last line."""
    separator = table.separator
    if len(separator) > 1:
        chunk, separator = replace(chunk, data=chunk.data.replace(separator.encode(), _UNIT.encode())), _UNIT
    quoted = table.quoted and b'"' in chunk.data

    def rows() -> Iterator[tuple[int, list[str]]]:
        return csv_rows(path, chunk, separator, table.quoted)

    def line_of(row: int) -> int:
        return next(islice(rows(), row + skipped, None))[0] if quoted else chunk.line + row + skipped

    frame = _parsed(chunk.data, separator, table.width, quoted)
    if frame is None:
        checked = []
        for line, row in rows():
            if len(row) != table.width:
                problem = f"the line has {len(row)} fields, but most lines have {table.width}"
                raise DataError(problem if "".join(row).strip() else "a blank line", path, line)
            checked.append(row)
        frame = pl.DataFrame(checked, [str(place) for place in range(table.width)], orient="row")
    return frame[skipped:], line_of


def _parsed(data: bytes, separator: str, width: int, quoted: bool) -> pl.DataFrame | None:
    """Return the fields as polars reads them. None if it cannot, if a line is short, or for a quote inside a field."""
    if quoted and not _are_quotes_proper(data, separator):
        return None
    try:
        frame = pl.read_csv(
            data,
            has_header=False,
            separator=separator,
            quote_char='"' if quoted else None,
            schema={str(place): pl.String for place in range(width)},
            empty_string_is_null=False,
        )
    except pl.exceptions.PolarsError:
        return None
    inside = frame.select(pl.all().str.count_matches(separator, literal=True).sum()).row(0) if quoted else ()
    return frame if data.count(separator.encode()) == (width - 1) * frame.height + sum(inside) else None


def _are_quotes_proper(data: bytes, separator: str) -> bool:
    """Return whether each quote opens a field, closes it, or is one of a pair in a quoted field, as in RFC 4180."""
    text = np.frombuffer(b"\n" + data, np.uint8)
    places = np.flatnonzero(text == ord('"'))
    if places.size % 2:
        return False
    before, after = text[places[::2] - 1], text[places[1::2] + 1]
    outside = [ord(separator), ord("\n"), ord('"')]
    return bool(np.isin(before, outside).all() and np.isin(after, [*outside, ord("\r")]).all())


def _refuse_label(path: Path, header: Sequence[str], place: int, column: pl.Series) -> None:
    """Raise `DataError` for a column of zeros and ones: an item with 0 was shown to the user, and not clicked."""
    kind = column.dtype
    if not (kind.is_numeric() or isinstance(kind, pl.String | pl.Boolean)):
        return
    texts = column.str.strip_chars() if isinstance(kind, pl.String) else column
    values = texts.cast(pl.Float64, strict=False)
    if values.is_in([0.0]).any() and values.fill_null(-1.0).is_in([0.0, 1.0]).all():
        raise DataError(
            f"the column {header[place]!r} holds 0 and 1, and lines with 0 are usually no interactions: keep only "
            "those with 1, or say with --columns user=...,item=... that all lines count",
            path,
        )


def _as_text(rows: TableRows, role: Role, column: pl.Series) -> pl.Series:
    """Return part of a column of a parquet file as the text that a CSV file would have; dates as microseconds."""
    kind = column.dtype
    if role == "time" and isinstance(kind, (pl.Date, pl.Datetime)):
        column = column.cast(pl.Datetime("us")).to_physical()
    elif role in ("rating", "time") and not (kind.is_numeric() or (role == "time" and isinstance(kind, pl.String))):
        raise rows.error(role, None, f"the {role} has type {kind}, which is no number")
    elif role in ("user", "item") and not (kind.is_integer() or isinstance(kind, (pl.String, pl.Categorical, pl.Enum))):
        raise rows.error(role, None, f"the {role} has type {kind}; ids are integers or text")
    return column.cast(pl.String)


def _parsed_dates(texts: pl.Series) -> pl.Series:
    """Return microseconds since 1970, int64; null for texts that are no date. A time without an offset is in UTC."""
    texts = texts.str.replace(" ", "T", literal=True)
    found = pl.Series(dtype=pl.Int64).extend_constant(None, len(texts))
    for time in _TIMES:
        if found.null_count():
            parsed = texts.str.to_datetime(f"%Y-%m-%d{time}", strict=False, time_unit="us", time_zone="UTC")
            found = found.fill_null(parsed.to_physical())
    return found
