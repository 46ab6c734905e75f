"""Reader of tables with polars (the extra `data`): text and JSON in chunks of whole rows, parquet by slices of rows.

Of each row, 4 or 8 bytes are kept for an id, 4 for a rating and 8 for a time, and each distinct id once. Rows that
cannot be read are counted and left out; whether that is an error is decided at the end of the file.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from client_sdk.lab.data.chunks import Chunk, chunks, read_id_lists, require_distinct, rows_of
from client_sdk.lab.data.columns import GUESTS, NO_VALUE, NUMBER, Columns
from client_sdk.lab.data.interactions import DataError, Duplicates, Interactions
from client_sdk.lab.data.layouts import Layout
from client_sdk.lab.data.roles import Roles, marks_of, require_taken, roles_of
from protocols.headings import ColumnRole

LONGEST_FIELD: Final = 255  # bytes
_LARGEST: Final = {"rating": float(np.finfo(np.float32).max), "time": 2.0**62, "quantity": 2.0**31}
_SLICE: Final = 1 << 18  # rows of a parquet file that are converted at once
_ISO: Final = ("%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M%#z", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
_CLOCKS: Final = ("", " %H:%M:%S", " %H:%M", " %I:%M:%S %p", " %I:%M %p")
_FORMS: Final = (_ISO, ("%a %b %d %H:%M:%S %z %Y",), *(tuple(form + clock for clock in _CLOCKS) for form in (
    "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d.%m.%Y", "%B %d, %Y", "%d/%B/%Y", "%d %B %Y",
)))  # fmt: skip
"""Forms of dates with `/` for `-`, but in ISO 8601; day first and month first are told apart by days after the 12th."""
_READ: Final = "2025-12-31 18:30:00+01:00, 31.12.2025 18:30, 12/31/2025 6:30 PM, Dec 31, 2025"
_UNIT: Final = "\x1f"  # ASCII's unit separator stands for `::`, because polars splits at single bytes
_FORMS_OF: Final = (str, str.upper, str.title)
_MISSING: Final = [form(text) for text in NO_VALUE for form in _FORMS_OF] + ["NaN", "N/A", "<NA>"]
_NOBODY: Final = _MISSING + [form(text) for text in GUESTS for form in _FORMS_OF]
_IDS: Final[tuple[ColumnRole, ...]] = ("user", "item")
_NUMBERS: Final[tuple[ColumnRole, ...]] = ("quantity", "rating", "time")
_NO_ID: Final = r"""^(\[\s*(["'\d\[{-].*)?\]|\{\s*".*\})$"""  # of JSON
_SHORTENED: Final = r"^\d([.,]\d{1,9})?E\+\d\d$"  # of articles' numbers (EAN) many have the same
_NO_INTEGER: Final = "must be a whole number of at least 0, got {}"
_LISTED: Final = 20  # rows that were left out
_MANY: Final = 30  # ratings, which are marks if all are 0 or 1
_MOST_MARKS: Final = 6  # different ratings, above which they are none

Lines = NDArray[np.int64] | range
"""The line of each row of a part in the file; of parquet the row, from 1."""


@dataclass
class TableRows:
    """Collects the rows of a file part by part."""

    path: Path
    layout: Layout
    roles: Roles
    why: str
    integer_ids: bool = False
    categories: dict[ColumnRole, pl.Categories] = field(
        default_factory=lambda: {r: pl.Categories.random() for r in _IDS}
    )
    """Number the ids; files that share them can be numbered together."""
    itemless: Sequence[int] = ()
    """Users of lists without items."""
    count: int = 0
    """Number of rows that were read."""
    bad: int = 0
    left_out: list[DataError] = field(default_factory=list)
    """Line, column and fault of the first rows that were not, of `bad` rows in all."""
    dates: bool | None = None
    """Whether times are dates, in microseconds; None before the first."""
    ids: dict[ColumnRole, list[pl.Series]] = field(default_factory=dict)
    _numbers: dict[ColumnRole, list[NDArray[Any]]] = field(default_factory=dict)
    _formats: tuple[str, ...] = ()

    def add(self, frame: pl.DataFrame, lines: Lines) -> None:
        """Add the next rows: a column of text for each role."""
        good, values = np.ones(frame.height, dtype=bool), dict[ColumnRole, pl.Series]()
        faults: dict[int, tuple[ColumnRole, str]] = {}
        for role in self.roles:
            values[role], problem = self._read(role, frame[role])
            wrong = values[role].is_null().to_numpy() & good
            good &= ~wrong
            faults |= dict.fromkeys(np.flatnonzero(wrong)[:_LISTED].tolist(), (role, problem))
        for row in sorted(faults)[:_LISTED]:
            role, problem = faults[row]
            self.leave_out(int(lines[row]), _fault(role, frame[role][row], problem), role)
        self.bad += int(np.count_nonzero(~good)) - min(len(faults), _LISTED)
        for role, column in values.items():
            kept = column if good.all() else column.filter(pl.Series(good))
            if role in _IDS:
                small = kept.cast(pl.Int32, strict=False) if kept.dtype.is_integer() else self.categorical(role, kept)
                self.ids.setdefault(role, []).append(kept if small.null_count() else small)
            else:
                self._numbers.setdefault(role, []).append(kept.to_numpy())
        self.count += int(np.count_nonzero(good))

    def categorical(self, role: ColumnRole, values: pl.Series) -> pl.Series:
        """Return ids as text of which each is kept once."""
        return values.cast(pl.String).cast(pl.Categorical(self.categories[role]))

    def leave_out(self, line: int, problem: str, role: ColumnRole | None = None) -> None:
        """Count a row that cannot be read."""
        self.bad += 1
        if len(self.left_out) < _LISTED:
            self.left_out.append(DataError(problem, self.path, line, None if role is None else self.column(role)))

    def column(self, role: ColumnRole) -> str:
        """Return the name of a role's column, for errors."""
        place, header = self.roles[role], self.layout.header
        return f"{place if header is None else repr(header[place])} ({role})"

    def _read(self, role: ColumnRole, texts: pl.Series) -> tuple[pl.Series, str]:
        """Return the values of a column, null where they cannot be read, and why they could not."""
        if role in _IDS:
            return self._read_ids(role, texts)
        if role == "time":
            return self._read_times(texts)
        numbers = _numbers_of(texts)
        kind = pl.Float32 if role == "rating" else pl.Float64
        return _without(numbers, numbers.abs() > _LARGEST[role]).cast(kind), "is not a number: {}"

    def _read_ids(self, role: ColumnRole, texts: pl.Series) -> tuple[pl.Series, str]:
        if all(part.dtype.is_integer() for part in self.ids.get(role, ())[-1:]):
            numbers = texts.cast(pl.Int64, strict=False)
            if not numbers.null_count() and (numbers.cast(pl.String) == texts).all():
                return _without(numbers, (numbers < 0) & self.integer_ids), _NO_INTEGER
        texts = texts.str.strip_chars()
        if self.integer_ids:
            return _without(texts, ~texts.str.contains(r"^(0|[1-9]\d{0,17})$")), _NO_INTEGER
        wrong = texts.is_in(_NOBODY if role == "user" else _MISSING) | (texts.str.len_bytes() > LONGEST_FIELD)
        wrong |= texts.str.contains(_SHORTENED)
        if self.layout.header is not None and self.layout.kind == "text":
            wrong |= texts == self.layout.header[self.roles[role]]
        elif self.layout.kind == "json":
            wrong |= texts.str.contains(_NO_ID)
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
            self.dates = NUMBER.fullmatch(first) is None
        if not self.dates:
            return numbers, "is not a number: {}"
        self._formats = self._formats or self._formats_of(texts.drop_nulls().str.strip_chars())
        if not self._formats:
            return _without(numbers, numbers.is_null() | True), f"is neither a number nor a date as in {_READ}: {{}}"
        return _parsed_dates(texts, self._formats), "is not a date and time like those of the first rows: {}"

    def _formats_of(self, plain: pl.Series) -> tuple[str, ...]:
        """Return the formats of the dates, none if no form fits. Raises `DataError` if day and month are not clear."""
        read = {form: _parsed_dates(plain, form).is_not_null() for form in _FORMS}
        best = max(_FORMS, key=lambda form: read[form].sum())
        if not read[best].any():
            return ()
        others = [found for form, found in read.items() if form is not best]
        if all(found.sum() < read[best].sum() and not (found & ~read[best]).any() for found in others):
            return best
        which = "could be day/month or month/day" if read[best].all() else "are neither day/month nor month/day"
        left = ",".join(str(role) + f"={self.name(role)}" for role in self.roles if role != "time")
        raise DataError(
            f"the dates {which} throughout, such as {plain[0]!r}: write them as 2025-12-31, or leave the time out: "
            f"--columns {shlex.quote(left)}", self.path, None, self.column("time"),
        )  # fmt: skip

    def name(self, role: ColumnRole) -> int | str:
        """Return the heading of a role's column; its number if there is none, or another of that name."""
        place, header = self.roles[role], self.layout.header
        return place if header is None or header.count(header[place]) > 1 else header[place]

    def numbers(self, role: ColumnRole) -> NDArray[Any] | None:
        """Return the ratings, float32 (rows,), or times, int64 (rows,), which are given up; None without them."""
        parts = self._numbers.pop(role, None)
        return None if parts is None else np.concatenate(parts)


def _numbered(files: Sequence[TableRows], role: ColumnRole) -> tuple[NDArray[np.str_], list[NDArray[np.int32]]]:
    """Return the distinct ids of all files as text, and the number of each row's, int32 (rows,) for each file.

    Integers are in their order, text in that of its characters. The ids of the files are given up.
    """
    parts = [rows.ids.pop(role) for rows in files]
    itemless = [pl.Series(rows.itemless, dtype=pl.Int64) for rows in files if role == "user"]
    if all(part.dtype.is_integer() for each in parts for part in each):
        numbers = np.concatenate([*(part for each in parts for part in each), *itemless])
        least, most = int(numbers.min()), int(numbers.max())
        if most - least > 4 * numbers.size + 1024:
            values, codes = np.unique(numbers, return_inverse=True)
        else:
            number = np.zeros(most - least + 1, np.int32)
            number[numbers - least] = 1
            values = np.flatnonzero(number) + least
            codes = (np.cumsum(number, dtype=np.int32) - 1)[numbers - least]
        ends = np.cumsum([sum(map(len, each)) for each in parts])
        return values.astype(np.str_), np.split(codes.astype(np.int32, copy=False), ends)[: len(parts)]
    texts = partial(files[0].categorical, role)
    as_texts = [[part if isinstance(part.dtype, pl.Categorical) else texts(part) for part in each] for each in parts]
    wholes = [pl.concat(each) for each in as_texts]
    more = [texts(each) for each in itemless]
    distinct = pl.concat([each.unique() for each in [*wholes, *more]]).unique()
    names = distinct.cast(pl.String)
    order = names.arg_sort().to_numpy()
    number = np.zeros(int(distinct.to_physical().to_numpy().max(initial=0)) + 1, np.int32)
    number[distinct.to_physical().to_numpy()[order]] = np.arange(order.size, dtype=np.int32)
    return names.to_numpy()[order].astype(np.str_), [number[each.to_physical().to_numpy()] for each in wholes]


def interactions_of(files: Sequence[TableRows], duplicates: Duplicates) -> list[Interactions]:
    """Return the rows of files that share their categories, with one numbering of users and items.

    The rows are given up. Raises `DataError` for repeated pairs on "error".
    """
    (user_ids, all_users), (item_ids, all_items) = (_numbered(files, role) for role in _IDS)
    found = []
    for rows, users, items in zip(files, all_users, all_items, strict=True):
        quantities, ratings, times = (rows.numbers(role) for role in _NUMBERS)
        returned = 0
        if quantities is not None and (quantities <= 0).any():
            kept, returned = _kept(users, items, quantities)
            users, items = users[kept], items[kept]
            ratings, times = (None if column is None else column[kept] for column in (ratings, times))
        try:
            made = Interactions.from_pairs(
                users, items, n_users=user_ids.size, n_items=item_ids.size, ratings=ratings, timestamps=times,
                user_ids=user_ids, item_ids=item_ids, duplicates=duplicates, returned=returned,
            )  # fmt: skip
        except DataError as error:
            raise DataError(error.problem, rows.path) from error
        found.append(made)
    return found


def _fault(role: ColumnRole, text: str | None, problem: str) -> str:
    plain = (text or "").strip()
    if not plain:
        return f"the {role} is {'missing' if text is None else 'empty'}"
    if role in _IDS and not problem:
        if len(plain.encode()) > LONGEST_FIELD:
            return f"the {role} has more than {LONGEST_FIELD} bytes"
        if plain in (_NOBODY if role == "user" else _MISSING):
            return f"the {role} is missing: {plain!r}"
        if re.match(_SHORTENED, plain):
            return f"the {role} is a number that a spreadsheet has cut: {plain!r}; save the column as text"
        if plain[0] in "[{":
            return f"the {role} is a list or an object, not an id: {plain[:40]!r}; write each on a line of its own"
        return f"the {role} is the heading again: {plain!r}"
    if problem.startswith("is not a number") and NUMBER.fullmatch(plain) and abs(float(plain)) > 1:
        return f"the {role} is too large: {plain[:40]!r}"
    if role == "time" and re.match(r"(\d\d?[-./]\d\d?|\d\d?-[A-Za-z]{3}|[A-Za-z]{3}-\d\d?)[-./]\d\d\b", plain):
        return f"the time has a year of two digits: {plain[:40]!r}; write all four"
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


def _parsed_dates(texts: pl.Series, formats: Sequence[str]) -> pl.Series:
    """Return microseconds since 1970, int64; null for texts that are no date. A time without an offset is in UTC."""
    texts = texts.str.strip_chars()
    if formats is _ISO:
        texts = texts.str.replace(r" ?(UTC|GMT)$", "Z").str.replace(" ", "T", literal=True)
        texts = texts.str.replace(" ", "", literal=True).str.replace(",", ".", literal=True)
    else:
        texts = texts.str.replace(r"^(\d\d?)-(\w+)-(\d{4})", "${1}/${2}/${3}")
        texts = _without(texts, ~texts.str.contains(r"(^|[^\d+:])\d{4}(\D|$)"))  # %Y would read 25 as the year 25
    found = pl.Series(dtype=pl.Int64).extend_constant(None, len(texts))
    for form in formats:
        if found.null_count():
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


# --- the four kinds of files ------------------------------------------------------------------------------------------


def read_table(
    path: Path,
    layout: Layout,
    columns: Columns | None,
    integer_ids: bool = False,
    beside: TableRows | None = None,
) -> TableRows:
    """Return the rows of a file. columns, integer_ids: as in `read_data_file`. beside: of a file with the same ids.

    Raises `DataError` for columns that are not named or not there, and for a file that cannot be read at all.
    """
    places, why = ({"user": 0, "item": 1}, "") if layout.kind == "lists" else roles_of(path, layout, columns)
    rows = TableRows(path, layout, cast(Roles, places), why, integer_ids)
    rows.categories = rows.categories if beside is None else beside.categories
    said = [*marks_of(layout.header or ()), *(rows.roles[role] for role in rows.roles if role == "rating")]
    marks: dict[int, set[str]] = {place: set() for place in said} if columns is None and layout.header else {}
    names = {place: f"mark {place}" for place in marks} | {place: str(role) for role, place in rows.roles.items()}
    parts = {"text": _text_parts, "json": _json_parts, "parquet": _parquet_parts, "lists": _list_parts}[layout.kind]
    for frame, lines in parts(rows, names):
        rows.add(frame, lines)
        for place, seen in marks.items():
            if len(seen) < (_MOST_MARKS if names[place] == "rating" else _LISTED):
                seen |= set(frame[names[place]].unique().drop_nulls().str.strip_chars().str.to_lowercase())
    if rows.count < _MANY or len(marks.get(rows.roles.get("rating", -1), ())) < 2:
        marks.pop(rows.roles.get("rating", -1), None)
    require_taken(path, layout, rows.roles, marks)
    return rows


def _list_parts(rows: TableRows, _names: dict[int, str]) -> Iterator[tuple[pl.DataFrame, Lines]]:
    numbers, lengths = read_id_lists(rows.path)
    starts = np.cumsum(lengths) - lengths
    owners = numbers[starts]
    require_distinct(rows.path, owners, "a line")
    rows.itemless = owners[lengths == 1].tolist()
    items = pl.Series(np.delete(numbers, starts))
    table = pl.DataFrame({"user": pl.Series(np.repeat(owners, lengths - 1)), "item": items}).cast(pl.String)
    yield table, np.repeat(np.arange(lengths.size) + 1, lengths - 1)


def _text_parts(rows: TableRows, names: dict[int, str]) -> Iterator[tuple[pl.DataFrame, Lines]]:
    layout, separator, skipped = rows.layout, rows.layout.separator, int(rows.layout.header is not None)
    for chunk in chunks(rows.path, quoted=layout.quoted):
        data = chunk.data
        if len(separator) > 1:
            data = data.replace(separator.encode(), _UNIT.encode())
        single = _UNIT if len(separator) > 1 else separator
        found, lines, wrong = rows_of(rows.path, Chunk(data, chunk.line), single, layout.width, layout.quoted)
        for line, problem in wrong:
            rows.leave_out(line, problem)
        try:
            frame = pl.read_csv(
                found,
                has_header=False,
                separator=single,
                quote_char='"' if b'"' in found and (layout.quoted or found is not data) else None,
                schema={names.get(place, f"-{place}"): pl.String for place in range(layout.width)},
                columns=sorted(names),
                empty_string_is_null=False,
            )
        except pl.exceptions.PolarsError as error:
            raise DataError(f"not a readable table: {str(error).splitlines()[0]}", rows.path, chunk.line) from error
        if frame.height != len(lines):
            raise DataError("the lines of this part of the file cannot be told apart", rows.path, chunk.line)
        yield frame[skipped:], lines[skipped:]
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
    if name.startswith("mark"):
        return column.cast(pl.String, strict=False) if not kind.is_nested() else pl.repeat("", len(column), eager=True)
    is_id = name in _IDS
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
