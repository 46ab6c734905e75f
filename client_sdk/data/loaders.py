"""Loading data sets by name, with the split on which each is evaluated.

`load_dataset(name, data_dir)` looks for plain and .gz files in data_dir/name/ and in data_dir, in the layout of the
provider's archive. No data set is part of the project: `hushrec data fetch` downloads some, the others are available
from their providers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from client_sdk.data.csv_file import CsvColumns, read_csv
from client_sdk.data.errors import DataError
from client_sdk.data.fetch import DOWNLOADS
from client_sdk.data.files import first_existing
from client_sdk.data.interactions import Interactions, LeaveOneOut, leave_one_out
from client_sdk.data.lightgcn import read_lightgcn
from client_sdk.data.movielens import read_movielens, read_ratings_table
from client_sdk.data.ncf import read_ncf
from client_sdk.data.synthetic import SyntheticConfig, synthetic

__all__ = ["DATASETS", "load_dataset", "load_interactions", "load_train_test"]

LIGHTGCN_SETS: Final = ("goodreads-100", "gowalla")
DATASETS: Final = ("synthetic", "ml-100k", "ml-1m", "filmtrust", *LIGHTGCN_SETS)
"""Names of data sets that `load_dataset` accepts."""

NCF_FILES: Final = ("ml-1m.train.rating", "ml-1m.test.rating", "ml-1m.test.negative")


def load_dataset(name: str, data_dir: Path | None = None, seed: int = 0) -> LeaveOneOut:
    """Return the leave-one-out split of a data set, or of a CSV file if `name` is a path ending in .csv or .csv.gz.

    data_dir: the folder `data` in the working directory by default. seed: of the split, and of the synthetic data.

    ml-1m: the published NCF files with their 99 negatives if all three exist, otherwise `ratings.dat` or `ratings.csv`.
    All others: `leave_one_out` of all interactions. It holds out each user's latest interaction or, without timestamps
    (filmtrust, gowalla, goodreads-100), one drawn with `seed`. gowalla and goodreads-100 are published with several
    test items per user; for that split see `load_train_test`. Raises `DataError`, with the file's name, if a file is
    missing or malformed.
    """
    if name == "synthetic":
        return leave_one_out(synthetic(SyntheticConfig(seed=seed)), seed)
    if name == "ml-1m":
        found = [first_existing(_folders(name, data_dir), file) for file in NCF_FILES]
        train, test, negatives = found
        if train and test and negatives:
            return read_ncf(train, test, negatives)
    return leave_one_out(load_interactions(name, data_dir), seed)


def load_interactions(name: str, data_dir: Path | None = None, columns: CsvColumns | None = None) -> Interactions:
    """Return all interactions of a data set on disk. For gowalla and goodreads-100, train and test are joined.

    columns: column headings if `name` is the path of a CSV file; common headings are recognised by default. Raises
    `DataError` for an unknown name or a missing or malformed file.
    """
    if name.endswith((".csv", ".csv.gz")):
        return read_csv(Path(name), columns)
    if name in LIGHTGCN_SETS:
        return _joined(load_train_test(name, data_dir))
    if name not in _READERS:
        known = ", ".join(sorted(DATASETS))
        raise DataError(f"unknown data set {name!r}: choose one of {known}, or the path of a .csv file")
    for file, read in _READERS[name].items():
        path = first_existing(_folders(name, data_dir), file)
        if path is not None:
            return read(path)
    raise _missing(name, data_dir, tuple(_READERS[name]))


def load_train_test(name: str, data_dir: Path | None = None) -> tuple[Interactions, Interactions]:
    """Return the published training and test interactions of gowalla or goodreads-100.

    A user has any number of test items. Raises `DataError`, also if a pair is in both files.
    """
    if name not in LIGHTGCN_SETS:
        raise DataError(f"no published train/test split of {name!r}; choose one of {', '.join(LIGHTGCN_SETS)}")
    paths = [first_existing(_folders(name, data_dir), file) for file in ("train.txt", "test.txt")]
    if paths[0] is None or paths[1] is None:
        raise _missing(name, data_dir, ("train.txt", "test.txt"))
    train, test = read_lightgcn(paths[0], paths[1])
    trained, tested = (side.users.astype(np.int64) * side.n_items + side.items for side in (train, test))
    shared = np.intersect1d(trained, tested, assume_unique=True)
    if shared.size:
        user, item = divmod(int(shared[0]), train.n_items)
        problem = f"{shared.size} pairs are also in {paths[0]}; the first is user {user}, item {item}"
        raise DataError(problem, paths[1])
    return train, test


def _filmtrust(path: Path) -> Interactions:
    # Three pairs of the public file have two ratings. The later one is used; `merged` counts such pairs.
    return read_ratings_table(path, " ", duplicates="last")


_READERS: Final[dict[str, dict[str, Callable[[Path], Interactions]]]] = {
    "ml-100k": {"u.data": read_movielens, "ratings.csv": read_movielens},
    "ml-1m": {"ratings.dat": read_movielens, "ratings.csv": read_movielens},
    "filmtrust": {"ratings.txt": _filmtrust},
}


def _joined(sides: tuple[Interactions, Interactions]) -> Interactions:
    users, items = (
        np.concatenate(arrays) for arrays in zip(*((side.users, side.items) for side in sides), strict=True)
    )
    return Interactions.from_pairs(users, items, n_users=sides[0].n_users, n_items=sides[0].n_items)


def _folders(name: str, data_dir: Path | None) -> list[Path]:
    root = Path("data") if data_dir is None else data_dir
    return [root / name, root]


def _missing(name: str, data_dir: Path | None, files: tuple[str, ...]) -> DataError:
    looked = " and ".join(str(folder) for folder in _folders(name, data_dir))
    wanted = (" and " if name in LIGHTGCN_SETS else " or ").join(files)
    how = (
        f"download it with: hushrec data fetch {name}" if name in DOWNLOADS
        else "download it from its provider (`hushrec data fetch` does not offer it)"
    )  # fmt: skip
    return DataError(f"{name} not found: looked for {wanted} (plain or .gz) in {looked}; {how}")
