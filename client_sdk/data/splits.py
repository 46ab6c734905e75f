"""The split of any data set or file into training and test interactions, in one of three ways."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.columns import Columns
from client_sdk.data.errors import DataError
from client_sdk.data.holdout import hold_out_share, split_rows
from client_sdk.data.interactions import Interactions, LeaveOneOut, held_out_rows
from client_sdk.data.loaders import DATASETS, LIGHTGCN_SETS, NCF_FILES, load_dataset, load_interactions, load_train_test
from client_sdk.data.synthetic import SyntheticConfig, synthetic
from client_sdk.data.train_test import Report, read_folder, read_train_test

__all__ = ["SPLITS", "Split", "SplitKind", "load_split"]

SplitKind = Literal["leave-one-out", "random", "given"]
"""leave-one-out: each user's latest interaction, or a random one without times. random: a share of each user's, or of
all rows for ratings. given: the test file."""
SPLITS: Final[tuple[SplitKind, ...]] = get_args(SplitKind)
_SHARE: Final = 0.2


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test interactions of the same users and items, and how they were split, in words.

    one_each: the split as `LeaveOneOut`, if every user has at most one test interaction.
    """

    train: Interactions
    test: Interactions
    words: str
    one_each: LeaveOneOut | None = None


def load_split(
    name: str,
    data_dir: Path | None = None,
    *,
    columns: Columns | None = None,
    test: Path | None = None,
    kind: SplitKind | None = None,
    seed: int = 0,
    by_rows: bool = False,
    report: Report | None = None,
) -> Split:
    """Return a split of a data set by name, or of a file or folder if `name` is a path.

    test: the file of test interactions; `name` is then the file of training interactions. kind: by default "given" with
    `test` and for a folder, otherwise "random" if `by_rows`, otherwise "leave-one-out". seed: of random draws. by_rows:
    a random split draws rows, not a share of each user's, as is usual for ratings. columns, report: as for
    `load_dataset`. Raises `DataError` for missing and malformed files, and if there is no given split.
    """
    if test is not None:
        if kind not in (None, "given"):
            raise DataError(f"a test file is a given split, not {kind}")
        return _given(*read_train_test(Path(name), test, columns, report))
    is_folder = name not in DATASETS and Path(name).is_dir()
    if kind == "given" or (kind is None and is_folder):
        if name in LIGHTGCN_SETS:
            return _given(*load_train_test(name, data_dir))
        if not is_folder:
            raise DataError(f"{name} has no given split: pass the test file, or a folder with train and test files")
        return _given(*read_folder(Path(name), columns, report))
    if kind is None:
        kind = "random" if by_rows else "leave-one-out"
    if kind == "leave-one-out" and name == "ml-1m" and not by_rows:
        return _published(load_dataset(name, data_dir, seed))
    whole = _whole(name, data_dir, columns, seed, report)
    if kind == "leave-one-out":
        return _one_each(whole, seed)
    if by_rows:
        return Split(*split_rows(whole, _SHARE, seed), f"a random {_SHARE:.0%} of the rows, seed {seed}")
    sides = hold_out_share(whole, _SHARE, seed)
    return Split(*sides, f"a random {_SHARE:.0%} of each user's interactions, seed {seed}")


def _whole(name: str, data_dir: Path | None, columns: Columns | None, seed: int, report: Report | None) -> Interactions:
    if name == "synthetic" and columns is None:
        return synthetic(SyntheticConfig(seed=seed))
    return load_interactions(name, data_dir, columns, report)


def _given(train: Interactions, test: Interactions) -> Split:
    most = int(test.user_degrees().max(initial=0))
    return Split(train, test, "the given test interactions", _as_one_each(train, test) if most == 1 else None)


def _one_each(whole: Interactions, seed: int) -> Split:
    _, held_out = held_out_rows(whole, seed)
    train, test = whole.where(~held_out), whole.where(held_out)
    which = "latest interaction" if whole.timestamps is not None else f"interaction drawn with seed {seed}"
    return Split(train, test, f"each user's {which}", _as_one_each(train, test))


def _as_one_each(train: Interactions, test: Interactions) -> LeaveOneOut:
    items: NDArray[np.int32] = np.full(train.n_users, -1, np.int32)
    items[test.users] = test.items
    return LeaveOneOut(train, items)


def _published(data: LeaveOneOut) -> Split:
    tested = data.tested_users
    test = Interactions.from_pairs(
        tested, data.test_items[tested], n_users=data.train.n_users, n_items=data.train.n_items
    )
    words = "each user's held-out interaction"
    return Split(data.train, test, words if data.test_negatives is None else f"{words}, as in {NCF_FILES[1]}", data)
