"""Reader of the files of NCF (He et al., WWW 2017): training ratings, test ratings and test negatives."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data.chunks import read_id_lists
from client_sdk.lab.data.columns import LISTS, Columns
from client_sdk.lab.data.fetch import DOWNLOADS
from client_sdk.lab.data.files import (
    by_place,
    read_data_file,
    read_data_files,
)
from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut


def read_ncf(train: Path, test: Path, negatives: Path | None = None) -> LeaveOneOut:
    """Read the published split. Users and items have the numbers of the files, from 0.

    train, test, negatives: the paths of the files. A user has at most one held-out item. Raises `DataError`, with file
    and line, if a file is malformed or if the files contradict each other.
    """
    rows, tested = (
        read_data_file(path, by_place(path), duplicates="error", integer_ids=True).interactions
        for path in (train, test)
    )
    (users, items), (owners, held_out) = _numbers(rows), _numbers(tested)
    listed = None if negatives is None else read_ncf_negatives(negatives)
    n_users = int(max(users.max(), owners.max())) + 1
    n_items = int(max(items.max(), held_out.max(), 0 if listed is None else listed[1].max())) + 1
    interactions = Interactions.from_pairs(
        users, items, n_users=n_users, n_items=n_items, ratings=rows.ratings, timestamps=rows.timestamps
    )
    again = owners[1:][owners[1:] == owners[:-1]]
    if again.size:
        raise DataError(f"user {again[0]} already has a held-out item", test)
    test_items = np.full(n_users, -1, dtype=np.int32)
    test_items[owners] = held_out
    table = None if listed is None or negatives is None else _negatives_by_user(negatives, listed, test_items)
    try:
        return LeaveOneOut(interactions, test_items, table)
    except DataError as error:
        raise DataError(error.problem, test) from error


def _numbers(side: Interactions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the users and items of interactions by their numbers in the file, int64 (interactions,)."""
    user_ids, item_ids = (np.array(ids, np.int64) for ids in (side.user_ids, side.item_ids))
    return user_ids[side.users], item_ids[side.items]


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


# --- loading data sets by name or by path, with the split on which each is evaluated ---------------------------------
# Plain and .gz files are looked for in data_dir/name/ and in data_dir, in the layout of the provider's archive. No data
# set is part of the project: `hushrec data fetch` downloads some, the others are available from their providers.

LIGHTGCN_SETS: Final = ("goodreads-100", "gowalla")
DATASETS: Final = ("synthetic", "ml-100k", "ml-1m", "filmtrust", *LIGHTGCN_SETS)
"""Names of the data sets that can be loaded."""

NCF_FILES: Final = ("ml-1m.train.rating", "ml-1m.test.rating", "ml-1m.test.negative")


def published_ncf(data_dir: Path | None = None) -> LeaveOneOut | None:
    """Return the split of ml-1m by NCF with its 99 negatives, None unless all three files are there."""
    train, test, negatives = (_found("ml-1m", data_dir, file) for file in NCF_FILES)
    return read_ncf(train, test, negatives) if train and test and negatives else None


def load_interactions(
    name: str,
    data_dir: Path | None = None,
    columns: Columns | None = None,
    report: Report | None = None,
    skip_bad: int = 0,
) -> Interactions:
    """Return all interactions of a data set on disk, or of the file or folder if `name` is a path.

    For gowalla, goodreads-100 and folders, train and test are joined. data_dir: the folder `data` in the working
    directory by default. columns, skip_bad: which columns of a file to read, and how many rows that cannot be read are
    left out; see `read_data_file`. report: called with what was found in a file.
    Raises `DataError` for an unknown name, a missing or malformed file, and `columns` for a data set by name.
    """
    path = Path(name)
    if name not in DATASETS and (path.suffix or len(path.parts) > 1 or path.exists()):
        if path.is_dir():
            return _joined(read_folder(path, columns, report, skip_bad))
        read = read_data_file(path, columns, skip_bad=skip_bad)
        if report is not None:
            report(str(read))
        return read.interactions
    if columns is not None:
        raise DataError(f"columns are those of a file, but {name!r} is the name of a data set")
    if name in LIGHTGCN_SETS:
        return _joined(published_sides(name, data_dir))
    if name not in _READERS:
        known = ", ".join(sorted(DATASETS))
        raise DataError(f"unknown data set {name!r}: choose one of {known}, or the path of a file or folder")
    for file, read_file in _READERS[name].items():
        found = _found(name, data_dir, file)
        if found is not None:
            return read_file(found)
    raise _missing(name, data_dir, tuple(_READERS[name]))


