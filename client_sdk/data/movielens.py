"""MovieLens files: `u.data` (tabs), `ratings.dat` (double colons) and `ratings.csv` (a header line)."""

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
    """Any MovieLens ratings file, told by its name (`u.data`, `*.dat`, `*.csv`, each also with `.gz`).

    Every rating is an interaction. Users and items are numbered in the order of their MovieLens ids.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".csv"):
        return read_csv(path, CsvColumns("userId", "movieId", "rating", "timestamp"))
    if name.endswith(".dat"):
        return read_ratings_table(path, "::")
    if name.endswith(".data"):
        return read_ratings_table(path, "\t")
    raise DataError("not a MovieLens file: u.data, ratings.dat or ratings.csv was expected", path)


def read_ratings_table(path: Path, separator: str, *, duplicates: Duplicates = "error") -> Interactions:
    """Lines of user, item, rating and, if the first line has it, time: whole numbers but for the rating."""
    table = read_table(path, separator, COLUMNS, optional=1)
    users, items = require_ids(path, "user", table[:, 0]), require_ids(path, "item", table[:, 1])
    times = require_ids(path, "timestamp", table[:, 3]) if table.shape[1] == 4 else None
    try:
        return Interactions.from_ids(users, items, ratings=table[:, 2], timestamps=times, duplicates=duplicates)
    except DataError as error:
        raise DataError(error.problem, path) from error
