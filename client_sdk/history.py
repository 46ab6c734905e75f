"""The interactions of one user: items and, where the recipe needs them, ratings."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from math import nan
from typing import Any, Final, Literal, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.headings import columns_of, recognise

_LOG = logging.getLogger(__name__)
_SHOWN: Final = 10  # headings in an error

OnUnknown = Literal["error", "skip"]
"""What is done with items that the task does not have: raise an error, or leave them out."""


def check_on_unknown(on_unknown: object) -> None:
    """Raise `ParameterError` unless it says what to do with items that the task does not have."""
    if on_unknown not in ("error", "skip"):
        raise ParameterError(f"on_unknown is {_short(on_unknown)}: pass 'error' or 'skip'")


@dataclass(frozen=True, eq=False)
class History:
    """One user's interactions, each item once. They are never sent.

    Raises `ParameterError` when the lengths differ or a rating or a time is not finite.
    """

    items: NDArray[np.int32]
    """int32 (k,)."""
    ratings: NDArray[np.float32] | None = None
    """float32 (k,) in the scale of the data, None for interactions without ratings."""
    unknown: int = 0
    """Number of items that were left out, because the task does not have them (`OnUnknown`)."""
    times: NDArray[np.float64] | None = None
    """float64 (k,), in any unit that grows with time, None where they are not known."""

    def __post_init__(self) -> None:
        if self.times is not None and not (self.times.shape == self.items.shape and np.isfinite(self.times).all()):
            raise ParameterError(f"{self.items.size} items but {self.times.size} times: pass one finite time an item")
        if self.ratings is None:
            return
        if self.ratings.shape != self.items.shape:
            raise ParameterError(f"{self.items.size} items but {self.ratings.size} ratings: pass one rating an item")
        wrong = np.flatnonzero(~np.isfinite(self.ratings))
        if wrong.size:
            at = int(wrong[0])
            raise ParameterError(
                f"the rating of item {int(self.items[at])} is {self.ratings[at]}: every rating must be a finite number"
            )

    def __len__(self) -> int:
        return int(self.items.size)

    def where(self, kept: NDArray[np.bool_]) -> History:
        """Return the interactions for which `kept`, bool (k,), is true."""
        ratings = None if self.ratings is None else self.ratings[kept]
        return History(self.items[kept], ratings, self.unknown, None if self.times is None else self.times[kept])

    def __repr__(self) -> str:
        return f"History({len(self)} items{'' if self.ratings is None else ', rated'})"

    @classmethod
    def of(
        cls,
        interactions: object,
        n_items: int,
        numbers: Mapping[str, int] | None = None,
        on_unknown: OnUnknown = "error",
    ) -> History:
        """Return the `History` for one user's `interactions`, which are one of:

        - a `History`
        - items: a list, tuple, set, array or Series of numpy, pandas or polars, or another iterable
        - a mapping from item to rating
        - a DataFrame or LazyFrame of pandas or polars: its column `item`, the only one with a usual heading such as
          `movieId` or `sku`, or its only column; and its columns `rating` and `time` or the like, if it has such
        - a row of a scipy sparse matrix: the columns of its entries are the items, their values the ratings

        Items are integers in 0..n_items-1; in a task with a catalogue they are its ids, and integers are refused: they
        could be ids, or places in the catalogue. A `History` has item numbers in any task. numbers: from id to item
        number; None for a task without a catalogue. on_unknown: "skip" leaves out items that the task does not have;
        the log has their number, not their ids. Raises `ParameterError`, which names the first item that is not known,
        out of range or there twice, or whose rating is not a number.
        """
        check_on_unknown(on_unknown)
        if isinstance(interactions, History):
            own = item_ids(interactions.items, n_items)
            return cls(own, interactions.ratings, interactions.unknown, interactions.times)
        items, ratings, times = _items_and_ratings(interactions)
        left_out = 0
        if on_unknown == "skip":
            values = _values(items)
            known = [
                at
                for at, value in enumerate(values)
                if not (isinstance(value, str) and numbers is not None and value.strip() not in numbers)
                and not (type(value) is int and numbers is None and not 0 <= value < n_items)
            ]
            left_out = len(values) - len(known)
            if left_out:
                _LOG.warning("left out %d of %d items, which the task does not have", left_out, len(values))
            items, numbers = [_number(values[at], _place(at, True), n_items, numbers) for at in known], None
            ratings, times = (None if column is None else [column[at] for at in known] for column in (ratings, times))
        found = item_ids(items, n_items, numbers)
        rated = None if ratings is None else _rating_values(ratings, found)
        return cls(found, rated, left_out, None if times is None else time_values(times))


def item_ids(items: object, n_items: int, numbers: Mapping[str, int] | None = None) -> NDArray[np.int32]:
    """Return `items` as int32 (k,), in their order; those of a set in ascending order.

    numbers: as for `History.of`. Raises `ParameterError` unless they are distinct and known.
    """
    values = _values(items)
    places = not isinstance(items, set | frozenset)
    array = np.asarray(values) if numbers is None and _is_integer(values) else None
    if array is None:
        array = np.array([_number(value, _place(at, places), n_items, numbers) for at, value in enumerate(values)])
    if array.size == 0:
        return np.zeros(0, dtype=np.int32)
    outside = np.flatnonzero((array < 0) | (array >= n_items))
    if outside.size:
        at = int(outside[0])
        raise ParameterError(_outside(int(array[at]), _place(at, places), n_items))
    first = np.unique(array, return_index=True)[1]
    if first.size != array.size:
        again = int(np.setdiff1d(np.arange(array.size), first)[0])
        before = int(np.flatnonzero(array == array[again])[0])
        where = f", first at index {before}" if places else ""
        item = _short(values[again])
        raise ParameterError(f"{_place(again, places)}: item {item} is there twice{where}: pass it once")
    return (array if places else np.sort(array)).astype(np.int32)


def _is_integer(values: list[Any]) -> bool:
    """Whether all are plain integers of 64 bits, so that numpy can look at them together."""
    return all(type(value) is int and -(1 << 63) <= value < 1 << 63 for value in values)


def _items_and_ratings(interactions: object) -> tuple[object, list[object] | None, list[object] | None]:
    """Return the items, and their ratings and times if they come with some."""
    if isinstance(interactions, Mapping):
        return list(interactions), list(interactions.values()), None
    if hasattr(interactions, "collect_schema") and hasattr(interactions, "collect"):  # a LazyFrame
        interactions = interactions.collect()
    if hasattr(interactions, "tocoo") and hasattr(interactions, "nnz"):  # a sparse array or matrix of scipy
        return _sparse_row(interactions)
    if getattr(interactions, "columns", None) is not None:
        return _columns(interactions)
    index = getattr(interactions, "index", None)  # of a pandas Series; a method of a list
    kind = getattr(getattr(index, "dtype", None), "kind", "i")
    if hasattr(interactions, "dtype") and (getattr(index, "name", None) is not None or kind not in "iu"):
        raise ParameterError(
            "the Series of interactions has an index that may hold the items: pass the items alone, list(series) or "
            "list(series.index), or a mapping from item to rating, series.to_dict()"
        )
    return interactions, None, None


def _sparse_row(row: Any) -> tuple[object, list[object] | None, None]:
    if len(row.shape) > 1 and row.shape[0] != 1:
        raise ParameterError(f"interactions are a sparse array of {row.shape[0]} rows: pass the row of one user")
    entries = row.tocoo()
    entries.sum_duplicates()
    return entries.coords[-1], _values(entries.data), None


def _columns(frame: Any) -> tuple[object, list[object] | None, list[object] | None]:
    """Return the items of a DataFrame, and its ratings and times if it has columns of usual headings for them."""
    names = [str(name) for name in frame.columns]
    if not names:
        raise ParameterError("the table of interactions has no columns: it needs a column `item`")
    plain = [name.strip().lower() for name in names]
    try:
        found = columns_of([name if _counts(name, "item" in plain) else "" for name in plain])
    except ParameterError as error:
        raise ParameterError(f"the table of interactions: {error}; rename the column of items to `item`") from None
    item = found.get("item", 0 if len(names) == 1 else None)
    if item is None or plain.count(plain[item]) > 1:
        have = ", ".join(map(repr, names[:_SHOWN])) + ", ..." * (len(names) > _SHOWN)
        raise ParameterError(f"no column says that it holds the items ({have}): rename theirs to `item`")
    columns = list(frame.columns)
    ratings, times = (
        None if found.get(role) is None else _values(frame[columns[found[role]]]) for role in ("rating", "time")
    )
    return frame[columns[item]], ratings, times


def _counts(name: str, has_item: bool) -> bool:
    """Whether a heading says what its column is; beside one called `item` only those of ratings and times do."""
    return not has_item or name in ("item", "rating") or recognise(name) == "time"


def time_values(times: Sequence[object]) -> NDArray[np.float64] | None:
    """Return times as float64 (k,), of numbers, dates or ISO 8601 text; None, and a line in the log, if one is none of
    these, because most recipes need no times."""
    found = np.array([_time_value(time) for time in times], np.float64)
    wrong = np.flatnonzero(~np.isfinite(found))
    if wrong.size:
        _LOG.warning("times are left out: %s is neither a number nor a date", _short(times[int(wrong[0])]))
        return None
    return found


def _time_value(time: object) -> float:
    if isinstance(time, str):
        try:
            return float(time)
        except ValueError:
            pass
        try:
            time = datetime.fromisoformat(time.strip())
        except ValueError:
            return nan
    if isinstance(time, date) and not isinstance(time, datetime):
        time = datetime(time.year, time.month, time.day)
    if isinstance(time, datetime):
        known = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return known.timestamp() if known == known else nan
    return float(time) if isinstance(time, SupportsFloat) and not isinstance(time, bool) else nan


def _values(column: object) -> list[Any]:
    """Return the values of a list, set, array or Series as Python objects."""
    if np.ma.is_masked(column):
        raise ParameterError("interactions are an array with masked values: pass its compressed()")
    for name in ("tolist", "to_list"):  # numpy and pandas; polars
        convert = getattr(column, name, None)
        if callable(convert):
            column = convert()
            break
    if isinstance(column, str | bytes) or not isinstance(column, Iterable):
        raise ParameterError(
            f"interactions are {_short(column)}: pass a list of items, or a mapping from item to rating"
        )
    return [value.item() if isinstance(value, np.generic) else value for value in column]


def _short(value: object) -> str:
    """Return the start of a value's repr, for an error."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _place(at: int, places: bool) -> str:
    return f"interactions, index {at}" if places else "interactions"


