"""Reader of LightGCN files: one line per user, `user item item ...`, numbered from 0, without ratings and times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.errors import DataError
from client_sdk.data.id_lists import read_id_lists
from client_sdk.data.interactions import Interactions

__all__ = ["read_lightgcn"]


def read_lightgcn(*paths: Path) -> tuple[Interactions, ...]:
    """Return one `Interactions` for each file, for example `train.txt` and `test.txt`.

    All have the same numbers of users and items, from the largest ids in any of the files. A line may contain a user
    without items. Raises `DataError` for a malformed or repeated user line, with the line number, and for a repeated
    item of a user.
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
    """Return users and items of all pairs, int64 (pairs,); item -1 for a user whose line has no items."""
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
