"""What an operator has in files for a new task: its items, and the first values of its arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TextIO

import numpy as np
from numpy.typing import NDArray

from protocols.catalogue import Catalogue, check_item, in_order
from protocols.errors import ParameterError
from protocols.headings import columns_of, plain_heading, small_table

_BETWEEN: Final = "|"


def read_items(file: TextIO, name: str) -> Catalogue:
    """Return the catalogue in a table with a column of ids and, optionally, titles and labels, or with one id a line.

    file: its text, opened as UTF-8 with `newline=""`; a byte order mark must have been left out. name: of the file, for
    errors. Fields are separated by commas, semicolons, tabs or bars; blanks around them are left out. Headings are
    `id`, or a usual one such as `item`, `sku` or `asin`, `title`, `name` or the like, and `labels`, `categories`,
    `genres` or the like, with bars between those of an item; other columns are not read. Items are numbered in the
    order of the lines. Raises `ParameterError`, which names the line, for anything else: a row of another length, an
    empty line, an id twice, and what no catalogue may have.
    """
    rows = small_table(file, name)
    if not rows:
        raise ParameterError(f"{name} has no items")
    places, width = _headed(name, rows[0][1]), len(rows[0][1])
    lines: dict[str, int] = {}
    titles, labels = list[str](), list[list[str]]()
    for line, row in rows if places is None else rows[1:]:
        where = f"{name}, line {line}"
        if len(row) != width:
            expected = "one id, without a heading" if places is None else f"{width}, as in the heading"
            raise ParameterError(f"{where}: {len(row)} fields; expected {expected}")
        place, title_place, labels_place = places or (0, None, None)
        item_id, title = row[place], "" if title_place is None else row[title_place]
        own = [] if labels_place is None else [label.strip() for label in row[labels_place].split(_BETWEEN)]
        own = in_order(filter(None, own))
        try:
            check_item(item_id, title, own)
        except ParameterError as error:
            raise ParameterError(f"{where}: {error}") from None
        if lines.setdefault(item_id, line) != line:
            raise ParameterError(f"{where}: the id {item_id!r} is on line {lines[item_id]} already")
        titles.append(title)
        labels.append(own)
    if not titles:
        raise ParameterError(f"{name} has no items")
    return Catalogue(tuple(lines), tuple(titles), labels)


def _headed(name: str, row: list[str]) -> tuple[int, int | None, int | None] | None:
    """Return the columns of ids, titles and labels, None for a file of one id a line.

    Raises `ParameterError` for a first line that could be a heading or an item.
    """
    plain = [plain_heading(heading) for heading in row]
    try:
        found = columns_of(["item" if heading == "id" else text for heading, text in zip(plain, row, strict=True)])
    except ParameterError as error:
        raise ParameterError(f"{name}, line 1: {error}: rename the ids' one to id") from None
    if len(row) > 1 and "item" in found:
        return found["item"], found.get("title"), found.get("labels")
    if len(row) > 1:
        raise ParameterError(f"{name}, line 1: write the heading id,title, or one id a line without a heading")
    if found:
        raise ParameterError(f"{name}, line 1: a heading, or an item? Leave it out, or add a second column: id,title")
    return None


def read_initial(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the arrays of a safetensors file as float32, by name.

    Values of 16 and 64 bits are converted. Raises `ParameterError` for a file that cannot be read, and, naming it, for
    an array that does not hold floating-point numbers that numpy has.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return {name: _floats(path, name, file.get_slice(name).get_dtype(), file) for name in sorted(file.keys())}
    except (OSError, SafetensorError) as error:
        raise ParameterError(f"cannot read {path} as a safetensors file: {error}") from None


def _floats(path: Path, name: str, dtype: str, file: object) -> NDArray[np.float32]:
    if dtype not in ("F16", "F32", "F64"):
        raise ParameterError(f"{path}: array {name!r} holds {dtype}, not float32: convert it, or leave it out")
    array = file.get_tensor(name)  # type: ignore[attr-defined]
    return np.asarray(array).astype(np.float32)
