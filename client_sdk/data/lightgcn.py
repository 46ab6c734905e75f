"""Reader of LightGCN files: one line per user, `user item item ...`, numbered from 0, without ratings and times."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.chunks import chunks
from client_sdk.data.errors import DataError
from client_sdk.data.interactions import Duplicates, Interactions

__all__ = ["read_id_lists", "read_lightgcn"]

_LONGEST: Final = 15  # digits


def read_lightgcn(*paths: Path, duplicates: Duplicates = "error") -> tuple[Interactions, ...]:
    """Return one `Interactions` for each file, for example `train.txt` and `test.txt`.

    All have the same numbers of users and items, from the largest ids in any of the files. A line may contain a user
    without items. duplicates: what to do with repeated items of a user. Raises `DataError` for a malformed or repeated
    user line, with the line number, and, by default, for a repeated item of a user.
    """
    parts = [_read(path) for path in paths]
    n_users = max(int(users.max()) for users, _ in parts) + 1
    n_items = max(int(items.max(initial=-1)) for _, items in parts) + 1
    made = []
    for path, (users, items) in zip(paths, parts, strict=True):
        try:
            has = items >= 0
            made.append(
                Interactions.from_pairs(users[has], items[has], n_users=n_users, n_items=n_items, duplicates=duplicates)
            )
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


def read_id_lists(path: Path, separators: str = " \t") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read lines of one or more integers. Return all integers, int64 (total,), and the count per line, int64 (lines,).

    separators: characters that separate numbers, in any number. Raises `DataError`, with the line number, for a
    malformed or blank line.
    """
    blanks = bytes.maketrans(separators.encode(), b" " * len(separators))
    numbers, lengths = array("q"), array("q")
    for chunk in chunks(path):
        for line, text in enumerate(chunk.data.translate(blanks).split(b"\n")[:-1], start=chunk.line):
            words = text.split()
            if not words:
                raise DataError("a blank line in the middle of the file", path, line)
            if not b"".join(words).isdigit() or max(map(len, words)) > _LONGEST:
                wrong = next(word for word in words if not word.isdigit() or len(word) > _LONGEST).decode()[:40]
                raise DataError(f"not a whole number of at least 0: {wrong!r}", path, line)
            numbers.extend(map(int, words))
            lengths.append(len(words))
    return np.array(numbers, np.int64), np.array(lengths, np.int64)