def _outside(item: int, where: str, n_items: int) -> str:
    return (
        f"{where}: item {item} is outside 0..{n_items - 1}, the items of the task: leave it out, and number the "
        "others as the task does"
    )


def _number(value: object, where: str, n_items: int, numbers: Mapping[str, int] | None) -> int:
    """Return the number of one item; `ParameterError`, which starts with `where`, if it is none."""
    allowed = f"item numbers 0..{n_items - 1}"
    if isinstance(value, str):
        if numbers is None:
            raise ParameterError(
                f"{where}: {_short(value)} is a string, but this task has no item catalogue: pass {allowed}"
            )
        number = numbers.get(value.strip())
        if number is None:
            advice = "leave it out, or pass on_unknown='skip'"
            raise ParameterError(f"{where}: item {_short(value)} is not in the task's item catalogue: {advice}")
        return number
    if _is_missing(value):
        raise ParameterError(f"{where}: the item is missing: leave out rows without an item")
    if numbers is not None:
        raise ParameterError(
            f"{where}: {_short(value)} is no string, and the items of this task have ids: pass the ids of its item "
            "catalogue as strings; str(item) if yours are numbers"
        )
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < n_items:  # also those that do not fit 64 bits
            raise ParameterError(_outside(value, where, n_items))
        return value
    if isinstance(value, list | tuple):
        raise ParameterError(f"{where}: {_short(value)} is a {type(value).__name__}: pass a flat list of {allowed}")
    convert = f": convert it with int(...) to one of the {allowed}" if isinstance(value, float) else f": pass {allowed}"
    raise ParameterError(f"{where}: {_short(value)} is not an integer{convert}")


def _is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, NaT or pandas' NA, as tables write a missing value."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # the truth of NA is ambiguous; so is that of an array, which is no item
        return type(value).__name__ == "NA" or type(value).__name__ == "NAType"


def _rating_values(ratings: list[Any], items: NDArray[np.int32]) -> NDArray[np.float32]:
    for item, rating in zip(items.tolist(), ratings, strict=False):
        if not isinstance(rating, SupportsFloat):  # strings are not
            raise ParameterError(f"the rating of item {item} is {_short(rating)}: every rating must be a number")
    with np.errstate(over="ignore"):  # becomes infinite, which is refused
        return np.array([float(rating) for rating in ratings], dtype=np.float64).astype(np.float32)
