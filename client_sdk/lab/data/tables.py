"""Reader of tables with polars (the extra `data`): text and JSON in chunks of whole rows, parquet by slices of rows.

Of each row, 4 or 8 bytes are kept for an id, 4 for a rating and 8 for a time, and each distinct id once. Rows that
cannot be read are counted and left out; whether that is an error is decided at the end of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_sdk.lab.data.chunks import Chunk, chunks, rows_of
from client_sdk.lab.data.columns import DATE, NO_VALUE, NUMBER, Columns, Layout, Roles, label_of, roles_of
from client_sdk.lab.data.interactions import DataError, Duplicates, Interactions
from protocols.headings import Role

LONGEST_FIELD: Final = 255  # bytes
_LARGEST: Final = {"rating": float(np.finfo(np.float32).max), "time": 2.0**62, "quantity": 2.0**31}
_SLICE: Final = 1 << 18  # rows of a parquet file that are converted at once
_ISO: Final = ("%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M%#z", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
_CLOCKS: Final = (" %H:%M:%S", " %H:%M", "")
_DAY_FIRST: Final = tuple(f"%d/%m/%Y{clock}" for clock in _CLOCKS)
_MONTH_FIRST: Final = tuple(f"%m/%d/%Y{clock}" for clock in _CLOCKS)
_DOTTED: Final = tuple(f"%d.%m.%Y{clock}" for clock in _CLOCKS)
_SPELT: Final = ("%a %b %d %H:%M:%S %z %Y",)
_UNIT: Final = "\x1f"  # ASCII's unit separator stands for `::`, because polars splits at single bytes
_MISSING: Final = [form(text) for text in NO_VALUE for form in (str, str.upper, str.title)] + ["NaN", "N/A", "<NA>"]
_NO_INTEGER: Final = "must be a whole number of at least 0, got {}"
_LISTED: Final = 20  # rows that were left out

Lines = NDArray[np.int64] | range
"""The line of each row of a part in the file; of parquet the row, from 1."""


@dataclass
class _Ids:
    """The ids of one column: as integers as long as all are in their shortest form, otherwise as text."""

    whole: bool = True
    parts: list[Any] = field(default_factory=list)
    categories: pl.Categories = field(default_factory=pl.Categories.random)

    def add(self, values: pl.Series) -> None:
        if self.whole and not values.dtype.is_integer():
            self.whole = False
            self.parts = [self._categorical(pl.Series(part)) for part in self.parts]
        if not self.whole:
            self.parts.append(self._categorical(values))
            return
        numbers = values.to_numpy()
        small = not numbers.size or (numbers.min() >= -(2**31) and numbers.max() < 2**31)
        self.parts.append(numbers.astype(np.int32 if small else np.int64))

    def _categorical(self, values: pl.Series) -> pl.Series:
        return values.cast(pl.String).cast(pl.Categorical(self.categories))

    def numbered(self) -> tuple[NDArray[np.str_], NDArray[np.int32]]:
        """Return the distinct ids as text, and the number of each row's, int32 (rows,); the parts are given up.

        Integers are in their order, text in that of its characters.
        """
        parts, self.parts = self.parts, []
        if not self.whole:
            column = pl.concat(parts)
            distinct = column.unique()
            codes, names = distinct.to_physical().to_numpy(), distinct.cast(pl.String)
            order = names.arg_sort().to_numpy()
            number = np.zeros(int(codes.max()) + 1, np.int32)
            number[codes[order]] = np.arange(order.size, dtype=np.int32)
            return names.to_numpy()[order].astype(np.str_), number[column.to_physical().to_numpy()]
        numbers = np.concatenate(parts)
        del parts
        least, most = int(numbers.min()), int(numbers.max())
        if most - least > 4 * numbers.size + 1024:
            values, codes = np.unique(numbers, return_inverse=True)
            return values.astype(np.str_), codes.astype(np.int32)
        number = np.zeros(most - least + 1, np.int32)
        number[numbers - least] = 1
        values = np.flatnonzero(number) + least
        np.cumsum(number, out=number)
        return values.astype(np.str_), number[numbers - least] - 1


def _digits(numbers: NDArray[np.int64]) -> int:
    """Return the length of all numbers in their shortest form."""
    sizes, total = np.abs(numbers), numbers.size + int(np.count_nonzero(numbers < 0))
    for power in range(1, len(str(int(sizes.max(initial=0))))):
        total += int(np.count_nonzero(sizes >= 10**power))
    return total


@dataclass
class TableRows:
    """Collects the rows of a file part by part.

    count: number of rows that were read. left_out: line, column and fault of the first rows that were not, of
    `bad` rows in all.
    """

    path: Path
    layout: Layout
    roles: Roles
    why: str
    integer_ids: bool = False
    count: int = 0
    bad: int = 0
    left_out: list[DataError] = field(default_factory=list)
    _ids: dict[Role, _Ids] = field(default_factory=lambda: {"user": _Ids(), "item": _Ids()})
    _numbers: dict[Role, list[NDArray[Any]]] = field(default_factory=dict)
    dates: bool | None = None
    """Whether times are dates, in microseconds; None before the first."""
    _formats: tuple[str, ...] = _ISO

    def add(self, frame: pl.DataFrame, lines: Lines) -> None:
        """Add the next rows: a column of text for each role."""
        good, values = np.ones(frame.height, dtype=bool), dict[Role, pl.Series]()
        faults: dict[int, tuple[Role, str]] = {}
        for role in self.roles:
            values[role], problem = self._read(role, frame[role])
            wrong = values[role].is_null().to_numpy() & good
            good &= ~wrong
            faults |= dict.fromkeys(np.flatnonzero(wrong)[:_LISTED].tolist(), (role, problem))
        for row in sorted(faults)[:_LISTED]:
            role, problem = faults[row]
            self.leave_out(int(lines[row]), _fault(role, frame[role][row], problem), role)
        self.bad += int(np.count_nonzero(~good)) - min(len(faults), _LISTED)
        if not good.all():
            values = {role: column.filter(pl.Series(good)) for role, column in values.items()}
        for role, column in values.items():
            if role in self._ids:
                self._ids[role].add(column)
            else:
                self._numbers.setdefault(role, []).append(column.to_numpy())
        self.count += int(np.count_nonzero(good))

    def leave_out(self, line: int, problem: str, role: Role | None = None) -> None:
        """Count a row that cannot be read."""
        self.bad += 1
        if len(self.left_out) < _LISTED:
            self.left_out.append(DataError(problem, self.path, line, None if role is None else self.column(role)))

    def column(self, role: Role) -> str:
        """Return the name of a role's column, for errors."""
        place, header = self.roles[role], self.layout.header
        return f"{place if header is None else repr(header[place])} ({role})"

    def _read(self, role: Role, texts: pl.Series) -> tuple[pl.Series, str]:
        """Return the values of a column, null where they cannot be read, and why they could not."""
        if role in self._ids:
            return self._read_ids(role, texts)
        if role == "time":
            return self._read_times(texts)
        numbers = _numbers_of(texts)
        return _without(numbers, numbers.abs() > _LARGEST[role]).cast(
            pl.Float32 if role == "rating" else pl.Float64
        ), "is not a number: {}"

    def _read_ids(self, role: Role, texts: pl.Series) -> tuple[pl.Series, str]:
        for plain in (texts, texts.str.strip_chars()):
            if self._ids[role].whole:
                numbers = plain.cast(pl.Int64, strict=False)
                if not numbers.null_count() and _digits(numbers.to_numpy()) == plain.str.len_bytes().sum():
                    return _without(numbers, numbers < (0 if self.integer_ids else -(2**63))), _NO_INTEGER
        texts = texts.str.strip_chars()
        if self.integer_ids:
            return _without(texts, ~texts.str.contains(r"^(0|[1-9]\d{0,17})$")), _NO_INTEGER
        wrong = texts.is_in(_MISSING) | (texts.str.len_bytes() > LONGEST_FIELD)
        if self.layout.header is not None and self.layout.kind == "text":
            wrong |= texts == self.layout.header[self.roles[role]]
        return _without(texts, wrong), ""

    def _read_times(self, texts: pl.Series) -> tuple[pl.Series, str]:
        numbers = texts.cast(pl.Int64, strict=False)
        if self.layout.kind == "parquet" and not numbers.null_count():
            return numbers, ""
        if numbers.null_count() and not self.dates:
            wide = _numbers_of(texts)
            wide = _without(wide, wide.abs() > _LARGEST["time"])
            numbers = numbers.fill_null(wide.floor().cast(pl.Int64, strict=False))
        if self.dates is None and len(texts):
            first = next(filter(None, texts.head(_LISTED).fill_null("").str.strip_chars()), "")
            self.dates = DATE.fullmatch(first) is not None
        if not self.dates:
            return numbers, "is not a number: {}"
        if self._formats is _ISO:
            self._formats = _formats_of(texts, self)
        return _parsed_dates(texts, self._formats), "is not a date and time like those of the first rows: {}"

    def numbers(self, role: Role) -> NDArray[Any] | None:
        """Return the ratings, float32 (rows,), or times, int64 (rows,), which are given up; None without them."""
        parts = self._numbers.pop(role, None)
        return None if parts is None else np.concatenate(parts)

    def ids(self, role: Role) -> NDArray[np.int64]:
        """Return the integer ids of `role`, int64 (rows,), which are given up."""
        names, codes = self._ids[role].numbered()
        return names.astype(np.int64)[codes]

    def interactions(self, duplicates: Duplicates) -> Interactions:
        """Return the collected rows, which are given up. Raises `DataError` for repeated pairs on "error"."""
        user_ids, users = self._ids["user"].numbered()
        item_ids, items = self._ids["item"].numbered()
        quantities, ratings, times = self.numbers("quantity"), self.numbers("rating"), self.numbers("time")
        returned = 0
        if quantities is not None and (quantities <= 0).any():
            kept, returned = _kept(users, items, quantities)
            users, items = users[kept], items[kept]
            ratings, times = (None if column is None else column[kept] for column in (ratings, times))
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
                returned=returned,
            )
        except DataError as error:
            raise DataError(error.problem, self.path) from error


