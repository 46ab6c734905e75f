"""The split of any data set or file into training and test interactions, in one of three ways."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.interactions import (
    DataError,
    Interactions,
    LeaveOneOut,
    has_equal_latest,
    held_out_rows,
    row_draws,
)
from client_sdk.lab.data.published import (
    DATASETS,
    LIGHTGCN_SETS,
    NCF_FILES,
    Report,
    load_interactions,
    published_ncf,
    published_sides,
    read_folder,
    read_train_test,
)
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic

SplitKind = Literal["leave-one-out", "random", "given"]
"""leave-one-out: each user's latest interaction, or a random one without times. random: a share of each user's, or of
all rows for ratings. given: the test file."""
_SHARE: Final = 0.2


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test interactions of the same users and items, and how they were split, in words."""

    train: Interactions
    test: Interactions
    words: str
    one_each: LeaveOneOut | None = None
    """The split as `LeaveOneOut`, if every user has at most one test interaction."""


def load_split(
    name: str,
    data_dir: Path | None = None,
    *,
    columns: Columns | None = None,
    skip_bad: int = 0,
    test: Path | None = None,
    kind: SplitKind | None = None,
    seed: int = 0,
    by_rows: bool = False,
    report: Report | None = None,
) -> Split:
    """Return a split of a data set by name, or of a file or folder if `name` is a path.

    test: the file of test interactions; `name` is then the file of training interactions. kind: by default "given" with
    `test` and for a folder, otherwise "random" if `by_rows`, otherwise "leave-one-out". seed: of random draws. by_rows:
    a random split draws rows, not a share of each user's, as is usual for ratings. columns, skip_bad, report: as for
    `load_interactions`. Raises `DataError` for missing and malformed files, and if there is no given split.
    """
    if test is not None:
        if kind not in (None, "given"):
            raise DataError(f"a test file is a given split, not {kind}")
        return _given(*read_train_test(Path(name), test, columns, report, skip_bad))
    is_folder = name not in DATASETS and Path(name).is_dir()
    if kind == "given" or (kind is None and is_folder):
        if name in LIGHTGCN_SETS:
            return _given(*published_sides(name, data_dir))
        if not is_folder:
            raise DataError(f"{name} has no given split: pass the test file, or a folder with train and test files")
        return _given(*read_folder(Path(name), columns, report, skip_bad))
    if kind is None:
        kind = "random" if by_rows else "leave-one-out"
    if kind == "leave-one-out" and name == "ml-1m" and not by_rows:
        data = published_ncf(data_dir)
        if data is not None:
            return _published(data)
    if name == "synthetic" and columns is None:
        whole = synthetic(SyntheticConfig(seed=seed))
    else:
        whole = load_interactions(name, data_dir, columns, report, skip_bad)
    if kind == "leave-one-out":
        return _one_each(whole, seed)
    if by_rows:
        return Split(*split_rows(whole, _SHARE, seed), f"a random {_SHARE:.0%} of the rows, seed {seed}")
    sides = hold_out_share(whole, _SHARE, seed)
    return Split(*sides, f"a random {_SHARE:.0%} of each user's interactions, seed {seed}")


def _given(train: Interactions, test: Interactions) -> Split:
    most = int(test.user_degrees().max(initial=0))
    return Split(train, test, "the given test interactions", LeaveOneOut.of(train, test) if most == 1 else None)


def _one_each(whole: Interactions, seed: int) -> Split:
    held_out = held_out_rows(whole, seed)
    train, test = whole.where(~held_out), whole.where(held_out)
    which = "latest interaction" if whole.timestamps is not None else f"interaction drawn with seed {seed}"
    equal = has_equal_latest(whole)
    drawn = f"; of {equal:,} users it is drawn with seed {seed} from several of one time" if equal else ""
    return Split(train, test, f"each user's {which}{drawn}", LeaveOneOut.of(train, test))


def _published(data: LeaveOneOut) -> Split:
    tested = data.tested_users
    test = Interactions.from_pairs(
        tested, data.test_items[tested], n_users=data.train.n_users, n_items=data.train.n_items
    )
    return Split(data.train, test, f"each user's held-out interaction, as in {NCF_FILES[1]}", data)


# --- splits with several test interactions per user, for data sets that are published without a split ----------------


def hold_out_share(
    interactions: Interactions, share: float = 0.2, rng: np.random.Generator | int = 0
) -> tuple[Interactions, Interactions]:
    """Return training and test interactions: round(share * n) random ones of each user's n are held out, never all.

    rng: a generator or a seed. Both results keep the numbering of users and items. Raises `DataError` for a share
    outside (0, 1).
    """
    _check_share(share)
    counts, users = interactions.user_degrees(), interactions.users
    order = np.lexsort((row_draws(interactions, rng), users))
    place = np.arange(interactions.size) - interactions.indptr[users]
    held = np.minimum(np.rint(share * counts).astype(np.int64), np.maximum(counts - 1, 0))
    is_test = np.zeros(interactions.size, dtype=bool)
    is_test[order] = place < held[users]
    return interactions.where(~is_test), interactions.where(is_test)


def split_rows(
    interactions: Interactions, share: float = 0.2, rng: np.random.Generator | int = 0
) -> tuple[Interactions, Interactions]:
    """Return training and test interactions: round(share * rows) random rows of all users are held out.

    RFRec's split of explicit ratings (80/20). A user may have no training rows or no test rows. rng: a generator or a
    seed. Both results keep ratings and the numbering. Raises `DataError` for a share outside (0, 1), and if one of the
    results would be empty.
    """
    _check_share(share)
    count = int(np.rint(share * interactions.size))
    if not 0 < count < interactions.size:
        raise DataError(f"{interactions.size} rows are too few to hold out a share of {share}")
    is_test = np.zeros(interactions.size, dtype=bool)
    is_test[np.argsort(row_draws(interactions, rng))[:count]] = True
    return interactions.where(~is_test), interactions.where(is_test)


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise DataError(f"the share must lie between 0 and 1, got {share}")


# --- subsets of a data set, with users and items renumbered. Papers use them on sparse data --------------------------


def sample_users(interactions: Interactions, count: int, rng: np.random.Generator | int = 0) -> Interactions:
    """Return the interactions of `count` random users who have any, and only the items of these users.

    Users and items are renumbered as by `only_users`. rng: a generator or a seed. The result is `interactions`
    itself if no more than `count` users have any.
    """
    active = interactions.active_users
    if active.size <= count:
        return interactions
    return only_users(interactions, np.sort(np.random.default_rng(rng).choice(active, count, replace=False)))


def only_users(interactions: Interactions, active: NDArray[np.intp]) -> Interactions:
    """Return the interactions of the users `active`, intp (users,) ascending, and only the items of these users.

    Users and items are renumbered from 0 in their order. Their ids are the ids of the input, or its numbers if it has
    no ids. Merged interactions count once.
    """
    kept = interactions.where(np.isin(interactions.users, active))
    items = np.flatnonzero(kept.item_degrees())
    return replace(
        kept,
        n_users=active.size,
        n_items=items.size,
        indptr=np.concatenate([[0], np.cumsum(kept.user_degrees()[active])]).astype(np.int64),
        items=np.searchsorted(items, kept.items).astype(np.int32),
        user_ids=active if kept.user_ids is None else kept.user_ids[active],
        item_ids=items if kept.item_ids is None else kept.item_ids[items],
    )
