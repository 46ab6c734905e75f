"""Every file format, also with odd dates, headings and matrices; errors name the line or the missing data set."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.lab.data.columns import LISTS, Columns
from client_sdk.lab.data.files import by_place, read_data_file
from client_sdk.lab.data.interactions import DataError, Interactions
from client_sdk.lab.data.published import DATASETS, load_interactions, read_ncf
from client_sdk.lab.data.splits import load_split
from tests.support.splits import both_sides, held_out


def read(path: Path, columns: Columns | None = None) -> Interactions:
    """As the files of known data sets are read: integer ids, no repeated pair."""
    columns = by_place(path) if columns is None else columns
    return read_data_file(path, columns, duplicates="error", integer_ids=True).interactions


def read_lists(path: Path) -> Interactions:
    return read_data_file(path, Columns("user", LISTS)).interactions


def put(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("reader", "text", "line", "what"),
    [
        (read, "1\t2\t3\t4\n1\t3.5\t3\t4\n", 2, "item must be a whole number"),
        (read, "1\t2\t3\t4\n1\t4\t3\t4\n-1\t3\t3\t4\n", 3, "user must be a whole number of at least 0"),
        (read_data_file, "# a comment\n1\t2\t3\t4\n", 1, "it begins with a comment: delete such lines: grep"),
        (read_lists, "0 1 2\n1 -2\n", 2, "whole number"),
        (read_lists, "0 1 2\n1 2.0\n", 2, "whole number"),
        (read_lists, "0 1 2\n\n1 3\n", 2, "blank"),
        (read_lists, "0 1 2\n1 3\n0 4\n", 3, "user 0 already has a line"),
    ],
)
def test_error_names_the_malformed_line(tmp_path, reader, text, line, what) -> None:
    path = put(tmp_path / "train.txt", text)
    with pytest.raises(DataError, match=what) as caught:
        reader(path)
    assert caught.value.line == line
    if line is not None:
        assert str(caught.value).startswith(f"{path}, line {line}")


def test_repeated_pair_is_an_error_unless_merged(tmp_path) -> None:
    path = put(tmp_path / "ratings.txt", "1 7 2\r\n1 8 3.5\r\n1 7 4\r\n")
    with pytest.raises(DataError, match="more than once"):
        read(path)
    for merged in (read_data_file(path, Columns(0, 1, 2)).interactions, load_interactions("filmtrust", tmp_path)):
        assert (merged.merged, merged.ratings.tolist()) == (1, [3.5, 4])


def ncf(folder: Path, test: str, negative: str) -> Iterator[Path]:
    texts = {"train.rating": "0\t0\t5\n0\t1\t3\n1\t4\t1\n", "test.rating": test, "test.negative.gz": negative}
    return (put(folder / f"x.{name}", text) for name, text in texts.items())


def test_ncf(tmp_path) -> None:
    data = read_ncf(*ncf(tmp_path, "0\t4\t2\t9\n1\t0\t2\t9\n", "(0,4)\t2\t3\n(1,0)\t3\t6\n"))
    assert (data.train.n_users, data.train.n_items) == (2, 7)
    assert data.test_items.tolist() == [4, 0]
    assert data.test_negatives.tolist() == [[2, 3], [3, 6]]
    assert data.test_negatives.dtype == data.test_items.dtype == np.int32


@pytest.mark.parametrize(
    ("test", "negative", "line", "what"),
    [
        ("0\t4\t2\n1\t0\t2\n", "(0,4)\t2\t3\n(1,2)\t3\t6\n", 2, "not the held-out pair"),
        ("0\t4\t2\n1\t0\t2\n", "(0,4)\t2\t3\n(1,0)\t3\n", 2, "1 negatives"),
        ("0\t4\t2\n1\t0\t2\n", "(0,4)\t2\t3\n(1,0)\t3\tx\n", 2, "whole number"),
        ("0\t4\t2\n1\t0\t2\n", "(0,4)\t2\t3\n", None, "no line for user 1"),
        ("0\t4\t2\n0\t5\t2\n", "(0,4)\t2\t3\n(1,0)\t3\t6\n", None, "user 0 already has a held-out item"),
        ("0\t1\t2\n1\t0\t2\n", "(0,1)\t2\t3\n(1,0)\t3\t6\n", None, "held-out item of user 0 is in the training set"),
    ],
)
def test_contradicting_ncf_files_are_refused(tmp_path, test, negative, line, what) -> None:
    with pytest.raises(DataError, match=what) as caught:
        read_ncf(*ncf(tmp_path, test, negative))
    assert caught.value.line == line


def test_lightgcn(tmp_path) -> None:
    put(tmp_path / "train.txt.gz", "0 3 0 1\n1 2\n")
    put(tmp_path / "test.txt", "2 5 0\n0 4 \n1\n")
    train, test = both_sides("gowalla", tmp_path)
    assert (train.n_users, train.n_items) == (test.n_users, test.n_items) == (3, 6)
    assert [train.positives(user).tolist() for user in range(3)] == [[3, 0, 1], [2], []]
    assert [test.positives(user).tolist() for user in range(3)] == [[4], [], [5, 0]]


def test_times_of_parquet_may_be_text_as_in_csv(tmp_path) -> None:
    for when in (["2026-01-01 00:00:21", "2026-01-02"], ["1577836800", "1577923200"]):
        table = polars.DataFrame({"user": ["a", "a"], "item": [1, 2], "timestamp": when})
        table.write_parquet(tmp_path / "x.parquet")
        table.write_csv(tmp_path / "x.csv")
        found, text = (read_data_file(tmp_path / name).interactions for name in ("x.parquet", "x.csv"))
        assert found.timestamps.tolist() == text.timestamps.tolist()


def test_times_of_parquet_may_be_timestamps(tmp_path) -> None:
    path = tmp_path / "x.parquet"
    for unit in ("ms", "us", "ns"):
        when = polars.Series([datetime(2020, 1, 2), datetime(2020, 1, 1)], dtype=polars.Datetime(unit))
        polars.DataFrame({"user": ["a", "a"], "item": [1, 2], "timestamp": when}).write_parquet(path)
        assert read_data_file(path).interactions.timestamps.tolist() == [1577836800000000, 1577923200000000]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), min_size=1, max_size=9),
    st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=-30)), timezone(-timedelta(hours=11))]),
    st.sampled_from("T "),
    st.sampled_from(["seconds", "milliseconds", "microseconds", "minutes"]),
)
def test_iso_times_are_microseconds(tmp_path_factory, times, zone, between, precision) -> None:
    path = tmp_path_factory.getbasetemp() / "dated.csv"
    texts = [time.replace(tzinfo=zone).isoformat(between, precision) for time in times]
    texts = [text.replace("+00:00", "Z") for text in texts]
    path.write_text("user,item,time\n" + "".join(f"a,{item},{text}\n" for item, text in enumerate(texts)))
    exact = [datetime.fromisoformat(text).replace(tzinfo=None if zone is None else zone) for text in texts]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    expected = [((time if zone else time.replace(tzinfo=UTC)) - epoch) // timedelta(microseconds=1) for time in exact]
    assert read_data_file(path).interactions.timestamps.tolist() == sorted(expected)


JESTER = "".join(
    ",".join([str(100 - some), *["99"] * some, *["-7.82"] * (100 - some)]) + "\n" for some in (30, 64, 0, 99)
)


@pytest.mark.parametrize(
    "text",
    [
        JESTER,
        JESTER.replace(",", "\t"),
        JESTER.replace("-7.82", "1"),
        JESTER.replace("-7.82", "1").replace(",", " "),
        "user,11,12,13\nann,4,,3\nbob,,2,\n",
        "Kunde,11,12,13\n1,4,5,3\n2,4,2,1\n",
        ",Heat,Up,Jaws\n0,4,,3\n1,nan,2,5\n",
        "1 0 0 1 0 1\n2 0 1 1 0 0\n",
    ],
)
def test_a_rating_matrix_is_refused(tmp_path, text) -> None:
    with pytest.raises(DataError, match="no heading says which columns hold the user and the item") as caught:
        read_data_file(put(tmp_path / "x", text))
    assert ("bring it into long form" in str(caught.value)) == (text.count("\n") == 4)


def test_a_wide_table_is_read_where_its_columns_are_named(tmp_path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(JESTER)
    assert read_data_file(path, Columns(0, 1, 2)).rows == 4
    path.write_text("user,item," + ",".join(f"f{place}" for place in range(12)) + "\n1,2" + ",0" * 12 + "\n")
    assert str(read_data_file(path).columns) == "user=user,item=item"
    path = tmp_path / "x.parquet"
    polars.DataFrame({f"i{place}": [place] for place in range(1000)}).write_parquet(path)
    with pytest.raises(DataError, match="(?s)and 990 more columns.*i9.*bring it into long form"):
        read_data_file(path)


def test_repeated_items_of_id_lists_are_merged_and_counted(tmp_path) -> None:
    path = tmp_path / "lists.txt"
    path.write_text("0 3 1 3 3\n1 2\n2\n")
    found = read_data_file(path)
    assert (found.rows, found.interactions.merged) == (5, 2)
    assert found.interactions.item_ids[found.interactions.positives(0)].tolist() == ["1", "3"]
    assert "2 repeated pairs of user and item: the last of each is used" in str(found)
    with pytest.raises(DataError, match="more than once"):
        read_data_file(path, duplicates="error")


@pytest.mark.parametrize("place", ["ml-100k/u.data", "u.data", "ml-100k/u.data.gz"])
def test_file_is_found_in_the_data_sets_folder_or_in_data_dir(tmp_path, monkeypatch, place) -> None:
    monkeypatch.chdir(tmp_path)  # a folder of that name in the working directory is no file of the user's own
    (tmp_path / "ml-100k").mkdir()
    put(tmp_path / place, "1\t10\t3\t50\n1\t20\t3\t60\n2\t20\t1\t40\n2\t10\t1\t41\n")
    assert load_split("ml-100k", tmp_path).one_each.test_items.tolist() == [1, 0]


def test_ml_1m_prefers_the_published_split(tmp_path) -> None:
    (tmp_path / "ratings.dat").write_text("1::10::3\n1::20::3\n")
    assert held_out("ml-1m", tmp_path).test_negatives is None
    (tmp_path / "ml-1m.train.rating").write_text("0\t0\t5\n")
    (tmp_path / "ml-1m.test.rating").write_text("0\t1\t5\n")
    assert held_out("ml-1m", tmp_path).test_negatives is None
    (tmp_path / "ml-1m.test.negative").write_text("(0,1)\t2\t3\n")
    assert held_out("ml-1m", tmp_path).test_negatives.tolist() == [[2, 3]]


def test_gowalla_as_published_and_as_leave_one_out(tmp_path) -> None:
    folder = tmp_path / "gowalla"
    folder.mkdir()
    (folder / "train.txt").write_text("0 1 2\n1 0 3\n")
    (folder / "test.txt").write_text("0 3\n")
    train, test = both_sides("gowalla", tmp_path)
    assert (train.size, test.size) == (4, 1)
    data = held_out("gowalla", tmp_path, seed=3)
    assert data.train.size == 3
    assert data.test_items[0] in (1, 2, 3)
    assert data.test_items[1] in (0, 3)
    (folder / "test.txt").write_text("0 3 2\n")
    with pytest.raises(DataError, match="user 0, item 2"):
        both_sides("gowalla", tmp_path)


def test_errors_name_the_known_data_sets_and_the_folders_of_a_missing_one(tmp_path) -> None:
    for name in set(DATASETS) - {"synthetic"}:
        with pytest.raises(DataError) as caught:
            held_out(name, tmp_path)
        text = str(caught.value)
        assert f"in {tmp_path / name} and {tmp_path};" in text
        assert (f"hushrec data fetch {name}" in text) == name.startswith("ml-")
    with pytest.raises(DataError, match="filmtrust.*ml-100k"):
        held_out("netflix")
    with pytest.raises(DataError, match="no given split"):
        both_sides("ml-1m")
