"""Interactions and their splits: order, validation, leave-one-out, at random, by time, and subsets of users."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.experiments.leaks import hold_out_introduced_last, users_with_at_least
from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.data.published import load_dataset, load_interactions, read_train_test
from client_sdk.lab.data.splits import load_split, sample_users, split_rows

PAIRS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 11)), min_size=1, max_size=60, unique=True)
ANY_PAIRS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 11)), max_size=60, unique=True)


def made(pairs) -> Interactions:
    users, items = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Interactions.from_pairs(
        users, items, n_users=8, n_items=12, ratings=100 * users + items, timestamps=1000 + items
    )


def triples(side: Interactions) -> set[tuple[int, int, float]]:
    return set(zip(side.users.tolist(), side.items.tolist(), side.ratings.tolist(), strict=True))


@given(PAIRS, st.integers(0, 100), st.sampled_from([0.2, 0.5]))
def test_split_rows_partitions_rows_and_ratings(pairs, seed, share) -> None:
    whole = made(pairs)
    if not 0 < round(share * whole.size) < whole.size:
        with pytest.raises(DataError, match="too few"):
            split_rows(whole, share, seed)
        return
    train, test = split_rows(whole, share, seed)
    assert test.size == round(share * whole.size)
    assert not triples(train) & triples(test)
    assert triples(train) | triples(test) == triples(whole)
    assert triples(split_rows(whole, share, np.random.default_rng(seed))[1]) == triples(test)


def test_split_rows_ignores_users() -> None:
    whole = made([(user, item) for user in range(8) for item in range(12)])
    held = [split_rows(whole, 0.25, seed)[1].user_degrees() for seed in range(20)]
    assert all(counts.sum() == 24 for counts in held)
    assert np.ptp(np.concatenate(held)) > 2, "equal counts for all users would be a split by user"
    with pytest.raises(DataError, match="share"):
        split_rows(whole, 1.0)


def test_item_introduced_last_is_held_out() -> None:
    whole = made([(0, 5), (0, 9), (0, 3), (1, 11), (2, 4), (2, 0)])
    split = hold_out_introduced_last(whole)
    assert split.test_items.tolist() == [9, -1, 4, -1, -1, -1, -1, -1]
    assert split.train.positives(0).tolist() == [5, 3]
    assert leave_one_out(whole, order="file").test_items[0] == 3


@given(PAIRS, st.integers(1, 6))
def test_active_users_keep_their_interactions_when_renumbered(pairs, count) -> None:
    whole = made(pairs)
    active = [user for user in range(8) if whole.user_degrees()[user] >= count]
    if not active:
        with pytest.raises(DataError, match=f"{count} interactions"):
            users_with_at_least(whole, count)
        return
    kept = users_with_at_least(whole, count)
    assert kept.user_ids.tolist() == active
    assert kept.user_degrees().min() >= count
    assert kept.item_degrees().min() >= 1
    for number, user in enumerate(active):
        assert kept.item_ids[kept.positives(number)].tolist() == whole.positives(user).tolist()
    assert triples(whole) >= {(int(r) // 100, int(r) % 100, r) for r in kept.ratings.tolist()}
    assert (kept.timestamps - 1000).tolist() == kept.item_ids[kept.items].tolist()


ROWS = "user,item,rating,time\n" + "".join(
    f"u{user},{item},{1 + (user + item) % 5},{100 * user - item}\n" for user in range(6) for item in range(10)
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "all.csv"
    path.write_text(ROWS)
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
        load_dataset("ml-100k", columns=Columns(0, 1))


def test_sampled_users_keep_their_rows_and_ids(table) -> None:
    whole = load_interactions(str(table))
    some = sample_users(whole, 3, 0)
    assert (some.n_users, some.size) == (3, 30)
    assert pairs(some) < pairs(whole)
    assert np.array_equal(sample_users(whole, 3, 0).user_ids, some.user_ids)
    assert sample_users(whole, 6, 0) is whole


def rows_made(pairs, **more) -> Interactions:
    users, items = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Interactions.from_pairs(users, items, n_users=8, n_items=12, **more)


@given(ANY_PAIRS)
@settings(deadline=None)
def test_items_of_a_user_keep_their_order(pairs) -> None:
    interactions = rows_made(pairs)
    for user in range(8):
        assert interactions.positives(user).tolist() == [item for who, item in pairs if who == user]
    assert interactions.item_degrees().tolist() == [sum(what == item for _, what in pairs) for item in range(12)]
    assert (interactions.items.dtype, interactions.indptr.dtype) == (np.int32, np.int64)


@given(ANY_PAIRS, st.integers(0, 2**31), st.booleans())
@settings(deadline=None)
def test_split_partitions_the_interactions(pairs, seed, timed) -> None:
    times = np.random.default_rng(seed).integers(0, 3, len(pairs)) if timed else None
    interactions = rows_made(pairs, timestamps=times)
    split = leave_one_out(interactions, seed)
    for user in range(8):
        before, after, held = interactions.positives(user), split.train.positives(user), int(split.test_items[user])
        if before.size < 2:
            assert held == -1
            assert after.tolist() == before.tolist()
        else:
            assert held in before
            assert after.tolist() == [item for item in before if item != held]
            if times is not None:
                mine = [int(times[at]) for at, (who, _) in enumerate(pairs) if who == user]
                last = max(range(len(mine)), key=lambda at: (mine[at], at))
                assert held == before[last]


def test_repeated_pair_is_refused_or_merged_and_counted() -> None:
    pairs = [(0, 4), (1, 4), (0, 4), (0, 2)]
    with pytest.raises(DataError, match="user 0 has item 4 more than once"):
        rows_made(pairs)
    merged = rows_made(pairs, duplicates="last", ratings=[1, 2, 3, 4])
    assert merged.merged == 1
    assert merged.positives(0).tolist() == [4, 2]
    assert merged.ratings.tolist() == [3, 4, 2]


def test_arrays_that_do_not_match_are_refused() -> None:
    for users, items, more, what in (
        ([0, 1], [0], {}, "one length"),
        ([0, 8], [0, 0], {"n_users": 8}, "user numbers must lie in 0..7"),
        ([0, -1], [0, 0], {}, "user numbers"),
        ([0], [-3], {}, "item numbers"),
        ([0], [2**31], {}, "do not fit in 32 bits"),
        ([0], [0], {"ratings": [1.0, 2.0]}, "ratings needs 1"),
        ([0], [0], {"item_ids": np.array([7, 8])}, "item_ids needs 1"),
    ):
        with pytest.raises(DataError, match=what):
            Interactions.from_pairs(users, items, **more)
    with pytest.raises(DataError, match="2 interactions"):
        made([(0, 1), (0, 2)]).where(np.array([True]))
    for user in (-1, 8):
        with pytest.raises(DataError, match="outside"):
            made([(0, 1)]).positives(user)


def test_held_out_item_in_the_training_set_is_refused() -> None:
    train = rows_made([(0, 1), (3, 2)])
    held = np.full(8, -1, dtype=np.int32)
    held[3] = 2
    with pytest.raises(DataError, match="user 3"):
        LeaveOneOut(train, held)
    with pytest.raises(DataError, match="shape"):
        LeaveOneOut(train, held[:4])
    held[3] = 12
    with pytest.raises(DataError, match="outside 0..11"):
        LeaveOneOut(train, held)
