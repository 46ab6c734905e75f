"""Loading data sets by name or by path, with the split on which each is evaluated.

`load_dataset(name, data_dir)` looks for plain and .gz files in data_dir/name/ and in data_dir, in the layout of the
provider's archive. No data set is part of the project: `hushrec data fetch` downloads some, the others are available
from their providers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from client_sdk.data.columns import Columns
from client_sdk.data.data_file import read_data_file
from client_sdk.data.errors import DataError
from client_sdk.data.fetch import DOWNLOADS
from client_sdk.data.interactions import Interactions, LeaveOneOut, leave_one_out
from client_sdk.data.lightgcn import read_lightgcn
from client_sdk.data.ncf import read_ncf
from client_sdk.data.synthetic import SyntheticConfig, synthetic
from client_sdk.data.train_test import Report, read_folder, require_disjoint

__all__ = ["DATASETS", "load_dataset", "load_interactions", "load_train_test"]

LIGHTGCN_SETS: Final = ("goodreads-100", "gowalla")
DATASETS: Final = ("synthetic", "ml-100k", "ml-1m", "filmtrust", *LIGHTGCN_SETS)
"""Names of data sets that `load_dataset` accepts."""

NCF_FILES: Final = ("ml-1m.train.rating", "ml-1m.test.rating", "ml-1m.test.negative")


def load_dataset(
    name: str, data_dir: Path | None = None, seed: int = 0, columns: Columns | None = None, report: Report | None = None
) -> LeaveOneOut:
    """Return the leave-one-out split of a data set, or of a file or folder if `name` is a path.

    data_dir: the folder `data` in the working directory by default. seed: of the split, and of the synthetic data.
    columns: which columns of a file to read; see `read_data_file`. report: called with what was found in a file.

    ml-1m: the published NCF files with their 99 negatives if all three exist, otherwise `ratings.dat` or `ratings.csv`.
    All others: `leave_one_out` of all interactions. It holds out each user's latest interaction or, without timestamps
    (filmtrust, gowalla, goodreads-100), one drawn with `seed`. gowalla and goodreads-100 are published with several
    test items per user; for that split see `load_train_test`. Raises `DataError`, with the file's name, if a file is
    missing or malformed.
    """
    if name == "synthetic":
        return leave_one_out(synthetic(SyntheticConfig(seed=seed)), seed)
    if name == "ml-1m":
        found = [_first_existing(_folders(name, data_dir), file) for file in NCF_FILES]
        train, test, negatives = found
        if train and test and negatives:
            return read_ncf(train, test, negatives)
    return leave_one_out(load_interactions(name, data_dir, columns, report), seed)


def load_interactions(
    name: str, data_dir: Path | None = None, columns: Columns | None = None, report: Report | None = None
) -> Interactions:
    """Return all interactions of a data set on disk, or of the file or folder if `name` is a path.

    For gowalla, goodreads-100 and folders, train and test are joined. columns, report: as for `load_dataset`. Raises
    `DataError` for an unknown name, a missing or malformed file, and `columns` for a data set by name.
    """
    if name not in DATASETS and _is_path(name):
        path = Path(name)
        if path.is_dir():
            return _joined(read_folder(path, columns, report))
        read = read_data_file(path, columns)
        if report is not None:
            report(str(read))
        return read.interactions
    if columns is not None:
        raise DataError(f"columns are those of a file, but {name!r} is the name of a data set")
    if name in LIGHTGCN_SETS:
        return _joined(load_train_test(name, data_dir))
    if name not in _READERS:
        known = ", ".join(sorted(DATASETS))
        raise DataError(f"unknown data set {name!r}: choose one of {known}, or the path of a file or folder")
    for file, read_file in _READERS[name].items():
        path_found = _first_existing(_folders(name, data_dir), file)
        if path_found is not None:
            return read_file(path_found)
    raise _missing(name, data_dir, tuple(_READERS[name]))


def _is_path(name: str) -> bool:
    return bool(Path(name).suffix) or len(Path(name).parts) > 1 or Path(name).exists()


def load_train_test(name: str, data_dir: Path | None = None) -> tuple[Interactions, Interactions]:
    """Return the published training and test interactions of gowalla or goodreads-100.

    A user has any number of test items. Raises `DataError`, also if a pair is in both files.
    """
    if name not in LIGHTGCN_SETS:
        raise DataError(f"no published train/test split of {name!r}; choose one of {', '.join(LIGHTGCN_SETS)}")
    paths = [_first_existing(_folders(name, data_dir), file) for file in ("train.txt", "test.txt")]
    if paths[0] is None or paths[1] is None:
        raise _missing(name, data_dir, ("train.txt", "test.txt"))
    train, test = read_lightgcn(paths[0], paths[1])
    require_disjoint(train, test, paths[0], paths[1])
    return train, test


def _movielens(path: Path) -> Interactions:
    return read_data_file(path, duplicates="error", integer_ids=True).interactions


def _filmtrust(path: Path) -> Interactions:
    # Three pairs of the public file have two ratings. The later one is used; `merged` counts such pairs.
    return read_data_file(path, Columns(0, 1, 2), integer_ids=True).interactions


_READERS: Final[dict[str, dict[str, Callable[[Path], Interactions]]]] = {
    "ml-100k": {"u.data": _movielens, "ratings.csv": _movielens},
    "ml-1m": {"ratings.dat": _movielens, "ratings.csv": _movielens},
    "filmtrust": {"ratings.txt": _filmtrust},
}


def _joined(sides: tuple[Interactions, Interactions]) -> Interactions:
    train, test = sides

    def both(name: str) -> Any:
        parts = [getattr(side, name) for side in sides]
        return None if any(part is None for part in parts) else np.concatenate(parts)

    return Interactions.from_pairs(
        both("users"), both("items"), n_users=train.n_users, n_items=train.n_items, ratings=both("ratings"),
        timestamps=both("timestamps"), user_ids=train.user_ids, item_ids=train.item_ids,
    )  # fmt: skip


def _folders(name: str, data_dir: Path | None) -> list[Path]:
    root = Path("data") if data_dir is None else data_dir
    return [root / name, root]


def _first_existing(folders: Iterable[Path], name: str) -> Path | None:
    """Return the path of `name` or `name.gz` in the first of `folders` that contains one of them, otherwise None."""
    for folder in folders:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def _missing(name: str, data_dir: Path | None, files: tuple[str, ...]) -> DataError:
    looked = " and ".join(str(folder) for folder in _folders(name, data_dir))
    wanted = (" and " if name in LIGHTGCN_SETS else " or ").join(files)
    how = (
        f"download it with: hushrec data fetch {name}" if name in DOWNLOADS
        else "download it from its provider (`hushrec data fetch` does not offer it)"
    )  # fmt: skip
    return DataError(f"{name} not found: looked for {wanted} (plain or .gz) in {looked}; {how}")
