"""What a file is: a table in text and what separates its columns, JSON lines, parquet, or lists of items by user."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from client_sdk.lab.data.chunks import Chunk, chunks
from client_sdk.lab.data.columns import LISTS, Columns, is_small, is_value
from client_sdk.lab.data.interactions import DataError
from protocols.headings import recognise

SEPARATORS: Final = {"\t": "tabs", "::": "double colons", ",": "commas", ";": "semicolons", "|": "bars", " ": "blanks"}
"""Separators that are recognised, and their names."""
_SAMPLE_BYTES: Final = 1 << 20
_SAMPLE: Final = 64  # rows
_MOST_COLUMNS: Final = 4  # of a table of whole numbers between blanks
_OTHERS: Final = (
    (r"\s*\[\s*(\{.*)?$", "a JSON array: write an object a line: python -c 'import json, sys; [print(json.dumps(row)) "
     "for row in json.load(sys.stdin)]' < FILE > new.jsonl"),
    (r"\s*\{.*'.*:", "lines of Python, not JSON: convert them: python -c 'import ast, json, sys; "
     "[print(json.dumps(ast.literal_eval(line))) for line in sys.stdin]' < FILE > new.jsonl"),
    (r"\s*\{", "not JSON lines: write one whole JSON object on each line"),
    (r"\s*[([]\s*['\"\w]+\s*,.*[)\]]", "lines of Python, not a table: tr -d '()[] \"'\"'\" < FILE > new.csv"),
    (r"(?i)\s*(insert\s+into|create\s+table|drop\s+table|--|/\*|begin;|set\s)", "an SQL dump: export the table as CSV"),
    (r"(?i)@relation", "an ARFF file: keep its data: sed '1,/^@data/Id' FILE > new.csv"),
    (r"%%MatrixMarket", "a MatrixMarket file: it begins with a comment and the sizes: "
     "grep -v '^%' FILE | tail -n +2 > new.txt"),
    (r"[%#]", "it begins with a comment: delete such lines: grep -v '^[%#]' FILE > new.txt"),
    (r"\s*\|.*\|\s*$", "a Markdown table: sed '/^|[-: |]*$/d; s/^ *| *//; s/ *| *$//; s/ *| */,/g' FILE > new.csv"),
    (r"\s*<", "a web page or XML, not a table: export the table as CSV"),
    (r"sep=.\s*$", "its first line names the separator, for Excel: delete that line: tail -n +2 FILE > new.csv"),
    (r"\d+:\s*$", "ratings below a line for each film, as of the Netflix Prize: write the film into each line: "
     "awk -F: 'BEGIN {print \"item,user,rating,date\"} /:/ {item = $1; next} {print item \",\" $0}' FILE > new.csv"),
    (r"\S+( \d+:\S+)+\s*$", "a libFM or libSVM file: write user,item,rating as CSV"),
    (r'[^"\r]*\r.', "its lines end with carriage returns alone: tr '\\r' '\\n' < FILE > new.csv"),
)  # fmt: skip
"""Patterns of a first line that no table has, and what such a file is."""


@dataclass(frozen=True)
class Layout:
    """What a file is."""

    kind: Literal["text", "json", "parquet", "lists"]
    header: tuple[str, ...] | None
    """The headings, or None."""
    rows: Sequence[Sequence[str]]
    """The first rows without the header, as text."""
    separator: str = ""
    """That of a table in text."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.header or self.rows[0])

    @property
    def quoted(self) -> bool:
        """Whether fields may be quoted as in RFC 4180: with one separating character that is no blank."""
        return self.kind == "text" and _may_quote(self.separator)

    def __str__(self) -> str:
        """Return the format in words."""
        if self.kind == "text":
            return f"separated by {SEPARATORS[self.separator]}, {'a' if self.header else 'no'} header"
        return {"json": "JSON lines", "parquet": "parquet", "lists": "a user and the items on each line"}[self.kind]


def layout_of(path: Path, columns: Columns | None = None, beside_lists: bool = False) -> Layout:
    """Return what a text file is, from its first lines.

    columns: what the caller wants to read. beside_lists: whether the other file of a given split is one of lists.
    Raises `DataError` for a format that is named in `_OTHERS`, and where no separator fits or two fit equally.
    """
    pieces = chunks(path, _SAMPLE_BYTES)
    first = Chunk(b"".join(piece.data for piece in islice(pieces, 2)), 1)  # a last line without an end comes second
    pieces.close()
    lines = first.data.decode().split("\n", _SAMPLE)[:_SAMPLE]
    if not lines[-1]:
        del lines[-1]
    if lines[0].lstrip().startswith("{") and (objects := _objects(lines)):
        header = tuple(dict.fromkeys(key for row in objects for key in row))
        return Layout("json", header, [[_text(row.get(key)) for key in header] for row in objects])
    for pattern, what in _OTHERS:
        if columns is None and re.match(pattern, lines[0]):
            raise DataError(what.replace("FILE", shlex.quote(str(path))), path, 1)
    if columns is not None and columns.item == LISTS:
        return Layout("lists", None, [line.split() for line in lines])
    if columns is None and _are_lists(path, lines, beside_lists):
        return Layout("lists", None, [line.split() for line in lines])
    separator, rows = _separated(path, first, lines)
    headed = _has_header(rows, columns)
    return Layout("text", tuple(rows[0]) if headed else None, rows[1:] if headed else rows, separator)