def _fault(role: Role, text: str | None, problem: str) -> str:
    plain = (text or "").strip()
    if text is None:
        return f"the {role} is missing"
    if not plain:
        return f"the {role} is empty"
    if role in ("user", "item") and not problem:
        if len(plain.encode()) > LONGEST_FIELD:
            return f"the {role} has more than {LONGEST_FIELD} bytes"
        if plain in _MISSING:
            return f"the {role} is missing: {plain!r}"
        return f"the {role} is the heading again: {plain!r}"
    if problem.startswith("is not a number") and NUMBER.fullmatch(plain) and abs(float(plain)) > 1:
        return f"the {role} is too large: {plain[:40]!r}"
    return f"the {role} {problem.format(repr(plain[:40]))}"


def _numbers_of(texts: pl.Series) -> pl.Series:
    """Return the numbers, float64; null for what is none. `4,5` is one, `4,500` is not: it could be thousands."""
    numbers = texts.cast(pl.Float64, strict=False)
    if numbers.null_count():
        plain = texts.str.strip_chars().str.replace(r"^([+-]?\d+),(\d{1,2}|\d{4,})$", "$1.$2")
        numbers = plain.cast(pl.Float64, strict=False)
    return _without(numbers, ~numbers.is_finite())


def _without(values: pl.Series, wrong: pl.Series) -> pl.Series:
    """Return values with null where they are wrong."""
    return pl.select(pl.when(wrong.fill_null(value=False).not_()).then(values)).to_series()


