"""Any data is split by leave-one-out, at random or as given; folders and pairs of files share one numbering of ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_sdk.lab.data.interactions import DataError
from client_sdk.lab.data.published import load_dataset, load_interactions, read_train_test
from client_sdk.lab.data.splits import load_split, sample_users

ROWS = "who,item,rating,time\n" + "".join(
    f"u{user},{item},{1 + (user + item) % 5},{100 * user - item}\n" for user in range(6) for item in range(10)
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "all.csv"
    path.write_text(ROWS.replace("who", "user"))
    return path


def pairs(side) -> set[tuple[str, str]]:
    return set(zip(side.user_ids[side.users].tolist(), side.item_ids[side.items].tolist(), strict=True))


def test_leave_one_out_takes_the_latest_of_each_user(table) -> None:
    made = load_split(str(table))
    assert pairs(made.test) == {(f"u{user}", 0) for user in range(6)}
    assert made.test.ratings is not None
    assert made.one_each.test_items.tolist() == [0] * 6
    assert "latest" in made.words


@pytest.mark.parametrize("by_rows", [False, True])
def test_random_split_follows_the_seed(table, by_rows) -> None:
    one, again, other = (load_split(str(table), kind="random", seed=seed, by_rows=by_rows) for seed in (1, 1, 2))
    assert pairs(one.test) == pairs(again.test) != pairs(other.test)
    assert one.test.size == 12
    assert (one.test.user_degrees() == 2).all() != by_rows
    assert not pairs(one.train) & pairs(one.test)


def test_given_files_are_numbered_together(tmp_path) -> None:
    (tmp_path / "a-train.csv").write_text("user,item\nbob,x\nann,y\n")
    (tmp_path / "a-test.tsv").write_text("item\tuser\nz\tann\nx\tzoe\n")
    from_folder = load_split(str(tmp_path))
    from_files = load_split(str(tmp_path / "a-train.csv"), test=tmp_path / "a-test.tsv")
    for made in (from_folder, from_files):
        assert pairs(made.train) == {("bob", "x"), ("ann", "y")}
        assert pairs(made.test) == {("ann", "z"), ("zoe", "x")}
        assert made.one_each is not None
    assert pairs(load_interactions(str(tmp_path))) == pairs(from_files.train) | pairs(from_files.test)


def test_lightgcn_folder_has_a_given_split_of_several_items(tmp_path) -> None:
    (tmp_path / "train.txt").write_text("0 1 2 5\n1 0\n2 4 3 1\n")
    (tmp_path / "test.txt").write_text("0 3 4\n1 1 2 3\n")
    made = load_split(str(tmp_path))
    assert made.one_each is None
    assert [made.test.positives(user).tolist() for user in range(3)] == [[3, 4], [1, 2, 3], []]


def test_name_of_a_data_set_is_no_folder_of_the_working_directory(tmp_path, monkeypatch) -> None:
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "u.data").write_text("1\t10\t3\t50\n1\t20\t3\t60\n2\t20\t1\t40\n2\t10\t1\t41\n")
    monkeypatch.chdir(tmp_path)
    assert load_split("ml-100k", tmp_path).one_each.test_items.tolist() == [1, 0]


def test_contradicting_and_missing_test_files(tmp_path, table) -> None:
    test = tmp_path / "test.csv"
    test.write_text("user,item\nu1,3\n")
    with pytest.raises(DataError, match="1 pairs are also in .*the first is user u1, item 3"):
        read_train_test(table, test)
    test.write_text("user,item\n1,3\n")
    with pytest.raises(DataError, match="user ids are integers, but those of .* are text"):
        read_train_test(table, test)
    with pytest.raises(DataError, match="no given split"):
        load_split(str(table), kind="given")
    with pytest.raises(DataError, match="a test file is a given split"):
        load_split(str(table), test=test, kind="random")
    with pytest.raises(DataError, match="expected one file with 'train' in its name, found none"):
        load_split(str(tmp_path))


def test_what_was_found_is_reported_and_columns_belong_to_files(table) -> None:
    said: list[str] = []
    load_dataset(str(table), report=said.append)
    assert said[0].startswith("read 60 rows, 6 users, 10 items from ")
    with pytest.raises(DataError, match="columns are those of a file"):
        load_dataset("ml-100k", columns=load_columns())


def load_columns():
    from client_sdk.lab.data.columns import Columns

    return Columns(0, 1)


def test_sampled_users_keep_their_rows_and_ids(table) -> None:
    whole = load_interactions(str(table))
    some = sample_users(whole, 3, 0)
    assert (some.n_users, some.size) == (3, 30)
    assert pairs(some) < pairs(whole)
    assert np.array_equal(sample_users(whole, 3, 0).user_ids, some.user_ids)
    assert sample_users(whole, 6, 0) is whole
