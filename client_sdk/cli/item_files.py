"""Files of item numbers and of titles, as people write them. Every fault is told with its line."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.errors import DataError
from client_sdk.data.files import INTEGER, read_text

__all__ = ["read_items", "read_titles"]

_ITEM: Final = "item"
_TITLE: Final = "title"
_MOST: Final = 2**31 - 1


def read_items(path: Path) -> NDArray[np.int32]:
    """Item numbers, int32 (k,), each once: one a line, or the column `item` of a CSV file with a header.

    Raises `DataError` naming the line for anything else, a repeated item included.
    """
    rows, first = _rows(path, (_ITEM,))
    items: dict[int, int] = {}
    for line, (text,) in enumerate(rows, start=first):
        item = _item(path, line, text)
        if item in items:
            raise DataError(f"item {item} stands on line {items[item]} already: list each item once", path, line)
        items[item] = line
    return np.fromiter(items, dtype=np.int32, count=len(items))


def read_titles(path: Path) -> dict[int, str]:
    """Item number -> title, of a CSV file with the columns `item` and `title`; `DataError` names the line."""
    rows, first = _rows(path, (_ITEM, _TITLE))
    titles: dict[int, str] = {}
    for line, (text, title) in enumerate(rows, start=first):
        titles[_item(path, line, text)] = title
    return titles


def _rows(path: Path, names: Sequence[str]) -> tuple[list[list[str]], int]:
    """The columns `names` of every line, and the number of the first one; a lone column needs no header."""
    text = read_text(path)
    if len(names) == 1 and INTEGER.fullmatch(text.partition("\n")[0].strip()):
        return [[line] for line in text.split("\n")[:-1]], 1
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise DataError(f"not a CSV file: {error}", path) from error
    header = [name.strip().lower() for name in rows[0]]
    for name in names:
        if header.count(name) != 1:
            lone = "neither an item number nor " if len(names) == 1 else "not "
            raise DataError(f"{lone}a header with one column named {name!r}", path, 1)
    for line, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise DataError(f"{len(row)} fields, but the header names {len(header)}", path, line)
    if len(rows) == 1:
        raise DataError("the file has a header but no lines", path)
    return [[row[header.index(name)] for name in names] for row in rows[1:]], 2


def _item(path: Path, line: int, text: str) -> int:
    text = text.strip()
    if not INTEGER.fullmatch(text):
        raise DataError(f"not an item number: {text[:40]!r}", path, line)
    if int(text) > _MOST:
        raise DataError(f"item numbers end at {_MOST}, got {text}", path, line)
    return int(text)
