"""Every file format, plain and gzip; errors name the malformed line."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.files import read_data_file, read_lightgcn
from client_sdk.lab.data.interactions import DataError, Interactions
from client_sdk.lab.data.published import read_ncf


def read(path: Path, columns: Columns | None = None) -> Interactions:
    """As the files of known data sets are read: integer ids, no repeated pair."""
    return read_data_file(path, columns, duplicates="error", integer_ids=True).interactions


def put(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("u.data", "196\t242\t3\t50\n7\t242\t1\t40\n196\t5\t4\t20\n"),
        ("u.data.gz", "196\t242\t3\t50\n7\t242\t1\t40\n196\t5\t4\t20"),
        ("ratings.dat", "196::242::3::50\r\n7::242::1::40\r\n196::5::4::20\r\n"),
        ("ratings.csv", "userId,movieId,rating,timestamp\n196,242,3.0,50\n7,242,1.0,40\n196,5,4.0,20\n"),
    ],
)
def test_movielens(tmp_path, name, text) -> None:
    found = read(put(tmp_path / name, text))
    assert (found.n_users, found.n_items) == (2, 2)
    assert found.user_ids.tolist() == [7, 196]
    assert found.item_ids.tolist() == [5, 242]
    assert found.positives(1).tolist() == [1, 0]
    assert found.ratings.tolist() == [1, 3, 4]
    assert found.timestamps.tolist() == [40, 50, 20]


def test_timestamp_column_may_be_missing(tmp_path) -> None:
    found = read(put(tmp_path / "ratings.dat.gz", "1::1193::5\n1::661::3\n"))
    assert found.timestamps is None
    assert found.positives(0).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("1\t2\t3\t4\n1\t3\t3\n", 2, "the line has 3 fields, but most lines have 4"),
        ("1\t2\t3\t4\n1\t3\n", 2, "the line has 2 fields"),
        ("1\t2\t3\t4\n\n1\t3\t3\t4\n", 2, "blank line"),
        ("1\t2\t3\t4\n1\t3\tfive\t4\n", 2, "rating is not a number: 'five'"),
        ("1\t2\t3\t4\n1\t3\tnan\t4\n", 2, "rating is not a number"),
        ("1\t2\t3\t4\n1\t3.5\t3\t4\n", 2, "item must be a whole number"),
        ("1\t2\t3\t4\n1\t4\t3\t4\n-1\t3\t3\t4\n", 3, "user must be a whole number of at least 0"),
        ("# a comment\n1\t2\t3\t4\n1\t3\t3\t4\n", 1, "the line has 1 fields, but most lines have 4"),
    ],
)
def test_error_names_the_malformed_line(tmp_path, text, line, what) -> None:
    path = put(tmp_path / "u.data", text)
    with pytest.raises(DataError, match=what) as caught:
        read(path)
    assert (caught.value.path, caught.value.line) == (path, line)
    assert str(caught.value).startswith(f"{path}, line {line}")


def test_tab_in_a_file_separated_by_double_colons_is_an_error(tmp_path) -> None:
    with pytest.raises(DataError) as caught:
        read(put(tmp_path / "ratings.dat", "1::2::3::4\n1::3\t3::4\n"))
    assert caught.value.line == 2


def test_missing_empty_truncated_and_binary_files(tmp_path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read(tmp_path / "u.data")
    with pytest.raises(DataError, match="empty"):
        read(put(tmp_path / "u.data", "\n"))
    cut = tmp_path / "cut.data.gz"
    cut.write_bytes(gzip.compress(b"1\t2\t3\t4\n" * 500)[:-12])
    with pytest.raises(DataError, match="gzip"):
        read(cut)
    (tmp_path / "u.data").write_bytes(b"1\t2\t3\t4\n\xff\t2\t3\t4\n")
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        read(tmp_path / "u.data")


def test_repeated_pair_is_an_error_unless_merged(tmp_path) -> None:
    path = put(tmp_path / "ratings.txt", "1 7 2\r\n1 8 3.5\r\n1 7 4\r\n")
    with pytest.raises(DataError, match="more than once"):
        read(path)
    merged = read_data_file(path).interactions
    assert (merged.merged, merged.ratings.tolist()) == (1, [3.5, 4])


def ncf(folder: Path, train: str, test: str, negative: str) -> tuple[Path, Path, Path]:
    return put(folder / "x.train.rating", train), put(folder / "x.test.rating", test), put(
        folder / "x.test.negative.gz", negative
    )  # fmt: skip


def test_ncf(tmp_path) -> None:
    data = read_ncf(
        *ncf(tmp_path, "0\t0\t5\n0\t1\t3\n1\t4\t1\n", "0\t4\t2\t9\n1\t0\t2\t9\n", "(0,4)\t2\t3\n(1,0)\t3\t6\n")
    )
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
        ("0\t4\t2\n0\t5\t2\n", "(0,4)\t2\t3\n(1,0)\t3\t6\n", 2, "already has a held-out item"),
        ("0\t1\t2\n1\t0\t2\n", "(0,1)\t2\t3\n(1,0)\t3\t6\n", None, "held-out item of user 0 is in the training set"),
    ],
)
def test_contradicting_ncf_files_are_refused(tmp_path, test, negative, line, what) -> None:
    with pytest.raises(DataError, match=what) as caught:
        read_ncf(*ncf(tmp_path, "0\t0\t5\n0\t1\t3\n1\t4\t1\n", test, negative))
    assert caught.value.line == line


def test_lightgcn(tmp_path) -> None:
    train, test = read_lightgcn(
        put(tmp_path / "train.txt.gz", "0 3 1\n1 2\n"), put(tmp_path / "test.txt", "2 5 0\n0 4 \n1\n")
    )
    assert (train.n_users, train.n_items) == (test.n_users, test.n_items) == (3, 6)
    assert [train.positives(user).tolist() for user in range(3)] == [[3, 1], [2], []]
    assert [test.positives(user).tolist() for user in range(3)] == [[4], [], [5, 0]]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("0 1 2\n1 -2\n", 2, "whole number"),
        ("0 1 2\n1 2.0\n", 2, "whole number"),
        ("0 1 2\n\n1 3\n", 2, "blank"),
        ("0 1 2\n1 3\n0 4\n", 3, "user 0 already has a line"),
        ("0 1 1\n", None, "more than once"),
    ],
)
def test_error_names_the_malformed_lightgcn_line(tmp_path, text, line, what) -> None:
    with pytest.raises(DataError, match=what) as caught:
        read_lightgcn(put(tmp_path / "train.txt", text))
    assert caught.value.line == line
