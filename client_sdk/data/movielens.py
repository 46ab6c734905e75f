"""Reader of MovieLens files: `u.data` (tabs), `ratings.dat` (double colons) and `ratings.csv` (with a header)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from client_sdk.data.csv_file import CsvColumns, read_csv
from client_sdk.data.errors import DataError
from client_sdk.data.files import read_table, require_ids
from client_sdk.data.interactions import Duplicates, Interactions

__all__ = ["read_movielens", "read_ratings_table"]

COLUMNS: Final = ("user", "item", "rating", "timestamp")


def read_movielens(path: Path) -> Interactions:
    """Read a MovieLens ratings file. The format follows from the name: `u.data`, `*.dat` or `*.csv`, also with `.gz`.

    Every rating is an interaction. Users and items are numbered in the order of their MovieLens ids. Raises
    `DataError` for any other name and for a malformed file.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".csv"):
        return read_csv(path, CsvColumns("userId", "movieId", "rating", "timestamp"))
    if name.endswith(".dat"):
        return read_ratings_table(path, "::")
    if name.endswith(".data"):
        return read_ratings_table(path, "\t")
    raise DataError("not a MovieLens file: expected u.data, ratings.dat or ratings.csv", path)


def read_ratings_table(path: Path, separator: str, *, duplicates: Duplicates = "error") -> Interactions:
    """Read lines of user, item, rating and, if the first line has it, timestamp.

    User, item and timestamp are integers >= 0. duplicates: what to do with repeated pairs. Raises `DataError` for a
    malformed line and, by default, for a repeated pair.
    """
    table = read_table(path, separator, COLUMNS, optional=1)
    users, items = require_ids(path, "user", table[:, 0]), require_ids(path, "item", table[:, 1])
    times = require_ids(path, "timestamp", table[:, 3]) if table.shape[1] == 4 else None
    try:
        return Interactions.from_ids(users, items, ratings=table[:, 2], timestamps=times, duplicates=duplicates)
    except DataError as error:
        raise DataError(error.problem, path) from error
