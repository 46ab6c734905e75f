"""Reader of the files of NCF (He et al., WWW 2017): training ratings, test ratings and test negatives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.data_file import read_rows
from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Interactions, LeaveOneOut
from client_sdk.data.lightgcn import read_id_lists

__all__ = ["read_ncf", "read_ncf_negatives"]


def read_ncf(train: Path, test: Path, negatives: Path | None = None) -> LeaveOneOut:
    """Read the published split. Users and items have the numbers of the files, from 0.

    train, test, negatives: the paths of the files. A user has at most one held-out item. Raises `DataError`, with file
    and line, if a file is malformed or if the files contradict each other.
    """
    rows, held_out = _read_ratings(train), _read_ratings(test)
    listed = None if negatives is None else read_ncf_negatives(negatives)
    n_users = int(max(rows[0].max(), held_out[0].max())) + 1
    n_items = int(max(rows[1].max(), held_out[1].max(), 0 if listed is None else listed[1].max())) + 1
    try:
        interactions = Interactions.from_pairs(
            rows[0], rows[1], n_users=n_users, n_items=n_items, ratings=rows[2], timestamps=rows[3]
        )
    except DataError as error:
        raise DataError(error.problem, train) from error
    test_items = _held_out_items(test, held_out[0], held_out[1], n_users)
    table = None if listed is None or negatives is None else _negatives_by_user(negatives, listed, test_items)
    try:
        return LeaveOneOut(interactions, test_items, table)
    except DataError as error:
        raise DataError(error.problem, test) from error


def read_ncf_negatives(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read lines of `(user,item)` followed by sampled items.

    Returns the pairs, int64 (lines, 2), and the negatives, int64 (lines, negatives), unchanged. Raises `DataError`,
    with the line, if a line is malformed or has a different number of negatives than the first.
    """
    numbers, lengths = read_id_lists(path, " \t(),")
    uneven = np.flatnonzero(lengths != lengths[0])
    if uneven.size or lengths[0] < 3:
        bad = int(uneven[0]) if uneven.size else 0
        problem = f"{lengths[bad] - 2} negatives after (user,item), but {lengths[0] - 2} in the first line"
        raise DataError(problem if uneven.size else "no negatives after (user,item)", path, bad + 1)
    table = numbers.reshape(lengths.size, int(lengths[0]))
    return table[:, :2], table[:, 2:]


def _read_ratings(
    path: Path,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64] | None]:
    rows = read_rows(path, integer_ids=True)
    ratings = rows.numbers("rating")
    if ratings is None:
        raise DataError("expected user, item, rating and, optionally, a time on each line", path)
    return rows.ids("user"), rows.ids("item"), ratings, rows.numbers("time")


def _held_out_items(path: Path, users: NDArray[np.int64], items: NDArray[np.int64], n_users: int) -> NDArray[np.int32]:
    """Return int32 (n_users,), -1 for users without a line. Raises `DataError` for a user with two lines."""
    _, first = np.unique(users, return_index=True)
    if first.size < users.size:
        again = int(np.setdiff1d(np.arange(users.size), first)[0])
        raise DataError(f"user {users[again]} already has a held-out item", path, again + 1)
    test_items = np.full(n_users, -1, dtype=np.int32)
    test_items[users] = items
    return test_items


def _negatives_by_user(
    path: Path, listed: tuple[NDArray[np.int64], NDArray[np.int64]], test_items: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return int32 (n_users, negatives), -1 for users without a line.

    Raises `DataError` unless each line's (user, item) is a held-out pair and each held-out pair has a line.
    """
    pairs, negatives = listed
    unknown = np.flatnonzero(pairs[:, 0] >= test_items.size)
    wrong = unknown if unknown.size else np.flatnonzero(test_items[pairs[:, 0]] != pairs[:, 1])
    if wrong.size:
        user, item = pairs[wrong[0]]
        raise DataError(f"({user},{item}) is not the held-out pair of user {user}", path, int(wrong[0]) + 1)
    table = np.full((test_items.size, negatives.shape[1]), -1, dtype=np.int32)
    table[pairs[:, 0]] = negatives
    missing = np.flatnonzero((test_items >= 0) & (table[:, 0] < 0))
    if missing.size:
        raise DataError(f"no line for user {missing[0]}, who has a held-out item", path)
    return table
