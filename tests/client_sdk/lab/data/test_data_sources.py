"""Data sets: downloads that are correct or leave nothing, the published counts, and synthetic data."""

from __future__ import annotations

import hashlib
import io
import re
import stat
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from bench.experiments.leaks import users_with_at_least
from client_sdk.lab.data import fetch as module
from client_sdk.lab.data.fetch import DOWNLOADS, DownloadableSet, describe, fetch, fetch_set
from client_sdk.lab.data.interactions import DataError
from client_sdk.lab.data.published import load_dataset, load_interactions, load_train_test
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from protocols.errors import ParameterError

GOOD = {"ml-100k/": b"", "ml-100k/u.data": b"1\t10\t3\t50\n1\t20\t3\t60\n", "ml-100k/README": b"terms"}


def make_archive(members: dict[str, bytes], mode: int = 0) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            archive.writestr(member, content)
    return body.getvalue()


def source_of(body: bytes) -> DownloadableSet:
    digests = {"md5": hashlib.md5(body).hexdigest(), "sha256": hashlib.sha256(body).hexdigest()}  # noqa: S324
    return replace(DOWNLOADS["ml-100k"], size=len(body), **digests)


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
    assert load_dataset("ml-100k", tmp_path / "new").test_items.tolist() == [1]
    assert fetch("ml-100k", tmp_path / "new", download) == folder
    assert len(requested) == 1


def test_wrong_sizes_wrong_digests_and_interrupted_downloads_leave_no_file(tmp_path) -> None:
    body = make_archive(GOOD)
    for change, what in (
        ({"md5": "0" * 32}, "md5"),
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


def test_member_outside_the_data_sets_folder_is_refused(tmp_path) -> None:
    inside = ("ml-100k/../../evil", "ml-100k//evil", "ml-100k\\..\\evil")
    for name in ("../evil", "/etc/evil", "C:/evil", "other/u.data", *inside):
        body = make_archive({**GOOD, name: b"x"})
        with pytest.raises(DataError, match="which is not in ml-100k/"):
            fetch_set(source_of(body), tmp_path / "data", served(body))
        assert [path.name for path in tmp_path.rglob("*")] == ["data"]


def test_links_large_archives_and_invalid_archives_are_refused(tmp_path, monkeypatch) -> None:
    cases = {
        "not a regular file": make_archive({"ml-100k/u.data": b"/etc/passwd"}, stat.S_IFLNK | 0o777),
        "cannot be unpacked": b"this is no archive",
        "contains no file": make_archive({"ml-100k/": b""}),
    }
    for what, body in cases.items():
        with pytest.raises(DataError, match=what):
            fetch_set(source_of(body), tmp_path, served(body))
    monkeypatch.setattr(module, "UNPACKED_LIMIT", 10)
    body = make_archive(GOOD)
    with pytest.raises(DataError, match="more than 10 bytes"):
        fetch_set(source_of(body), tmp_path, served(body))
    assert list(tmp_path.iterdir()) == []


def test_downloads_are_complete_and_described_with_their_terms() -> None:
    for name, source in DOWNLOADS.items():
        assert source.name == name
        assert source.url.startswith("https://")
        assert re.fullmatch("[0-9a-f]{32}", source.md5)
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
    split = load_dataset("synthetic")
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


def test_filmtrust_as_pfedclr_uses_it(published_data) -> None:
    whole = load_interactions("filmtrust", published_data)
    assert np.all(np.diff(np.unique(whole.items, return_index=True)[1]) > 0), "items are numbered as they first appear"
    kept = users_with_at_least(whole, 10)
    # the paper's count, 33,372, includes the three repeated rows
    assert (kept.n_users, kept.n_items, kept.size + kept.merged) == (1002, 2042, 33_372)


def test_goodreads_as_fair_uses_it(published_data) -> None:
    train, test = load_train_test("goodreads-100", published_data)
    # Item tables have a row for every number up to the largest, as in the released code; 357,638 of them are used.
    assert (train.n_users, train.n_items) == (99, 359_014)
    assert (train.size, test.size) == (482_745, 206_869)
    assert np.count_nonzero(train.item_degrees() + test.item_degrees()) == 357_638