def published_sides(name: str, data_dir: Path | None = None) -> tuple[Interactions, Interactions]:
    """Return the published training and test interactions of one of `LIGHTGCN_SETS`.

    A user has any number of test items. Raises `DataError`, also if a pair is in both files.
    """
    files = ("train.txt", "test.txt")
    train_path, test_path = (_found(name, data_dir, file) for file in files)
    if train_path is None or test_path is None:
        raise _missing(name, data_dir, files)
    sides = read_train_test(train_path, test_path, Columns("user", LISTS))
    numbers = [_numbers(side) for side in sides]
    n_users, n_items = (int(max(each[place].max() for each in numbers)) + 1 for place in (0, 1))
    train, test = (Interactions.from_pairs(*pairs, n_users=n_users, n_items=n_items) for pairs in numbers)
    return train, test


def _movielens(path: Path) -> Interactions:
    columns = None if ".csv" in path.suffixes else by_place(path)
    return read_data_file(path, columns, duplicates="error", integer_ids=True).interactions


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
    root = Path("data" if data_dir is None else data_dir)
    return [root / name, root]


def _found(name: str, data_dir: Path | None, file: str) -> Path | None:
    """Return the path of `file`, plain or .gz, in the first folder of the data set `name` that has it; None in none."""
    paths = (folder / form for folder in _folders(name, data_dir) for form in (file, f"{file}.gz"))
    return next(filter(Path.is_file, paths), None)


def _missing(name: str, data_dir: Path | None, files: tuple[str, ...]) -> DataError:
    looked = " and ".join(str(folder) for folder in _folders(name, data_dir))
    wanted = (" and " if name in LIGHTGCN_SETS else " or ").join(files)
    advice = (
        f"download it with: hushrec data fetch {name}" if name in DOWNLOADS
        else "download it from its provider (`hushrec data fetch` does not offer it)"
    )  # fmt: skip
    return DataError(f"{name} not found: looked for {wanted} (plain or .gz) in {looked}; {advice}")


# --- splits that are given as two files, one of training and one of test interactions --------------------------------

Report = Callable[[str], None]
"""Is called with what was found in a file, in words."""


def read_folder(
    folder: Path, columns: Columns | None = None, report: Report | None = None, skip_bad: int = 0
) -> tuple[Interactions, Interactions]:
    """Return the training and test interactions of a folder, such as one of LightGCN's.

    It must have one file with `train` in its name and one with `test`, each plain or gzip. Raises `DataError` as
    `read_train_test` does, for no or several such files, and for one of validation, which would be left out.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    found = []
    for word in ("train", "test"):
        named = [path for path in files if word in path.name.lower()]
        if len(named) != 1:
            have = ", ".join(path.name for path in named) or "none"
            raise DataError(f"expected one file with {word!r} in its name, found {have}; pass the file's path", folder)
        found += named
    others = [path for path in files if re.search(r"(^|[._-])(val|valid|validation|dev)([._-]|$)", path.name.lower())]
    if others:
        say = f"evaluate --dataset {shlex.quote(str(found[0]))} --test {shlex.quote(str(found[1]))}"
        raise DataError(f"{others[0].name} would not be read: join it to one of the two, or say hushrec {say}", folder)
    return read_train_test(found[0], found[1], columns, report, skip_bad)


def read_train_test(
    train: Path, test: Path, columns: Columns | None = None, report: Report | None = None, skip_bad: int = 0
) -> tuple[Interactions, Interactions]:
    """Return the interactions of two files of one format, with one numbering of users and items.

    columns, skip_bad: as in `read_data_file`, for each file. Raises `DataError` for a malformed file, a pair that is in
    both, and files that have no user or no item in common.
    """
    files = read_data_files([train, test], columns, skip_bad)
    for file in files:
        if report is not None:
            report(str(file))
    first, second = (file.interactions for file in files)
    for role, ids in (("user", first.user_ids), ("item", first.item_ids)):
        numbers = [np.unique(side.users if role == "user" else side.items) for side in (first, second)]
        if ids is not None and not np.isin(numbers[1], numbers[0]).any():
            other, one = ids[numbers[1][0]], ids[numbers[0][0]]
            problem = f"no {role} of this file is in {train}: {str(other)!r}, for example, beside {str(one)!r}"
            raise DataError(f"{problem}; are the ids written in the same way?", test)
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
