"""Interactions and their splits, of arrays and files; downloads of data sets, published counts, synthetic data."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.lab.data import fetch as module
from client_sdk.lab.data.columns import Columns
from client_sdk.lab.data.fetch import DOWNLOADS, DownloadableSet, describe, fetch, fetch_set
from client_sdk.lab.data.interactions import DataError, Interactions, LeaveOneOut, leave_one_out
from client_sdk.lab.data.published import load_interactions, read_train_test
from client_sdk.lab.data.splits import load_split, sample_users, split_rows
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from protocols.errors import ParameterError
from tests.support.splits import both_sides, held_out

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
@settings(deadline=None, max_examples=25)
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


@given(PAIRS, st.integers(0, 2**31), st.booleans())
@settings(deadline=None, max_examples=25)
def test_leave_one_out_holds_out_the_latest_and_keeps_the_order(pairs, seed, timed) -> None:
    times = np.random.default_rng(seed).integers(0, 3, len(pairs)) if timed else None
    interactions = made(pairs, timestamps=times)
    split = leave_one_out(interactions, seed)
    assert interactions.item_degrees().tolist() == [sum(what == item for _, what in pairs) for item in range(12)]
    assert (interactions.items.dtype, interactions.indptr.dtype) == (np.int32, np.int64)
    for user in range(8):
        before, after, held = interactions.positives(user), split.train.positives(user), int(split.test_items[user])
        mine = [(int(times[at]) if timed else at, item) for at, (who, item) in enumerate(pairs) if who == user]
        assert before.tolist() == [item for _, item in sorted(mine)]
        if before.size < 2:
            assert held == -1
            assert after.tolist() == before.tolist()
        else:
            assert held in before
            assert after.tolist() == [item for item in before if item != held]
            if times is not None:
                assert held in {item for time, item in mine if time == max(mine)[0]}
    shuffled = np.random.default_rng(seed).permutation(len(pairs))
    again = leave_one_out(
        made([pairs[at] for at in shuffled], timestamps=times if times is None else times[shuffled]), seed
    )
    assert again.test_items.tolist() == split.test_items.tolist()


def test_repeated_pair_is_refused_or_merged_and_counted() -> None:
    pairs = [(0, 4), (1, 4), (0, 4), (0, 2)]
    with pytest.raises(DataError, match="user 0 has item 4 more than once"):
        made(pairs)
    merged = made(pairs, duplicates="latest", ratings=[1, 2, 3, 4])
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
        (lambda: read_train_test(table, other), "no user of this file is in .*: '1', for example, beside 'u0'"),
        (lambda: load_split(str(table), kind="given"), "no given split"),
        (lambda: load_split(str(table), test=test, kind="random"), "a test file is a given split"),
        (lambda: load_split(str(tmp_path)), "expected one file with 'train' in its name, found none"),
        (lambda: load_split("ml-100k", columns=Columns(0, 1)), "columns are those of a file"),
    ):
        with pytest.raises(DataError, match=what):
            call()


def test_sampled_users_keep_their_rows_and_ids(table) -> None:
    whole = load_interactions(str(table))
    some = sample_users(whole, 3, 0)
    assert (some.n_users, some.size) == (3, 30)
    assert pairs(some) < pairs(whole)
    assert np.array_equal(sample_users(whole, 3, 0).user_ids, some.user_ids)
    assert sample_users(whole, 6, 0) is whole


# --- downloads that are correct or leave nothing, the published counts, and synthetic data ----------------------------

GOOD = {"ml-100k/": b"", "ml-100k/u.data": b"1\t10\t3\t50\n1\t20\t3\t60\n", "ml-100k/README": b"terms"}


def make_archive(members: dict[str, bytes]) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return body.getvalue()


def source_of(body: bytes) -> DownloadableSet:
    return replace(DOWNLOADS["ml-100k"], size=len(body), sha256=hashlib.sha256(body).hexdigest())


def served(body: bytes):
    return lambda url: (body[start : start + 64] for start in range(0, len(body), 64))


def test_correct_archive_is_unpacked_and_loads(tmp_path, monkeypatch) -> None:
    body = make_archive(GOOD)
    monkeypatch.setitem(module.DOWNLOADS, "ml-100k", source_of(body))
    requested, seen = [], []

    def download(url):
        requested.append(url)
        return served(body)(url)

    folder = fetch("ml-100k", tmp_path / "new", download, seen.append)
    assert folder == tmp_path / "new" / "ml-100k"
    assert (folder / "README").read_bytes() == b"terms"
    assert requested == ["https://files.grouplens.org/datasets/movielens/ml-100k.zip"]
    assert seen == sorted(seen)
    assert seen[-1] == len(body)
    assert [path.name for path in folder.parent.iterdir()] == ["ml-100k"]
    assert held_out("ml-100k", tmp_path / "new").test_items.tolist() == [1]
    assert fetch("ml-100k", tmp_path / "new", download) == folder
    assert len(requested) == 1


def test_wrong_sizes_wrong_digests_and_interrupted_downloads_leave_no_file(tmp_path) -> None:
    body = make_archive(GOOD)
    for change, what in (
        ({"sha256": "0" * 64}, "sha256"),
        ({"size": 100_000}, "of 100000 bytes"),
        ({"size": 100}, "longer than the expected 100 bytes"),
    ):
        with pytest.raises(DataError, match=what):
            fetch_set(replace(source_of(body), **change), tmp_path, served(body))
        assert list(tmp_path.iterdir()) == []

    def breaking(url):
        yield body[:50]
        raise ConnectionResetError("cut off")

    with pytest.raises(ConnectionResetError):
        fetch_set(source_of(body), tmp_path, breaking)
    assert list(tmp_path.iterdir()) == []


def test_downloads_are_complete_and_described_with_their_terms() -> None:
    for name, source in DOWNLOADS.items():
        assert source.name == name
        assert source.url.startswith("https://")
        assert re.fullmatch("[0-9a-f]{64}", source.sha256)
        # wrapped differently, but every word of the terms
        assert " ".join(source.terms.split()) in " ".join(describe(name).split())
        assert source.url in describe(name)
    with pytest.raises(DataError, match="ml-100k, ml-1m"):
        describe("netflix")


def digest(config: SyntheticConfig) -> str:
    made = synthetic(config)
    arrays = made.indptr, made.items, made.timestamps
    return hashlib.sha256(b"".join(array.astype("<i8").tobytes() for array in arrays)).hexdigest()


def test_default_data_is_identical_on_every_machine() -> None:
    assert digest(SyntheticConfig()) == "cb5346c07b2c87938d2368d1fd8ac3483dc297e2fe42912acc319379c376fabb"
    assert digest(SyntheticConfig(seed=1)) != digest(SyntheticConfig())
    split = held_out("synthetic")
    assert split.train.size + split.tested_users.size == synthetic(SyntheticConfig()).size


def test_shape_and_skew_follow_the_configuration() -> None:
    made = synthetic(SyntheticConfig(users=150, items=200, positives=20))
    degrees = made.user_degrees()
    assert (made.n_users, made.n_items) == (150, 200)
    assert 10 <= degrees.min() <= degrees.max() <= 40
    assert 17 < degrees.mean() < 23
    assert np.unique(made.timestamps).size == made.size
    flat = synthetic(SyntheticConfig(affinity=0, skew=0)).item_degrees()
    steep = synthetic(SyntheticConfig(affinity=0, skew=1.5)).item_degrees()
    assert flat.max() < 60 < 300 < steep.max()
    for wrong in ({"users": 0}, {"positives": 1}, {"items": 59}, {"affinity": float("nan")}, {"skew": -1.0}):
        with pytest.raises(ParameterError):
            SyntheticConfig(**wrong)


@pytest.mark.parametrize(
    ("name", "users", "items", "rows", "merged", "scale"),
    [
        ("ml-100k", 943, 1682, 100_000, 0, (1, 5)),  # RFRec and PFedCLR, table of data sets
        ("ml-1m", 6040, 3706, 1_000_209, 0, (1, 5)),
        ("filmtrust", 1508, 2071, 35_494, 3, (0.5, 4)),
    ],
)
def test_ratings_are_read_with_their_values(published_data, name, users, items, rows, merged, scale) -> None:
    read = load_interactions(name, published_data)
    assert (read.n_users, read.n_items, read.size, read.merged) == (users, items, rows, merged)
    assert (read.ratings.min(), read.ratings.max()) == scale


def test_goodreads_as_fair_uses_it(published_data) -> None:
    train, test = both_sides("goodreads-100", published_data)
    # Item tables have a row for every number up to the largest, as in the released code; 357,638 of them are used.
    assert (train.n_users, train.n_items) == (99, 359_014)
    assert (train.size, test.size) == (482_745, 206_869)
    assert np.count_nonzero(train.item_degrees() + test.item_degrees()) == 357_638
