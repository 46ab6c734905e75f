"""Interactions and their splits: order, validation, leave-one-out, at random, by time, and of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.data.published import load_dataset, load_interactions, read_train_test
from client_sdk.lab.data.splits import load_split, sample_users, split_rows

PAIRS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 11)), max_size=60, unique=True)


def made(pairs, **more) -> Interactions:
    """Interactions of 8 users and 12 items; each rating says whose it is."""
    users, items = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Interactions.from_pairs(
        users, items, **{"n_users": 8, "n_items": 12, "ratings": 100 * users + items, **more}
    )


def triples(side: Interactions) -> set[tuple[int, int, float]]:
    return set(zip(side.users.tolist(), side.items.tolist(), side.ratings.tolist(), strict=True))


@given(PAIRS, st.integers(0, 100), st.sampled_from([0.2, 0.5]))
@settings(deadline=None, max_examples=50)
def test_a_random_split_partitions_rows_and_ratings(pairs, seed, share) -> None:
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


def test_a_random_split_of_rows_ignores_users() -> None:
    whole = made([(user, item) for user in range(8) for item in range(12)])
    held = [split_rows(whole, 0.25, seed)[1].user_degrees() for seed in range(20)]
    assert np.ptp(np.concatenate(held)) > 2, "equal counts for all users would be a split by user"
    with pytest.raises(DataError, match="share"):
        split_rows(whole, 1.0)


@given(PAIRS, st.integers(0, 2**31), st.booleans())
@settings(deadline=None, max_examples=50)
def test_leave_one_out_holds_out_the_latest_and_keeps_the_order(pairs, seed, timed) -> None:
    times = np.random.default_rng(seed).integers(0, 3, len(pairs)) if timed else None
    interactions = made(pairs, timestamps=times)
    split = leave_one_out(interactions, seed)
    assert interactions.item_degrees().tolist() == [sum(what == item for _, what in pairs) for item in range(12)]
    assert (interactions.items.dtype, interactions.indptr.dtype) == (np.int32, np.int64)
    for user in range(8):
        before, after, held = interactions.positives(user), split.train.positives(user), int(split.test_items[user])
        assert before.tolist() == [item for who, item in pairs if who == user]
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
        made(pairs)
    merged = made(pairs, duplicates="last", ratings=[1, 2, 3, 4])
    assert (merged.merged, merged.positives(0).tolist(), merged.ratings.tolist()) == (1, [4, 2], [3, 4, 2])


def test_arrays_that_do_not_match_are_refused() -> None:
    held = np.full(8, -1, dtype=np.int32)
    held[3] = 2
    for call, what in (
        (lambda: Interactions.from_pairs([0, 1], [0]), "one length"),
        (lambda: Interactions.from_pairs([0, 8], [0, 0], n_users=8), "user numbers must lie in 0..7"),
        (lambda: Interactions.from_pairs([0, -1], [0, 0]), "user numbers"),
        (lambda: Interactions.from_pairs([0], [-3]), "item numbers"),
        (lambda: Interactions.from_pairs([0], [2**31]), "do not fit in 32 bits"),
        (lambda: Interactions.from_pairs([0], [0], ratings=[1.0, 2.0]), "ratings needs 1"),
        (lambda: Interactions.from_pairs([0], [0], item_ids=np.array([7, 8])), "item_ids needs 1"),
        (lambda: made([(0, 1), (0, 2)]).where(np.array([True])), "2 interactions"),
        (lambda: made([(0, 1)]).positives(-1), "outside"),
        (lambda: made([(0, 1)]).positives(8), "outside"),
        (lambda: LeaveOneOut(made([(0, 1), (3, 2)]), held), "user 3"),
        (lambda: LeaveOneOut(made([(0, 1)]), held[:4]), "shape"),
        (lambda: LeaveOneOut(made([(0, 1)]), 4 * held + 4), "outside 0..11"),
    ):
        with pytest.raises(DataError, match=what):
            call()


# --- splits of files -------------------------------------------------------------------------------------------------

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
    split = load_split(str(table))
    assert pairs(split.test) == {(f"u{user}", 0) for user in range(6)}
    assert split.test.ratings is not None
    assert split.one_each.test_items.tolist() == [0] * 6
    assert "latest" in split.words


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
    for split in (from_folder, from_files):
        assert pairs(split.train) == {("bob", "x"), ("ann", "y")}
        assert pairs(split.test) == {("ann", "z"), ("zoe", "x")}
        assert split.one_each is not None
    assert pairs(load_interactions(str(tmp_path))) == pairs(from_files.train) | pairs(from_files.test)


def test_lightgcn_folder_has_a_given_split_of_several_items(tmp_path) -> None:
    (tmp_path / "train.txt").write_text("0 1 2 5\n1 0\n2 4 3 1\n")
    (tmp_path / "test.txt").write_text("0 3 4\n1 1 2 3\n")
    split = load_split(str(tmp_path))
    assert split.one_each is None
    assert [split.test.positives(user).tolist() for user in range(3)] == [[3, 4], [1, 2, 3], []]


def test_contradicting_and_missing_test_files(tmp_path, table) -> None:
    (test := tmp_path / "test.csv").write_text("user,item\nu1,3\n")
    (other := tmp_path / "other.csv").write_text("user,item\n1,3\n")
    for call, what in (
        (lambda: read_train_test(table, test), "1 pairs are also in .*the first is user u1, item 3"),
        (lambda: read_train_test(table, other), "user ids are integers, but those of .* are text"),
        (lambda: load_split(str(table), kind="given"), "no given split"),
        (lambda: load_split(str(table), test=test, kind="random"), "a test file is a given split"),
        (lambda: load_split(str(tmp_path)), "expected one file with 'train' in its name, found none"),
        (lambda: load_dataset("ml-100k", columns=Columns(0, 1)), "columns are those of a file"),
    ):
        with pytest.raises(DataError, match=what):
            call()


def test_what_was_found_is_reported(table) -> None:
    said: list[str] = []
    load_dataset(str(table), report=said.append)
    assert said[0].startswith("read 60 rows, 6 users, 10 items from ")


def test_sampled_users_keep_their_rows_and_ids(table) -> None:
    whole = load_interactions(str(table))
    some = sample_users(whole, 3, 0)
    assert (some.n_users, some.size) == (3, 30)
    assert pairs(some) < pairs(whole)
    assert np.array_equal(sample_users(whole, 3, 0).user_ids, some.user_ids)
    assert sample_users(whole, 6, 0) is whole
