"""Splits that are given as two files, one of training and one of test interactions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.columns import Columns
from client_sdk.data.data_file import DataFile, read_data_file
from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Interactions

__all__ = ["Report", "read_folder", "read_train_test", "require_disjoint"]

Report = Callable[[str], None]
"""Is called with what was found in a file, in words."""


def read_folder(
    folder: Path, columns: Columns | None = None, report: Report | None = None
) -> tuple[Interactions, Interactions]:
    """Return the training and test interactions of a folder, such as one of LightGCN's.

    It must have one file with `train` in its name and one with `test`, each plain or gzip. Raises `DataError` as
    `read_train_test` does, and for no or several such files.
    """
    found = []
    for word in ("train", "test"):
        files = sorted(path for path in folder.iterdir() if path.is_file() and word in path.name.lower())
        if len(files) != 1:
            have = ", ".join(path.name for path in files) or "none"
            raise DataError(f"expected one file with {word!r} in its name, found {have}; pass the file's path", folder)
        found.append(files[0])
    return read_train_test(found[0], found[1], columns, report)


def read_train_test(
    train: Path, test: Path, columns: Columns | None = None, report: Report | None = None
) -> tuple[Interactions, Interactions]:
    """Return the interactions of two files, with one numbering of users and items.

    columns: as in `read_data_file`, for both files. Raises `DataError` for a malformed file, a pair that is in both,
    and ids that are integers in one file and text in the other.
    """
    files = [read_data_file(path, columns) for path in (train, test)]
    for file in files:
        if report is not None:
            report(str(file))
    users = _united(files, "user")
    items = _united(files, "item")
    first, second = (_renumbered(file.interactions, users, items) for file in files)
    require_disjoint(first, second, train, test)
    return first, second


def require_disjoint(train: Interactions, test: Interactions, train_path: Path, test_path: Path) -> None:
    """Raise `DataError` if a pair of user and item is in both."""
    trained, tested = (side.users.astype(np.int64) * side.n_items + side.items for side in (train, test))
    shared = np.intersect1d(trained, tested, assume_unique=True)
    if shared.size:
        user, item = (int(number) for number in divmod(int(shared[0]), train.n_items))
        user = user if train.user_ids is None else train.user_ids[user]
        item = item if train.item_ids is None else train.item_ids[item]
        problem = f"{shared.size} pairs are also in {train_path}; the first is user {user}, item {item}"
        raise DataError(problem, test_path)


def _ids(side: Interactions, role: str) -> NDArray[Any]:
    """Return the ids of one side; its numbers if it has no ids."""
    ids = side.user_ids if role == "user" else side.item_ids
    count = side.n_users if role == "user" else side.n_items
    return np.arange(count) if ids is None else ids


def _united(files: list[DataFile], role: str) -> NDArray[Any]:
    first, second = (_ids(file.interactions, role) for file in files)
    if first.dtype.kind != second.dtype.kind:
        kinds = ["integers" if ids.dtype.kind == "i" else "text" for ids in (first, second)]
        raise DataError(f"the {role} ids are {kinds[1]}, but those of {files[0].path} are {kinds[0]}", files[1].path)
    return np.union1d(first, second)


def _renumbered(side: Interactions, users: NDArray[Any], items: NDArray[Any]) -> Interactions:
    """Return `side` with the numbers that its ids have in `users` and `items`, both ascending."""
    return Interactions.from_pairs(
        np.searchsorted(users, _ids(side, "user"))[side.users],
        np.searchsorted(items, _ids(side, "item"))[side.items],
        n_users=users.size,
        n_items=items.size,
        ratings=side.ratings,
        timestamps=side.timestamps,
        user_ids=users,
        item_ids=items,
    )
