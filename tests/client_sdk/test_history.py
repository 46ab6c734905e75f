"""What `take_part` accepts as interactions, and what it says about those that it does not accept."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from scipy.sparse import coo_array, csr_array

from client_sdk.history import History
from protocols.errors import ParameterError

N = 10
NUMBERS = {"tt1": 4, "tt2": 2}


class Column:
    """As a pandas Series: an object with `tolist` that is neither a list nor a mapping."""

    def __init__(self, *values: object) -> None:
        self._values = values

    def tolist(self) -> list[object]:
        return list(self._values)


class Frame:
    """As a pandas DataFrame: `columns` is an index object, and a column is asked for by name."""

    def __init__(self, **columns: Column) -> None:
        self.columns = np.array(list(columns), dtype=object)
        self._columns = columns

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]


class Series:
    """As a pandas Series whose index has a name, such as one of `value_counts`."""

    dtype = np.dtype(int)

    def __init__(self, values: list[int], index: str) -> None:
        self.tolist = lambda: values
        self.index = type("Index", (), {"name": index, "dtype": np.dtype(int)})()


class NA:
    """As pandas.NA: a comparison gives NA, whose truth is ambiguous."""

    def __ne__(self, other: object) -> NA:  # type: ignore[override]
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


@pytest.mark.parametrize(
    "items",
    [
        [4, 2, 7],
        np.array([4, 2, 7], dtype=np.uint8),
        [np.int64(4), 2, np.int32(7)],
        iter([4, 2, 7]),
        {7, 4, 2},
        frozenset({7, 4, 2}),
        Column(4, 2, 7),
        pl.Series([4, 2, 7]),
        Frame(other=Column(4, 2, 7)),
        pl.LazyFrame({"item": [4, 2, 7]}),
        pl.DataFrame({"index": [0, 1, 2], "userId": [1, 1, 1], "movieId": [4, 2, 7], "hour": [9, 9, 9]}),
        pl.DataFrame({"user": [1, 1, 1], "item": [4, 2, 7]}),
        History(np.array([4, 2, 7], dtype=np.int32)),
    ],
    ids=lambda items: type(items).__name__,
)
def test_items_come_in_many_forms(items: object) -> None:
    history = History.of(items, N)
    expected = [2, 4, 7] if isinstance(items, set | frozenset) else [4, 2, 7]  # those of a set are sorted
    assert (history.items.tolist(), history.items.dtype, history.ratings) == (expected, np.int32, None)


@pytest.mark.parametrize(
    "rated",
    [
        {4: 3.5, 2: 1},
        {np.int64(4): np.float32(3.5), 2: Decimal(1)},
        Frame(item=Column(4, 2), rating=Column(3.5, 1)),
        pl.DataFrame({"time": [9, 9], "rating": [3.5, 1.0], "item": [4, 2]}),
        pl.DataFrame({"User": [9, 9], "Stars": [3.5, 1.0], "ASIN": [4, 2]}),
        coo_array(([3.5, 1.0], ([0, 0], [4, 2])), shape=(1, N)),  # in the order of the items
    ],
    ids=lambda rated: type(rated).__name__,
)
def test_ratings_come_with_a_mapping_or_a_table(rated: object) -> None:
    history = History.of(rated, N)
    assert sorted(zip(history.items.tolist(), history.ratings.tolist(), strict=True)) == [(2, 1.0), (4, 3.5)]


def test_the_ids_of_a_catalogue_are_looked_up() -> None:
    assert History.of(["tt1", "tt2"], N, NUMBERS).items.tolist() == [4, 2]
    assert History.of(History(np.array([4, 2], np.int32)), N, NUMBERS).items.tolist() == [4, 2]
    assert not len(History.of([], N, NUMBERS))
    assert History.of(pl.Series(["tt1", "tt2"]), N, NUMBERS).items.tolist() == [4, 2]
    rated = History.of({"tt2": 5}, N, NUMBERS)
    assert (rated.items.tolist(), rated.ratings.tolist()) == ([2], [5.0])


def test_no_items_are_an_empty_history() -> None:
    for empty in ([], (), {}, set(), np.array([]), pl.Series([], dtype=pl.Int64)):
        assert len(History.of(empty, N)) == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, 10], "interactions, index 1: item 10 is outside 0..9, the items of the task: leave it out"),
        (np.array([-1]), "index 0: item -1 is outside 0..9"),
        ([1, 10**30], f"index 1: item {10**30} is outside 0..9"),
        ([3, 1, 2, 1], "index 3: item 1 is there twice, first at index 1: pass it once"),
        (["tt1"], "index 0: 'tt1' is a string, but this task has no item catalogue: pass item numbers 0..9"),
        ([1, 0.5], "index 1: 0.5 is not an integer: convert it with int(...)"),
        ([True], "index 0: True is not an integer: pass item numbers 0..9"),
        ([4, None], "index 1: the item is missing: leave out rows without an item"),
        (Column(1.0, float("nan")), "index 0: 1.0 is not an integer"),
        ([[1, 2]], "index 0: [1, 2] is a list: pass a flat list of item numbers 0..9"),
        (np.zeros((2, 1), dtype=int), "index 0: [0] is a list: pass a flat list"),
        (5, "interactions are 5: pass a list of items, or a mapping from item to rating"),
        (None, "interactions are None: pass a list"),
        (Frame(), "the table of interactions has no columns: it needs a column `item`"),
        (pl.DataFrame({"rank": [1], "thing": [3]}), "no column says that it holds the items ('rank', 'thing'): rename"),
        (pl.DataFrame({"sku": [1], "asin": [3]}), "two columns look like the item, 'sku' and 'asin'; rename"),
        (pl.DataFrame({"Item": [1], "item ": [3]}), "two columns look like the item"),
        (csr_array(np.eye(3)), "a sparse array of 3 rows: pass the row of one user"),
        (np.ma.array([1, 2], mask=[False, True]), "an array with masked values"),
        (Series([3, 4], index="item"), "the Series of interactions has an index that may hold the items"),
        ([1, NA()], "index 1: the item is missing"),
        ({3: "good"}, "the rating of item 3 is 'good': every rating must be a number"),
        ({3: None}, "the rating of item 3 is None: every rating must be a number"),
        ({3: float("nan")}, "the rating of item 3 is nan: every rating must be a finite number"),
        ({3: 1e300}, "the rating of item 3 is inf: every rating must be a finite number"),
    ],
)
def test_errors_name_the_item_and_what_to_do(wrong: object, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        History.of(wrong, N)
    assert message in str(caught.value)
    assert not {"dtype", "shape", "object of"} & set(str(caught.value).split())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["tt1", "tt9"], "index 1: item 'tt9' is not in the task's item catalogue: leave it out"),
        ({"tt1", "tt9"}, "interactions: item 'tt9' is not in the task's item catalogue"),
        (["tt1", "tt2", "tt1"], "index 2: item 'tt1' is there twice, first at index 0"),
        (["tt1", 4], "index 1: 4 is no string, and the items of this task have ids: pass the ids of its item"),
        ([4, 2], "index 0: 4 is no string, and the items of this task have ids"),
        (np.array([4, 2]), "index 0: 4 is no string"),
        (pl.DataFrame({"item": [4, 2]}), "index 0: 4 is no string"),
        ({4: 5.0}, "index 0: 4 is no string"),
        ({4}, "interactions: 4 is no string"),
        (Column(4.0), "index 0: 4.0 is no string, and the items of this task have ids"),
        (["tt1", None], "index 1: the item is missing"),
    ],
)
def test_errors_name_the_id_of_a_catalogue(wrong: object, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        History.of(wrong, N, NUMBERS)
    assert message in str(caught.value)


def test_a_long_value_is_shortened_and_a_history_has_one_rating_an_item() -> None:
    with pytest.raises(ParameterError) as caught:
        History.of(["x" * 1000], N)
    assert len(str(caught.value)) < 250
    with pytest.raises(ParameterError, match="2 items but 1 ratings: pass one rating an item"):
        History(np.array([1, 2], dtype=np.int32), np.array([1.0], dtype=np.float32))


def test_unknown_items_are_left_out_with_consent(caplog) -> None:
    for given, numbers, items, ratings, unknown in (
        (["tt1", "new", " tt2 "], NUMBERS, [4, 2], None, 1),
        ({"new": 1, "tt2": 5}, NUMBERS, [2], [5.0], 1),
        (pl.DataFrame({"sku": ["new", "tt1"], "rating": [1.0, 2.0]}), NUMBERS, [4], [2.0], 1),
        ([4, 10, -1], None, [4], None, 2),
        (History(np.array([4], np.int32)), NUMBERS, [4], None, 0),
    ):
        caplog.clear()
        found = History.of(given, N, numbers, "skip")
        rated = None if found.ratings is None else found.ratings.tolist()
        assert (found.items.tolist(), rated, found.unknown) == (items, ratings, unknown)
        assert ("the task does not have" in caplog.text) == bool(unknown)
        assert "new" not in caplog.text, "what a user has is no business of the log"
    with pytest.raises(ParameterError, match="'tt9' is not in the task's item catalogue: .*on_unknown='skip'"):
        History.of(["tt9"], N, NUMBERS, "error")
    with pytest.raises(ParameterError, match="index 1: 4 is no string"):  # of another kind: not skipped
        History.of(["tt9", 4], N, NUMBERS, "skip")
    with pytest.raises(ParameterError, match="pass 'error' or 'skip'"):
        History.of([1], N, None, "ignore")  # type: ignore[arg-type]


def test_times_of_tables_are_read_as_numbers_dates_and_text(caplog: pytest.LogCaptureFixture) -> None:
    days = [datetime(2024, 5, day, 12) for day in (3, 1, 2)]
    for times in (
        days,
        [day.isoformat() for day in days],
        [day.timestamp() for day in days],
        [day.date() for day in days],
    ):
        found = History.of(pl.DataFrame({"item": [4, 2, 7], "time": times}), 10)
        assert found.times is not None and list(np.argsort(found.times)) == [1, 2, 0], times
    assert History.of(pl.DataFrame({"item": [4, 2]}), 10).times is None and not caplog.records
    assert History.of(pl.DataFrame({"item": [4, 2], "time": ["1", "soon"]}), 10).times is None
    assert "'soon' is neither a number nor a date" in caplog.text
    some = History(np.array([3, 1], np.int32), times=np.array([1.0, 2.0]))
    assert History.of(some, 10).times is some.times
    assert list(some.where(np.array([False, True])).times) == [2.0]  # type: ignore[arg-type]
    known = History.of(pl.DataFrame({"item": [4, 99, 2], "time": [3, 1, 2]}), 10, on_unknown="skip")
    assert known.unknown == 1 and list(known.times) == [3.0, 2.0]  # type: ignore[arg-type]
    for times in (np.array([1.0]), np.array([1.0, np.inf])):
        with pytest.raises(ParameterError, match="one finite time an item"):
            History(np.array([3, 1], np.int32), times=times)