def _formats_of(texts: pl.Series, rows: TableRows) -> tuple[str, ...]:
    """Return the formats of the first dates. Raises `DataError` if day and month cannot be told apart."""
    plain = texts.drop_nulls().str.strip_chars()
    if plain.str.contains("/", literal=True).any():
        fits = [form for form in (_DAY_FIRST, _MONTH_FIRST) if not _parsed_dates(plain, form).null_count()]
        if len(fits) != 1:
            which = "could be day/month or month/day" if fits else "are neither day/month nor month/day throughout"
            raise DataError(
                f"the dates {which}, such as {plain[0]!r}: write them as 2025-12-31, or name no time with --columns",
                rows.path,
                None,
                rows.column("time"),
            )
        return fits[0]
    return _DOTTED if "." in plain[0][:3] else _SPELT if plain[0][0].isalpha() else (*_ISO, "")


def _parsed_dates(texts: pl.Series, formats: Sequence[str]) -> pl.Series:
    """Return microseconds since 1970, int64; null for texts that are no date. A time without an offset is in UTC."""
    texts = texts.str.strip_chars()
    if formats[0] == _ISO[0]:
        texts = texts.str.replace(r" ?(UTC|GMT)$", "Z").str.replace(" ", "T", literal=True)
        texts = texts.str.replace(" ", "", literal=True).str.replace(",", ".", literal=True)
    found = pl.Series(dtype=pl.Int64).extend_constant(None, len(texts))
    for form in formats:
        if form and found.null_count():
            parsed = texts.str.to_datetime(form, strict=False, time_unit="us", time_zone="UTC")
            found = found.fill_null(parsed.to_physical())
    return found


