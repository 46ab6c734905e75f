"""Readers of the user's files of item numbers, ratings and titles. Every error names the line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from client_sdk.data.chunks import chunks, csv_rows
from client_sdk.data.columns import NUMBER
from client_sdk.data.errors import DataError
from client_sdk.history import History

__all__ = ["read_history", "read_titles"]

_ITEM: Final = "item"
_RATING: Final = "rating"
_TITLE: Final = "title"
_INTEGER: Final = re.compile(r"\d{1,15}", re.ASCII)
_MAX_ITEM: Final = 2**31 - 1
_MAX_RATING: Final = 1e6


def read_history(path: Path, n_items: int | None = None) -> History:
    """Return the items in the file, each listed once, and their ratings if the file has a column for them.

    The file has one item number a line, or is a CSV file with a header that has the column `item` and, optionally, the
    column `rating`. n_items: number of items of the task, if it is known. Raises `DataError` with the line number for
    any other content, including a repeated item and one outside 0..n_items-1.
    """
    rows = _rows(path, (_ITEM,), _RATING)
    items: dict[int, int] = {}
    ratings: list[float] = []
    for line, (text, *rating) in rows:
        item = _item(path, line, text)
        if item in items:
            raise DataError(f"item {item} is already on line {items[item]}: list each item once", path, line)
        if n_items is not None and item >= n_items:
            fault = f"item {item} is outside 0..{n_items - 1}, the items of the task"
            raise DataError(f"{fault}: correct the file and run the command again", path, line)
        items[item] = line
        ratings += [_rating(path, line, text) for text in rating]
    numbers = np.fromiter(items, dtype=np.int32, count=len(items))
    return History(numbers, np.array(ratings, dtype=np.float32) if ratings else None)


def read_titles(path: Path) -> dict[int, str]:
    """Return item number -> title from a CSV file with the columns `item` and `title`.

    Raises `DataError` with the line number if the file is malformed.
    """
    rows = _rows(path, (_ITEM, _TITLE))
    titles: dict[int, str] = {}
    for line, (text, title) in rows:
        titles[_item(path, line, text)] = title
    return titles


def _rows(path: Path, names: Sequence[str], optional: str | None = None) -> list[tuple[int, list[str]]]:
    """Return the number of each line and its cells.

    The cells of a line are those of the columns `names`, followed by that of the column `optional` if there is one.
    A file with a single column does not need a header.
    """
    rows = [row for chunk in chunks(path) for row in csv_rows(path, chunk)]
    if len(names) == 1 and _INTEGER.fullmatch(",".join(rows[0][1]).strip()):
        return [(line, [",".join(row)]) for line, row in rows]
    header = [name.strip().lower() for name in rows[0][1]]
    wanted = [*names, *([optional] if optional in header else [])]
    for name in wanted:
        if header.count(name) != 1:
            prefix = "neither an item number nor " if len(names) == 1 else "not "
            raise DataError(f"{prefix}a header with one column named {name!r}", path, 1)
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"the line has {len(row)} fields, but the header has {len(header)}", path, line)
    if len(rows) == 1:
        raise DataError("the file has a header but no lines", path)
    return [(line, [row[header.index(name)] for name in wanted]) for line, row in rows[1:]]


def _item(path: Path, line: int, text: str) -> int:
    text = text.strip()
    if not _INTEGER.fullmatch(text):
        raise DataError(f"not an item number: {text[:40]!r}", path, line)
    if int(text) > _MAX_ITEM:
        raise DataError(f"item number {text} is greater than {_MAX_ITEM}", path, line)
    return int(text)


def _rating(path: Path, line: int, text: str) -> float:
    text = text.strip()
    if not (NUMBER.fullmatch(text) and abs(float(text)) <= _MAX_RATING):
        raise DataError(f"not a rating: {text[:40]!r}", path, line)
    return float(text)
