"""Recognises the format of a text file of interactions from its first lines."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_sdk.data.chunks import Chunk
from client_sdk.data.columns import NUMBER, Columns, recognise
from client_sdk.data.errors import DataError

__all__ = ["SEPARATORS", "IdLists", "TextTable", "sniff"]

SEPARATORS: Final = {"\t": "tabs", "::": "double colons", ",": "commas", ";": "semicolons", "|": "bars", " ": "blanks"}
"""Separators that are recognised, and their names. If two fit, the first is chosen."""
_SAMPLE: Final = 64  # lines
_MOST_COLUMNS: Final = 4  # of a table of whole numbers between blanks


@dataclass(frozen=True)
class TextTable:
    """A table in text. header: the headings, or None. width: fields of a line. rows: the first rows without header."""

    separator: str
    header: tuple[str, ...] | None
    width: int
    rows: Sequence[Sequence[str]]

    @property
    def quoted(self) -> bool:
        """Whether fields may be quoted as in RFC 4180: with one separating character that is no blank."""
        return len(self.separator) == 1 and self.separator != " "

    def __str__(self) -> str:
        """Return the format in words."""
        return f"separated by {SEPARATORS[self.separator]}, {'a' if self.header else 'no'} header"


@dataclass(frozen=True)
class IdLists:
    """Lines of a user followed by items, as in the files of LightGCN."""

    def __str__(self) -> str:
        """Return the format in words."""
        return "a user and the items on each line"


def sniff(path: Path, first: Chunk, columns: Columns | None = None) -> TextTable | IdLists:
    """Return the format of a file from its first lines.

    columns: what the caller wants to read: the file is a table, and its first line is the header if one is given by its
    heading. Raises `DataError` if no separator is found.
    """
    lines = first.data[: 1 << 20].decode(errors="ignore").split("\n")[:-1][:_SAMPLE]
    if columns is None and _are_id_lists(lines):
        return IdLists()
    found = {separator: _rows(lines, separator) for separator in SEPARATORS}
    widths = {separator: _width(rows) for separator, rows in found.items()}
    best = max(SEPARATORS, key=lambda separator: widths[separator][:2])  # the first of several
    alike, _, width = widths[best]
    if not alike:
        names = ", ".join(SEPARATORS.values())
        raise DataError(f"cannot tell what separates the columns: expected {names}", path, 1)
    rows = found[best]
    if len(rows[0]) != width:
        raise DataError(f"the line has {len(rows[0])} fields, but most lines have {width}", path, 1)
    header = tuple(name.strip() for name in rows[0]) if _has_header(rows, columns) else None
    return TextTable(best, header, width, rows[1:] if header else rows)


def _width(rows: Sequence[Sequence[str]]) -> tuple[float, bool, int]:
    """Return the share of rows with the most frequent number of fields, whether the first row has it, and this number.

    All are 0 if the number is 1. A share, because separators differ in rows: some split the lines of a quoted field.
    """
    counts = Counter(map(len, rows))
    if not counts:
        return 0, False, 0
    first = len(rows[0])
    width = max(counts, key=lambda width: (counts[width], width > 1, width == first))
    return (counts[width] / len(rows), width == first, width) if width > 1 else (0, False, 0)


def _rows(lines: Sequence[str], separator: str) -> list[list[str]]:
    """Return the rows of the lines; not the last one if the lines end inside a quoted field."""
    if len(separator) > 1 or separator == " ":
        return [line.removesuffix("\r").split(separator) for line in lines]
    try:
        rows = [row for row in csv.reader((f"{line}\n" for line in lines), delimiter=separator) if row]
    except csv.Error:
        return []
    is_cut = sum(line.count('"') for line in lines) % 2 == 1
    return rows[:-1] if is_cut and len(rows) > 1 else rows


def _are_id_lists(lines: Sequence[str]) -> bool:
    """Return whether the lines are whole numbers between blanks that are no table of up to 4 columns.

    They are if lines have different lengths, or more than 4 numbers, or begin with 0, 1, 2, ... in order.
    """
    rows = [line.split() for line in lines if "\t" not in line]
    if len(rows) < len(lines):
        return False
    if not all(row and all(word.isascii() and word.isdigit() for word in row) for row in rows):
        return False
    if len({len(row) for row in rows}) > 1:
        return True
    in_order = len(rows) > 1 and [int(row[0]) for row in rows] == list(range(len(rows)))
    return len(rows[0]) > _MOST_COLUMNS or in_order


def _has_header(rows: Sequence[Sequence[str]], columns: Columns | None) -> bool:
    """Return whether the first row is a header.

    It is if a column is given by its heading. Otherwise it is if no field of it is a number, and one is a usual heading
    or stands above a number.
    """
    if columns is not None and any(isinstance(column, str) for column in vars(columns).values()):
        return True
    if any(NUMBER.fullmatch(field.strip()) for field in rows[0]):
        return False
    below = rows[1] if len(rows) > 1 else ()
    return any(map(recognise, rows[0])) or any(NUMBER.fullmatch(field.strip()) for field in below)