def _kept(
    users: NDArray[np.int32], items: NDArray[np.int32], quantities: NDArray[np.float64]
) -> tuple[NDArray[np.bool_], int]:
    """Return which rows were bought and not returned, and the number of pairs of which nothing remains."""
    keys = users.astype(np.int64) << 32 | items
    pairs, codes = np.unique(keys, return_inverse=True)
    gone = np.bincount(codes, quantities, pairs.size) <= 0
    return (quantities > 0) & ~gone[codes], int(np.count_nonzero(gone))


# --- the three kinds of tables ---------------------------------------------------------------------------------------


def read_table(path: Path, layout: Layout, columns: Columns | None, *, integer_ids: bool = False) -> TableRows:
    """Return the rows of a table. columns, integer_ids: as in `read_data_file`.

    Raises `DataError` for columns that are not named or not there, and for a file that cannot be read at all.
    """
    rows = TableRows(path, layout, *roles_of(path, layout, columns), integer_ids)
    label = label_of(layout.header or ()) if columns is None else None
    names = {place: str(role) for role, place in rows.roles.items()}
    if label is not None:
        names.setdefault(label, "label")
    parts = {"text": _text_parts, "json": _json_parts, "parquet": _parquet_parts}[layout.kind]
    marks: set[float | None] = set()
    for frame, lines in parts(rows, names):
        rows.add(frame, lines)
        if label is not None and len(marks) < 3:
            said = frame[names[label]].str.strip_chars().str.to_lowercase().replace({"true": "1", "false": "0"})
            marks |= set(said.cast(pl.Float64, strict=False).unique().to_list())
    if label is not None and 0.0 in marks and marks <= {0.0, 1.0}:
        raise DataError(
            f"the column {(layout.header or ())[label]!r} holds 0 and 1, and lines with 0 are usually no interactions: "
            "keep only those with 1, or say with --columns user=...,item=... that all lines count",
            path,
        )
    return rows


def _text_parts(rows: TableRows, names: dict[int, str]) -> Iterator[tuple[pl.DataFrame, Lines]]:
    layout, separator, skipped = rows.layout, rows.layout.separator, int(rows.layout.header is not None)
    for chunk in chunks(rows.path, quoted=layout.quoted):
        data = chunk.data
        if len(separator) > 1:
            data = data.replace(separator.encode(), _UNIT.encode())
        single = _UNIT if len(separator) > 1 else separator
        found = rows_of(rows.path, Chunk(data, chunk.line), single, layout.width, layout.quoted)
        for line, problem in found.wrong:
            rows.leave_out(line, problem)
        try:
            frame = pl.read_csv(
                found.data,
                has_header=False,
                separator=single,
                quote_char='"' if layout.quoted and b'"' in found.data else None,
                schema={names.get(place, f"-{place}"): pl.String for place in range(layout.width)},
                columns=sorted(names),
                empty_string_is_null=False,
            )
        except pl.exceptions.PolarsError as error:
            raise DataError(f"not a readable table: {str(error).splitlines()[0]}", rows.path, chunk.line) from error
        if frame.height != len(found.lines):
            raise DataError("the lines of this part of the file cannot be told apart", rows.path, chunk.line)
        yield frame[skipped:], found.lines[skipped:]
        skipped = 0


