"""Dates as times, unusual headings, rating matrices and repeated items in id lists are read, or refused in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.lab.data.columns import Columns, parse_columns
from client_sdk.lab.data.files import read_data_file
from client_sdk.lab.data.interactions import DataError


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_of_parquet_may_be_timestamps(tmp_path, unit) -> None:
    path = tmp_path / "x.parquet"
    when = polars.Series([datetime(2020, 1, 2), datetime(2020, 1, 1)], dtype=polars.Datetime(unit))
    polars.DataFrame({"user": ["a", "a"], "item": [1, 2], "timestamp": when}).write_parquet(path)
    assert read_data_file(path).interactions.timestamps.tolist() == [1577923200000000, 1577836800000000]


@settings(max_examples=60, deadline=None)
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
    assert read_data_file(path).interactions.timestamps.tolist() == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("user,item,time\na,1,2026-01-01\nb,2,17\n", "line 3, column 'time' (time): the time is not a date and time"),
        ("user,item,time\na,1,17\nb,2,2026-01-01\n", "the time is not a number: '2026-01-01'"),
        ("user,item,time\na,1,2026-02-30\n", "line 2, column 'time' (time): the time is not a date and time"),
    ],
)
def test_dates_that_are_none_or_stand_among_numbers_are_refused(tmp_path, text, what) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        read_data_file(tmp_path / "x.csv")
    assert what in str(caught.value)


def test_dates_are_recognised_without_a_header(tmp_path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,x,2026-01-01\na,y,2026-01-02\n")
    found = read_data_file(path)
    assert (found.format, str(found.columns)) == ("separated by commas, no header", "user=0,item=1,time=2")
    assert found.interactions.timestamps.tolist() == [1767225600000000, 1767312000000000]


def kunden(first: str, more: str = "") -> str:
    return first + "".join(f"k{number % 5},a{number % 7}\n" for number in range(35)) + more


def test_a_header_of_unusual_headings_above_text_is_refused(tmp_path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(kunden("Kunde,Artikel\n"))
    with pytest.raises(DataError, match="line 1: 'Kunde' and 'Artikel' occur nowhere else") as caught:
        read_data_file(path)
    assert "--columns user=Kunde,item=Artikel" in str(caught.value)
    found = read_data_file(path, parse_columns("user=Kunde,item=Artikel"))
    assert (found.rows, found.interactions.n_users) == (35, 5)
    assert read_data_file(path, parse_columns("user=0,item=1")).rows == 36


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        (kunden(""), "the first line, 'k0' and 'a0', was read as data"),
        (kunden("Kunde,Artikel\n", "k9,a9\n"), "--columns user=Kunde,item=Artikel"),
        ("Kunde,Artikel\nk,a\n", "--columns user=Kunde,item=Artikel"),
        ("k,a,3\n", ""),
    ],
)
def test_a_first_line_of_text_that_is_read_as_data_is_mentioned(tmp_path, text, doubt) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    found = read_data_file(path)
    assert (found.rows, bool(found.doubt)) == (text.count("\n"), bool(doubt))
    assert doubt in str(found)


JESTER = "".join(
    ",".join([str(100 - some), *["99"] * some, *["-7.82"] * (100 - some)]) + "\n" for some in (30, 64, 0, 99)
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (JESTER, "101 columns; as in Jester, the first column counts the user's ratings, and 99 means not rated"),
        (JESTER.replace(",", "\t"), "as in Jester"),
        (JESTER.replace("-7.82", "1"), "as in Jester"),
        (JESTER.replace("-7.82", "1").replace(",", " "), "as in Jester"),
        ("user,11,12,13\nann,4,,3\nbob,,2,\n", "4 columns"),
        ("Kunde,11,12,13\n1,4,5,3\n2,4,2,1\n", "4 columns"),
        (",Heat,Up,Jaws\n0,4,,3\n1,nan,2,5\n", "4 columns"),
        ("1 0 0 1 0 1\n2 0 1 1 0 0\n", "6 columns"),
    ],
)
def test_a_rating_matrix_is_refused_and_explained(tmp_path, text, what) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(DataError, match="this looks like a rating matrix") as caught:
        read_data_file(path)
    assert what in str(caught.value)
    assert "`user,item,rating`" in str(caught.value)


def test_a_wide_file_without_user_and_item_is_told_of_long_form(tmp_path) -> None:
    path = tmp_path / "x.parquet"
    polars.DataFrame({f"i{place}": [place] for place in range(1000)}).write_parquet(path)
    with pytest.raises(DataError, match="'i9' and 990 more.*brought into long form first"):
        read_data_file(path)


def test_a_wide_table_is_read_where_its_columns_are_named(tmp_path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(JESTER)
    assert read_data_file(path, Columns(0, 1, 2)).rows == 4
    path.write_text("user,item," + ",".join(f"f{place}" for place in range(12)) + "\n1,2" + ",0" * 12 + "\n")
    assert str(read_data_file(path).columns) == "user=user,item=item"


def test_repeated_items_of_id_lists_are_merged_and_counted(tmp_path) -> None:
    path = tmp_path / "lists.txt"
    path.write_text("0 3 1 3 3\n1 2\n2\n")
    found = read_data_file(path)
    assert (found.rows, found.interactions.merged) == (5, 2)
    assert found.interactions.positives(0).tolist() == [1, 3]
    assert "2 repeated pairs of user and item: the last of each is used" in str(found)
    with pytest.raises(DataError, match="more than once"):
        read_data_file(path, duplicates="error")
