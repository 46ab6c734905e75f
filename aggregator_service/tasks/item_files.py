"""An operator's list of items, a CSV file or one id a line, as the catalogue of a task."""

from __future__ import annotations

import csv
from typing import TextIO

from protocols.catalogue import Catalogue, check_item
from protocols.errors import ParameterError

__all__ = ["read_items"]


def read_items(file: TextIO, name: str) -> Catalogue:
    """Return the catalogue in a CSV file with the heading `id,title` or `item,title`, or with one id a line.

    file: its text, opened as UTF-8 with `newline=""`; a byte order mark must have been left out. name: of the file, for
    errors. Items are numbered in the order of the lines. Raises `ParameterError`, which names the line, for anything
    else: a row of another length, an empty line, an id twice, and what no catalogue may have.
    """
    lines: dict[str, int] = {}
    titles: list[str] = []
    width = 1
    rows = csv.reader(file, strict=True)
    try:
        for index, row in enumerate(rows):
            if index == 0 and _is_heading(name, row):
                width = 2
                continue
            where = f"{name}, line {rows.line_num}"
            if len(row) != width:
                expected = "an id and a title, under the heading" if width == 2 else "one id, without a heading"
                raise ParameterError(f"{where}: {len(row)} fields; expected {expected}")
            item_id, title = row[0], row[1] if width == 2 else ""
            try:
                check_item(item_id, title)
            except ParameterError as error:
                raise ParameterError(f"{where}: {error}") from None
            if lines.setdefault(item_id, rows.line_num) != rows.line_num:
                raise ParameterError(f"{where}: the id {item_id!r} is on line {lines[item_id]} already")
            titles.append(title)
    except UnicodeDecodeError:
        raise ParameterError(f"{name} is not UTF-8: convert it first") from None
    except csv.Error as error:
        raise ParameterError(f"{name}, line {rows.line_num}: not CSV: {error}") from None
    if not titles:
        raise ParameterError(f"{name} has no items")
    return Catalogue(tuple(lines), tuple(titles))


def _is_heading(name: str, row: list[str]) -> bool:
    """Return whether the first row is the heading; `ParameterError` for one that could be a heading or an item."""
    names = [name.strip().lower() for name in row]
    if names in (["id", "title"], ["item", "title"]):
        return True
    if len(row) > 1:
        raise ParameterError(f"{name}, line 1: write the heading id,title, or one id a line without a heading")
    if names in (["id"], ["item"]):
        raise ParameterError(f"{name}, line 1: a heading, or an item? Leave it out, or add a second column: id,title")
    return False
