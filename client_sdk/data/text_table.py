"""Reader of tables in text: CSV, TSV, `::` and others, plain or gzip, in bounded memory and without a loop over rows.

A file without quotes is split with numpy, a chunk at a time. From the first chunk with a quote on, the csv module
splits it, which takes about three times as long.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Final

from client_sdk.data.cells import Cells, gather, split_lines, text_cells
from client_sdk.data.chunks import Chunk
from client_sdk.data.columns import Role, Roles
from client_sdk.data.errors import DataError
from client_sdk.data.rows import column_name
from client_sdk.data.sniff import TextTable

__all__ = ["Batch", "read_batches"]

LONGEST_FIELD: Final = 255
_ROWS: Final = 100_000  # of a batch that the csv module splits


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a table: the fields of each role, and a function from the number of a row to its line."""

    cells: dict[Role, Cells]
    line_of: Callable[[int], int]


def read_batches(path: Path, pieces: Iterator[Chunk], table: TextTable, roles: Roles) -> Iterator[Batch]:
    """Yield the rows of a table, without its header, in order.

    pieces: all chunks of the file. Raises `DataError`, with line and column, for a line with another number of fields
    than the first and for a field of more than 255 bytes.
    """
    has_header = table.header is not None
    for chunk in pieces:
        if table.quoted and b'"' in chunk.data:
            yield from _quoted(path, chain([chunk], pieces), table, roles, has_header)
            return
        if has_header:
            has_header = False
            chunk = Chunk(chunk.data[chunk.data.index(b"\n") + 1 :], chunk.line + 1)
        if chunk.data:
            yield _plain(path, chunk, table, roles)


def _plain(path: Path, chunk: Chunk, table: TextTable, roles: Roles) -> Batch:
    spans, wrong = split_lines(chunk.data, table.separator.encode(), table.width, list(roles.values()))
    if wrong is not None:
        line = chunk.data.split(b"\n", wrong + 1)[wrong]
        fields = line.count(table.separator.encode()) + 1 if line.strip() else 0
        raise _wrong_width(path, chunk.line + wrong, fields, table)
    for (role, place), (starts, ends) in zip(roles.items(), spans, strict=True):
        long = (ends - starts) > LONGEST_FIELD
        if long.any():
            raise _too_long(path, chunk.line + int(long.argmax()), table, role, place)
    cells = {role: gather(chunk.data, span) for role, span in zip(roles, spans, strict=True)}
    return Batch(cells, lambda row: chunk.line + row)


def _quoted(path: Path, pieces: Iterator[Chunk], table: TextTable, roles: Roles, has_header: bool) -> Iterator[Batch]:
    line = 0  # the lines before the first of `pieces`

    def lines() -> Iterator[str]:
        nonlocal line
        first = next(pieces)
        line = first.line - 1
        for chunk in chain([first], pieces):
            yield from io.StringIO(chunk.data.decode(), newline="")

    reader = csv.reader(lines(), delimiter=table.separator, strict=True)
    try:
        if has_header:
            next(reader)
        while True:
            before = reader.line_num
            rows = list(islice(reader, _ROWS))
            if not rows:
                return
            yield _batch(path, rows, line + before, table, roles)
    except csv.Error as error:
        raise DataError(f"not a CSV line: {error}", path, line + reader.line_num) from error


def _batch(path: Path, rows: Sequence[Sequence[str]], before: int, table: TextTable, roles: Roles) -> Batch:
    def line_of(number: int) -> int:  # the line on which the row ends: a quoted field may span lines
        return before + sum(1 + sum(field.count("\n") for field in row) for row in rows[: number + 1])

    widths = list(map(len, rows))
    if widths.count(table.width) < len(rows):
        number = next(number for number, width in enumerate(widths) if width != table.width)
        raise _wrong_width(path, line_of(number), widths[number], table)
    columns = list(zip(*rows, strict=True))
    for role, place in roles.items():
        if max(map(len, columns[place])) > LONGEST_FIELD:
            number = next(number for number, field in enumerate(columns[place]) if len(field) > LONGEST_FIELD)
            raise _too_long(path, line_of(number), table, role, place)
    return Batch({role: text_cells(columns[place]) for role, place in roles.items()}, line_of)


def _wrong_width(path: Path, line: int, fields: int, table: TextTable) -> DataError:
    if not fields:
        return DataError("a blank line", path, line)
    return DataError(f"the line has {fields} fields, but most lines have {table.width}", path, line)


def _too_long(path: Path, line: int, table: TextTable, role: Role, place: int) -> DataError:
    return DataError(f"a field of more than {LONGEST_FIELD} bytes", path, line, column_name(table.header, role, place))
