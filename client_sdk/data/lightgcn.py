"""The LightGCN files: one line a user, `user item item ...`, all numbered from 0, no ratings, no time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.errors import DataError
from client_sdk.data.files import read_id_lists
from client_sdk.data.interactions import Interactions

__all__ = ["read_lightgcn"]


def read_lightgcn(*paths: Path) -> tuple[Interactions, ...]:
    """One `Interactions` a file (say `train.txt` and `test.txt`), all with the counts of the largest ids of any file.

    A line may hold a user alone. Raises `DataError` naming the line for a user or an item that comes twice.
    """
    parts = [_read(path) for path in paths]
    n_users = max(int(users.max()) for users, _ in parts) + 1
    n_items = max(int(items.max(initial=-1)) for _, items in parts) + 1
    made = []
    for path, (users, items) in zip(paths, parts, strict=True):
        try:
            made.append(Interactions.from_pairs(users[items >= 0], items[items >= 0], n_users=n_users, n_items=n_items))
        except DataError as error:
            raise DataError(error.problem, path) from error
    return tuple(made)


def _read(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Users and items of every pair, with item -1 for a user that stands alone on its line."""
    numbers, lengths = read_id_lists(path)
    starts = np.cumsum(lengths) - lengths
    owners = numbers[starts]
    _, first = np.unique(owners, return_index=True)
    if first.size < owners.size:
        again = int(np.setdiff1d(np.arange(owners.size), first)[0])
        raise DataError(f"user {owners[again]} already has a line", path, again + 1)
    is_item = np.ones(numbers.size, dtype=bool)
    is_item[starts] = False
    alone = owners[lengths == 1]
    return (
        np.concatenate([np.repeat(owners, lengths - 1), alone]),
        np.concatenate([numbers[is_item], np.full(alone.size, -1)]),
    )
