"""User-item interactions, and the leave-one-out split used to evaluate recommenders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from client_sdk.history import History

if TYPE_CHECKING:
    from scipy.sparse import csr_array
from pathlib import Path

from protocols.errors import HushRecError

MAX_COUNT: Final = 2**31 - 1
"""Largest number of users or items: they are numbered in int32."""

_HASHES: Final = 1 << 22

Duplicates = Literal["error", "latest"]
"""Treatment of repeated (user, item) pairs: raise an error, or keep the latest and count the others in `merged`.

Of equal times it is the one with the highest rating; without times it is the last in the file.
"""


@dataclass(frozen=True, eq=False)
class Interactions:
    """Distinct (user, item) pairs, grouped by user; each user's are in order of time, without times in file order.

    Users are numbered 0..n_users-1, items 0..n_items-1; either may have no interaction.

    Raises `DataError` if the shapes of the arrays do not match or an item is out of range.
    """

    n_users: int
    n_items: int
    indptr: NDArray[np.int64]
    """int64 (n_users + 1,): the items of user u are `items[indptr[u]:indptr[u + 1]]`, int32."""
    items: NDArray[np.int32]
    ratings: NDArray[np.float32] | None = None
    """On the scale of the file."""
    timestamps: NDArray[np.int64] | None = None
    """In seconds or any other unit that increases with time."""
    user_ids: NDArray[Any] | None = None
    item_ids: NDArray[Any] | None = None
    """The ids in the file, integers or text."""
    merged: int = 0
    """Number of repeated pairs that were left out (see `Duplicates`)."""
    returned: int = 0
    """Number of pairs that were left out because as much came back as was bought."""

    def __post_init__(self) -> None:
        if self.indptr.shape != (self.n_users + 1,) or self.indptr[0] != 0 or np.any(np.diff(self.indptr) < 0):
            raise DataError(f"indptr must ascend from 0 and have {self.n_users + 1} entries")
        if self.items.shape != (self.indptr[-1],):
            raise DataError(f"items needs {self.indptr[-1]} entries, got shape {self.items.shape}")
        if self.items.size and not (self.items.min() >= 0 and self.items.max() < self.n_items):
            raise DataError(f"an item lies outside 0..{self.n_items - 1}")
        for name, length in (
            ("ratings", self.items.size),
            ("timestamps", self.items.size),
            ("user_ids", self.n_users),
            ("item_ids", self.n_items),
        ):
            values = getattr(self, name)
            if values is not None and values.shape != (length,):
                raise DataError(f"{name} needs {length} entries, got shape {values.shape}")

    @property
    def size(self) -> int:
        """Number of interactions."""
        return int(self.items.size)

    @property
    def active_users(self) -> NDArray[np.intp]:
        """Users with an interaction, ascending."""
        return np.flatnonzero(self.user_degrees())

    @property
    def users(self) -> NDArray[np.int32]:
        """User of each interaction, int32 (interactions,)."""
        return np.repeat(np.arange(self.n_users, dtype=np.int32), np.diff(self.indptr))

    def positives(self, user: int) -> NDArray[np.int32]:
        """Return the user's items in their order, a view, int32. Raises `DataError` for an unknown user."""
        return self.items[self.rows_of(user)]

    def rows_of(self, user: int) -> slice:
        """Return the place of the user's interactions. Raises `DataError` for an unknown user."""
        if not 0 <= user < self.n_users:
            raise DataError(f"user {user} lies outside 0..{self.n_users - 1}")
        return slice(int(self.indptr[user]), int(self.indptr[user + 1]))

    def history(self, user: int) -> History:
        """Return the user's items and, if the data has them, ratings and times: the data of the user's client."""
        own = self.rows_of(user)
        times = None if self.timestamps is None else self.timestamps[own].astype(np.float64)
        return History(self.items[own], None if self.ratings is None else self.ratings[own], times=times)

    def pairs_of(self, users: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return, for each interaction of `users`, the index of its user in `users` and its item."""
        starts, lengths = self.indptr[users], self.user_degrees()[users]
        owners = np.repeat(np.arange(users.size), lengths)
        within = np.arange(owners.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return owners, self.items[np.repeat(starts, lengths) + within]

    def item_degrees(self) -> NDArray[np.int64]:
        """Return the number of users of each item, int64 (n_items,)."""
        return np.bincount(self.items, minlength=self.n_items).astype(np.int64)

    def user_degrees(self) -> NDArray[np.int64]:
        """Return the number of items of each user, int64 (n_users,)."""
        return np.diff(self.indptr)

    def where(self, kept: NDArray[np.bool_]) -> Interactions:
        """Return the interactions for which `kept`, bool (interactions,), is true. Users and items keep their numbers.

        Raises `DataError` for any other shape.
        """
        if kept.shape != (self.size,):
            raise DataError(f"kept needs an entry for each of {self.size} interactions, got shape {kept.shape}")
        indptr = np.zeros_like(self.indptr)
        np.cumsum(np.bincount(self.users[kept], minlength=self.n_users), out=indptr[1:])
        return replace(
            self,
            indptr=indptr,
            items=self.items[kept],
            ratings=None if self.ratings is None else self.ratings[kept],
            timestamps=None if self.timestamps is None else self.timestamps[kept],
        )

    @classmethod
    def from_pairs(
        cls,
        users: ArrayLike,
        items: ArrayLike,
        *,
        n_users: int | None = None,
        n_items: int | None = None,
        ratings: ArrayLike | None = None,
        timestamps: ArrayLike | None = None,
        user_ids: NDArray[Any] | None = None,
        item_ids: NDArray[Any] | None = None,
        duplicates: Duplicates = "error",
        returned: int = 0,
    ) -> Interactions:
        """Return interactions from two arrays of one length, of user and item numbers from 0.

        n_users, n_items: the largest number + 1 by default. duplicates: what to do with repeated pairs. Raises
        `DataError` if a number is out of range, the arrays do not match, or, by default, a pair is repeated. With
        timestamps the result does not depend on the order of the arrays: items of equal times are in their own order.
        """
        user, item = _numbers(users), _numbers(items)
        if user.ndim != 1 or user.shape != item.shape:
            raise DataError(f"users and items must be arrays of one length, got {user.shape} and {item.shape}")
        n_users = int(user.max(initial=-1)) + 1 if n_users is None else n_users
        n_items = int(item.max(initial=-1)) + 1 if n_items is None else n_items
        for name, values, count in (("user", user, n_users), ("item", item, n_items)):
            if count > MAX_COUNT:
                raise DataError(f"{name} numbers up to {count - 1} do not fit in 32 bits; number them from 0 on")
            if values.size and not (values.min() >= 0 and values.max() < count):
                raise DataError(f"{name} numbers must lie in 0..{count - 1}, got {values.min()}..{values.max()}")
        rated = None if ratings is None else _column("ratings", ratings, user.size, np.float32)
        times = None if timestamps is None else _column("timestamps", timestamps, user.size, np.int64)
        kept = _distinct_positions(user, item, n_items, duplicates, times, rated)
        if kept is not None:
            user, item = user[kept], item[kept]
            rated, times = (None if column is None else column[kept] for column in (rated, times))
        order = _grouped(user) if times is None else _by_time(user, item, times)
        indptr = np.zeros(n_users + 1, dtype=np.int64)
        np.cumsum(np.bincount(user, minlength=n_users), out=indptr[1:])
        return cls(
            n_users,
            n_items,
            indptr,
            item[order].astype(np.int32, copy=False),
            None if rated is None else rated[order],
            None if times is None else times[order],
            user_ids,
            item_ids,
            0 if kept is None else int(np.count_nonzero(~kept)),
            returned,
        )


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """A training set and at most one held-out item per user (He et al., WWW 2017, section 4.1).

    Raises `DataError` if a held-out item is in its user's training set, or if shapes or item numbers are wrong.
    """

    train: Interactions
    test_items: NDArray[np.int32]
    """int32 (n_users,), -1 for a user without one."""
    test_negatives: NDArray[np.int32] | None = None
    """int32 (n_users, 99), as in the file, including invalid ones; None if there is no such file."""

    def __post_init__(self) -> None:
        shape = (self.train.n_users,)
        if self.test_items.shape != shape:
            raise DataError(f"test_items needs shape {shape}, got {self.test_items.shape}")
        for name, values in (("test item", self.test_items), ("test negative", self.test_negatives)):
            if values is not None and values.size and not (values.min() >= -1 and values.max() < self.train.n_items):
                raise DataError(f"a {name} lies outside 0..{self.train.n_items - 1}")
        if self.test_negatives is not None and self.test_negatives.shape[:1] != shape:
            raise DataError(f"test_negatives needs {shape[0]} rows, got {self.test_negatives.shape}")
        leaked = np.flatnonzero(self.train.items == self.test_items[self.train.users])
        if leaked.size:
            raise DataError(f"the held-out item of user {self.train.users[leaked[0]]} is in the training set too")

    @classmethod
    def of(cls, train: Interactions, test: Interactions) -> LeaveOneOut:
        """Return the split into these, of the same users and items; no user has two test interactions."""
        test_items: NDArray[np.int32] = np.full(train.n_users, -1, dtype=np.int32)
        test_items[test.users] = test.items
        return cls(train, test_items)

    @property
    def tested_users(self) -> NDArray[np.intp]:
        """Users with a held-out item, ascending."""
        return np.flatnonzero(self.test_items >= 0)


def leave_one_out(interactions: Interactions, rng: np.random.Generator | int = 0) -> LeaveOneOut:
    """Hold out one interaction of each user with at least two. All others are training interactions.

    It is the latest, of equal times one drawn with `rng`, a generator or a seed. Without timestamps it is drawn from
    all, because files without them are often sorted by item.
    """
    held_out = held_out_rows(interactions, rng)
    return LeaveOneOut.of(interactions.where(~held_out), interactions.where(held_out))


def held_out_rows(interactions: Interactions, rng: np.random.Generator | int = 0) -> NDArray[np.bool_]:
    """Return which interactions `leave_one_out` holds out, bool (interactions,)."""
    draws, users = row_draws(interactions, rng), interactions.users
    keys = (draws, users) if interactions.timestamps is None else (draws, interactions.timestamps, users)
    tested = np.flatnonzero(interactions.user_degrees() >= 2)
    held_out = np.zeros(interactions.size, dtype=bool)
    held_out[np.lexsort(keys)[interactions.indptr[1:][tested] - 1]] = True
    return held_out


def row_draws(interactions: Interactions, rng: np.random.Generator | int) -> NDArray[np.float64]:
    """Return a random number for each interaction, float64 (interactions,), whatever their order in the file."""
    draws = np.empty(interactions.size)
    order = np.lexsort((interactions.items, interactions.users))
    draws[order] = np.random.default_rng(rng).random(interactions.size)
    return draws


def has_equal_latest(interactions: Interactions) -> int:
    """Return the number of users whose latest interactions are several of one time, such as a basket."""
    if interactions.timestamps is None:
        return 0
    ends = interactions.indptr[1:][interactions.user_degrees() >= 2] - 1
    return int(np.count_nonzero(interactions.timestamps[ends] == interactions.timestamps[ends - 1]))


def _distinct_positions(
    users: NDArray[np.integer[Any]],
    items: NDArray[np.integer[Any]],
    n_items: int,
    duplicates: Duplicates,
    times: NDArray[np.int64] | None,
    ratings: NDArray[np.float32] | None,
) -> NDArray[np.bool_] | None:
    """Return which rows are kept, bool (rows,); None if no pair is repeated. Raises `DataError` for one on "error"."""
    keys = users.astype(np.int64)
    keys *= n_items
    keys += items
    ordered = np.sort(keys)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    del ordered  # 8 bytes an interaction
    if not repeated.size:
        return None
    if duplicates == "error":
        user, item = divmod(int(repeated[0]), n_items)
        raise DataError(f"user {user} has item {item} more than once")
    maybe = np.zeros(_HASHES, dtype=bool)  # repeated pairs are usually few: look at those with the hash of one alone
    maybe[repeated % _HASHES] = True
    rows = np.flatnonzero(maybe[keys % _HASHES])
    rows = rows[np.isin(keys[rows], repeated)]
    order = rows[np.lexsort([column[rows] for column in (ratings, times, keys) if column is not None])]
    kept = np.ones(keys.size, dtype=bool)
    kept[order[:-1][keys[order[1:]] == keys[order[:-1]]]] = False
    return kept


def _grouped(users: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the order that groups users, of each in the given order.

    The places are sorted as the low bits of numbers, because numpy sorts numbers far faster than it finds their order.
    """
    bits = users.size.bit_length()
    keys = users.astype(np.int64)
    keys <<= bits
    keys |= np.arange(users.size)
    keys.sort()
    keys &= (1 << bits) - 1
    return keys


def _by_time(
    users: NDArray[np.integer[Any]], items: NDArray[np.integer[Any]], times: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the order by user, time and item."""
    order = _grouped(users)
    user, item, time = users[order], items[order], times[order]
    later = (user[1:] != user[:-1]) | (time[1:] > time[:-1]) | ((time[1:] == time[:-1]) & (item[1:] > item[:-1]))
    return order if later.all() else np.lexsort((items, times, users))


def _numbers(values: ArrayLike) -> NDArray[np.integer[Any]]:
    """Return an array of integers: int32 and int64 as they are, others as int64."""
    array = np.asarray(values)
    return array if array.dtype in (np.int32, np.int64) else array.astype(np.int64)


def _column(name: str, values: ArrayLike, length: int, dtype: type[np.generic]) -> NDArray[Any]:
    column = np.asarray(values)
    if column.shape != (length,):
        raise DataError(f"{name} needs {length} entries, got shape {column.shape}")
    return column.astype(dtype, copy=False)


def interaction_rows(interactions: Interactions) -> csr_array[Any, Any]:
    """Return the rows of all users, float32 CSR (n_users, n_items)."""
    from scipy.sparse import csr_array  # which only the spectra need: it takes long to import

    ones = np.ones(interactions.size, dtype=np.float32)
    shape = (interactions.n_users, interactions.n_items)
    rows = csr_array((ones, interactions.items.copy(), interactions.indptr), shape=shape)
    rows.sort_indices()
    return rows


# --- the error of all functions that read, download or describe data -------------------------------------------------


class DataError(HushRecError, ValueError):
    """Data is missing or malformed.

    problem: what is wrong. path: the file, if known. line: the line in it, from 1, if known (parquet: the row, from 1).
    column: the column, if known: its heading or its number from 0, as in `Columns`, and what is read from it.
    """

    def __init__(
        self, problem: str, path: Path | None = None, line: int | None = None, column: str | None = None
    ) -> None:
        self.problem, self.path, self.line, self.column = problem, path, line, column
        place = [str(path)] if path is not None else []
        place += [f"line {line}"] if line is not None and place else []
        place += [f"column {column}"] if column is not None else []
        super().__init__((", ".join(place) + ": " if place else "") + problem)
