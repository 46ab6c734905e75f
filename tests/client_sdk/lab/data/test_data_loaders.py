"""Data sets are found by name in the usual layouts; the error for a missing one names the folders."""

from __future__ import annotations

import gzip

import pytest

from client_sdk.lab.data.interactions import DataError
from client_sdk.lab.data.published import DATASETS, load_dataset, load_interactions, load_train_test

U_DATA = "1\t10\t3\t50\n1\t20\t3\t60\n2\t20\t1\t40\n2\t10\t1\t41\n"


@pytest.mark.parametrize("place", ["ml-100k/u.data", "u.data", "ml-100k/u.data.gz"])
def test_file_is_found_in_the_data_sets_folder_or_in_data_dir(tmp_path, place) -> None:
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(U_DATA.encode()) if place.endswith("gz") else U_DATA.encode())
    assert load_dataset("ml-100k", tmp_path).test_items.tolist() == [1, 0]


def test_ml_1m_prefers_the_published_split(tmp_path) -> None:
    (tmp_path / "ratings.dat").write_text("1::10::3\n1::20::3\n")
    assert load_dataset("ml-1m", tmp_path).test_negatives is None
    (tmp_path / "ml-1m.train.rating").write_text("0\t0\t5\n")
    (tmp_path / "ml-1m.test.rating").write_text("0\t1\t5\n")
    assert load_dataset("ml-1m", tmp_path).test_negatives is None
    (tmp_path / "ml-1m.test.negative").write_text("(0,1)\t2\t3\n")
    assert load_dataset("ml-1m", tmp_path).test_negatives.tolist() == [[2, 3]]


def test_filmtrust_merges_its_repeated_pairs(tmp_path) -> None:
    (tmp_path / "ratings.txt").write_bytes(b"1 7 2\r\n1 8 3.5\r\n1 7 4\r\n")
    assert load_interactions("filmtrust", tmp_path).merged == 1


def test_gowalla_as_published_and_as_leave_one_out(tmp_path) -> None:
    folder = tmp_path / "gowalla"
    folder.mkdir()
    (folder / "train.txt").write_text("0 1 2\n1 0\n")
    (folder / "test.txt").write_text("0 3\n")
    train, test = load_train_test("gowalla", tmp_path)
    assert (train.size, test.size) == (3, 1)
    data = load_dataset("gowalla", tmp_path, seed=3)
    assert data.train.size == 3
    assert data.test_items[0] in (1, 2, 3)
    assert data.test_items[1] == -1
    (folder / "test.txt").write_text("0 3 2\n")
    with pytest.raises(DataError, match="user 0, item 2"):
        load_train_test("gowalla", tmp_path)


def test_path_of_a_csv_file(tmp_path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("user,item,timestamp\na,x,1\na,y,2\nb,x,1\n")
    assert load_dataset(str(path)).test_items.tolist() == [1, -1]


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "synthetic"])
def test_error_for_a_missing_data_set_names_the_folders(tmp_path, name) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset(name, tmp_path)
    text = str(caught.value)
    assert f"in {tmp_path / name} and {tmp_path};" in text
    assert (f"hushrec data fetch {name}" in text) == name.startswith("ml-")


def test_error_for_an_unknown_name_lists_the_known_names() -> None:
    with pytest.raises(DataError, match="filmtrust.*ml-100k"):
        load_dataset("netflix")
    with pytest.raises(DataError, match="gowalla"):
        load_train_test("ml-1m")
