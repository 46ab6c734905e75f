"""The item catalogue of a task: a blob whose digest is in the terms, uploaded once, before round 1.

The terms fix it for the life of the task: another set of items is another task. `read_items` makes one of an operator's
file.
"""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import TextIO

from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.storage.blobs import BlobStore, map_file, new_key
from aggregator_service.storage.database import announce
from aggregator_service.storage.rounds import lock_task
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.plans import plan_task, row_terms
from protocols.catalogue import Catalogue, check_item
from protocols.errors import ParameterError
from protocols.messages import TaskRequest
from protocols.recipes.base import ItemParameters, Recipe

__all__ = [
    "add_catalogue",
    "awaited_catalogue",
    "check_catalogue",
    "check_file",
    "check_upload",
    "read_items",
    "stored_catalogue",
    "task_items",
]

_LOG = logging.getLogger(__name__)


def check_catalogue(request: TaskRequest, recipe: Recipe) -> None:
    """Raise `ParameterError` if a request names a catalogue and its recipe has no items: none could be uploaded."""
    if request.catalogue_digest is not None:
        _items(recipe)


def task_items(task: TaskRow) -> int:
    """Return the number of items of a task; `ParameterError` for a recipe whose model has no numbered items."""
    return _items(plan_task(row_terms(task)).recipe)


def _items(recipe: Recipe) -> int:
    if not isinstance(recipe.parameters, ItemParameters):
        raise ParameterError(
            f"the model of recipe {recipe.name!r} has no numbered items, so a task with it has no catalogue"
        )
    return recipe.parameters.items


def awaited_catalogue(task: TaskRow) -> str | None:
    """Return what round 1 waits for, in plain words; None when it does not wait for a catalogue."""
    if task.state != "open" or task.catalogue_digest is None or task.catalogue_key is not None:
        return None
    return "the item catalogue: the operator has not uploaded it"


def check_upload(task: TaskRow, digest: str) -> bool:
    """Return whether the catalogue with this SHA-256 (hex) is stored already.

    Raises `Problem`: conflict (409) for a task without a catalogue, and for another one than the stored one;
    invalid-parameters (422) for another one than the terms name.
    """
    if task.catalogue_digest is None:
        raise Problem("conflict", "the task was created without a catalogue: create one with catalogue_digest")
    if digest == task.catalogue_digest:
        return task.catalogue_key is not None
    if task.catalogue_key is not None:
        raise Problem("conflict", "another catalogue is stored, and stays: new items need a new task")
    raise Problem("invalid-parameters", "the SHA-256 of the catalogue is not the catalogue_digest of the task")


def check_file(path: Path, items: int) -> None:
    """Check a received catalogue of a task with so many items.

    Raises `CodecError`, which names the line, for what is no catalogue, and `Problem` invalid-parameters (422) for
    another number of lines than `items`.
    """
    lines = len(Catalogue.decode(map_file(path)))
    if lines != items:
        raise Problem(
            "invalid-parameters",
            f"the catalogue has {lines} lines and the recipe has {items} items: the operator must create a task whose "
            "recipe has as many items as its catalogue",
        )


def add_catalogue(session: Session, task_id: str, key: str, length: int, digest: str) -> bool:
    """Store the key of the blob of a catalogue; return False if the same one is stored already.

    length: in bytes. digest: SHA-256 (hex). Raises `Problem` as `check_upload`.
    """
    task = lock_task(session, task_id)
    if check_upload(task, digest):
        return False
    task.catalogue_key, task.catalogue_bytes = key, length
    session.flush()
    announce(session, task_id, "round")  # round 1 may open
    _LOG.info("catalogue stored", extra=fields(task=task_id, bytes=length, digest=digest))
    return True


def stored_catalogue(blobs: BlobStore, task_id: str, catalogue: Catalogue) -> tuple[str, int, str]:
    """Store the catalogue of a new task; return the arguments of `add_catalogue`: key, length and digest.

    Call it before the transaction that adds the task: a store may take longer than a transaction may stand still.
    """
    key, body = new_key("catalogues", task_id), catalogue.encode()
    return key, len(body), blobs.put(key, body)


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