def _objects(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects of JSON lines; none if the first is no JSON object on a line of its own."""
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found if all(isinstance(each, dict) for each in found) else []


def _text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _may_quote(separator: str) -> bool:
    return len(separator) == 1 and separator != " "


def _separated(path: Path, first: Chunk, lines: Sequence[str]) -> tuple[str, list[list[str]]]:
    """Return what separates the columns, and the first rows.

    It is what splits most lines into the same number of fields, also the first; of several, what makes headings of the
    first that are known, what has quotes around fields, and what makes most columns.
    """
    quotes = any('"' in line for line in lines)
    fits = {}
    for separator in SEPARATORS:
        rows = _rows(first, lines, separator)
        width = Counter(map(len, rows)).most_common(1)[0][0]
        if width > 1:
            alike = sum(len(row) == width for row in rows) / len(rows)
            known = {"user", "item"} <= set(map(recognise, rows[0]))
            is_first, is_quoted = len(rows[0]) == width, quotes and _may_quote(separator)
            fit = known, alike, is_first, is_quoted, separator == "::", width, separator != " "
            fits[separator] = fit, rows
    names = ", ".join(SEPARATORS.values())
    if not fits:
        raise DataError(f"cannot tell what separates the columns: expected {names}", path, 1)
    best = max(fits, key=lambda separator: fits[separator][0])
    fit, rows = fits[best]
    equal = [SEPARATORS[other] for other in fits if fits[other][0] == fit]
    if len(equal) > 1:
        raise DataError(f"{' and '.join(equal)} split the lines equally well: use tabs", path, 1)
    width = fit[5]
    if best == " " and any("" in row for row in rows):
        command = f"sed 's/^ *//; s/  */ /g' {shlex.quote(str(path))} > new.txt"
        raise DataError(f"several blanks stand between columns: make them one: {command}", path, 1)
    named = next((n for n, line in enumerate(lines) if {"user", "item"} <= set(map(recognise, line.split(best)))), 0)
    if named or not fit[2]:
        problem = f"the line has {len(rows[0])} fields, but most lines have {width}"
        if named:
            command = f"tail -n +{named + 1} {shlex.quote(str(path))} > new.csv"
            problem = f"the headings are on line {named + 1}: delete what is above: {command}"
        raise DataError(problem, path, 1)
    return best, [[field.strip() for field in row] for row in rows if len(row) == width]


def _rows(first: Chunk, lines: Sequence[str], separator: str) -> list[list[str]]:
    """Return the first rows; where fields are not quoted properly for the separator, they end with an empty one."""
    if not _may_quote(separator):
        return [line.removesuffix("\r").split(separator) for line in lines]
    rows = []
    reader = csv.reader(io.StringIO(first.data.decode(), newline="\n"), delimiter=separator, strict=True)
    try:
        for row in islice(reader, _SAMPLE):
            rows += [row] if row else []
    except csv.Error:
        rows.append([])
    return rows


def _are_lists(path: Path, lines: Sequence[str], beside_lists: bool) -> bool:
    """Return whether each line is a user and the user's items, whole numbers between blanks.

    Evidence that no table has: users ascend, and lines have different lengths or more than four numbers, in this file
    or the one beside it. Raises `DataError` for lines that begin with the number of items, as in CiteULike.
    """
    rows = [line.split() for line in lines if "\t" not in line]
    if len(rows) < len(lines) or not all(word.isascii() and word.isdigit() for row in rows for word in row):
        return False
    users, lengths = [int(row[0]) for row in rows if row], {len(row) for row in rows}
    if any(not row for row in rows) or users != sorted(set(users)):
        return False
    if beside_lists:
        return True
    if len(lengths) == 1 and 2 * sum(len(set(row[1:])) < len(row) - 1 for row in rows) > len(rows):
        return False  # of a matrix
    if len(lengths) > 1 and all(user == len(row) - 1 for user, row in zip(users, rows, strict=True)):
        raise DataError("each line begins with the number of its items, not with a user: number the lines", path, 1)
    return len(lengths) > 1 or max(lengths) > _MOST_COLUMNS


def _has_header(rows: Sequence[Sequence[str]], columns: Columns | None) -> bool:
    """Return whether the first row is a header.

    It is if a column is given by its heading, if it numbers columns of other values, as pandas does, and if no field of
    it is a number or date, and one is a usual heading or stands above numbers or dates.
    """
    first, below = rows[0], rows[1:]
    if columns is not None and any(isinstance(column, str) for column in vars(columns).values()):
        return True
    numbers = first[1:] if first[0] == "" else first  # pandas leaves out the heading of its index
    if numbers == [str(place) for place in range(len(numbers))]:  # no row of data, if a column has other values
        return any(not all(map(is_small, column)) for column in zip(*below, strict=False))
    if any(map(is_value, first)):
        return {"user", "item"} <= set(map(recognise, first))
    above = any(
        2 * sum(is_value(row[place]) for row in below if len(row) > place) >= len(below) > 0
        for place in range(len(first))
    )
    return above or any(map(recognise, first))