def _json_parts(rows: TableRows, names: dict[int, str]) -> Iterator[tuple[pl.DataFrame, Lines]]:
    header = rows.layout.header or ()
    schema = {header[place]: pl.String for place in names}
    for chunk in chunks(rows.path, quoted=False):
        data, lines = chunk.data, np.arange(chunk.data.count(b"\n")) + chunk.line
        try:
            frame = pl.read_ndjson(data, schema=schema)
        except pl.exceptions.PolarsError:
            frame = pl.DataFrame(schema=schema)
        if frame.height != len(lines):
            kept = []
            for line, text in zip(lines.tolist(), data.split(b"\n"), strict=False):
                try:
                    if isinstance(json.loads(text), dict):
                        kept.append((line, text))
                        continue
                    problem = "not a JSON object"
                except ValueError as error:
                    problem = f"not JSON: {error}" if text.strip() else "a blank line"
                rows.leave_out(line, problem)
            lines = np.array([line for line, _ in kept], np.int64)
            frame = pl.read_ndjson(b"\n".join(text for _, text in kept), schema=schema) if kept else frame
        yield frame.rename({header[place]: name for place, name in names.items()}), lines


def layout_of_parquet(path: Path) -> Layout:
    """Return the headings and the first rows of a parquet file. Raises `DataError` for a damaged one."""
    try:
        head = pl.read_parquet(path, n_rows=_LISTED, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"not a readable parquet file: {str(error).splitlines()[0]}", path) from error
    return Layout("parquet", tuple(head.columns), [["" if v is None else str(v) for v in row] for row in head.rows()])


def _parquet_parts(rows: TableRows, names: dict[int, str]) -> Iterator[tuple[pl.DataFrame, Lines]]:
    header = rows.layout.header or ()
    try:
        table = pl.read_parquet(rows.path, columns=[header[place] for place in names], glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"not a readable parquet file: {str(error).splitlines()[0]}", rows.path) from error
    for start in range(0, max(table.height, 1), _SLICE):
        part = table.slice(start, _SLICE)
        columns = [_as_text(rows, name, part[header[place]]).alias(name) for place, name in names.items()]
        yield pl.DataFrame(columns), range(start + 1, start + 1 + part.height)


def _as_text(rows: TableRows, name: str, column: pl.Series) -> pl.Series:
    """Return part of a column of a parquet file as the text that a CSV file would have; dates as microseconds."""
    kind = column.dtype
    if name == "time" and isinstance(kind, (pl.Date, pl.Datetime)):
        rows.dates = True
        return column.cast(pl.Datetime("us")).to_physical().cast(pl.String)
    if name == "label" and isinstance(kind, pl.Boolean):
        return column.cast(pl.Int8).cast(pl.String)
    is_id = name in ("user", "item")
    is_text = isinstance(kind, (pl.String, pl.Categorical, pl.Enum))
    if not (is_text or (kind.is_integer() if is_id else kind.is_numeric())):
        wanted = "ids are integers or text" if is_id else "it must be a number"
        raise DataError(f"the column {column.name!r} ({name}) has type {kind}: {wanted}", rows.path)
    return column.cast(pl.String)


def write_table(found: Interactions, path: Path, dates: bool) -> None:
    """Write interactions as `write_data_file` does. dates: whether times are microseconds since 1970."""
    users, items = (ids if ids is not None else np.arange(count) for ids, count in (
        (found.user_ids, found.n_users), (found.item_ids, found.n_items),
    ))  # fmt: skip
    columns = {
        "user": users[found.users],
        "item": items[found.items],
        "rating": found.ratings,
        "time": found.timestamps,
    }
    table = pl.DataFrame({name: values for name, values in columns.items() if values is not None})
    if dates:
        table = table.with_columns(pl.col("time").cast(pl.Datetime("us")).dt.to_string("%Y-%m-%dT%H:%M:%S%.6fZ"))
    try:
        with path.open("xb") as file:
            table.write_csv(file)
    except OSError as error:
        raise DataError(f"cannot write the file: {error.strerror or error}", path) from error
