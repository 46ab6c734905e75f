"""Fetching from a source of our own: the right archive lands whole, any other leaves nothing behind."""

from __future__ import annotations

import hashlib
import io
import re
import stat
import zipfile
from dataclasses import replace

import pytest

from client_sdk.data import fetch as module
from client_sdk.data.errors import DataError
from client_sdk.data.fetch import DOWNLOADS, DownloadableSet, describe, fetch, fetch_set
from client_sdk.data.loaders import load_dataset

GOOD = {"ml-100k/": b"", "ml-100k/u.data": b"1\t10\t3\t50\n1\t20\t3\t60\n", "ml-100k/README": b"terms"}


def packed(members: dict[str, bytes], mode: int = 0) -> bytes:
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


def test_the_right_archive_lands_and_loads(tmp_path, monkeypatch) -> None:
    body = packed(GOOD)
    monkeypatch.setitem(module.DOWNLOADS, "ml-100k", source_of(body))
    asked, seen = [], []

    def download(url):
        asked.append(url)
        return served(body)(url)

    folder = fetch("ml-100k", tmp_path / "new", download, seen.append)
    assert folder == tmp_path / "new" / "ml-100k"
    assert (folder / "README").read_bytes() == b"terms"
    assert asked == ["https://files.grouplens.org/datasets/movielens/ml-100k.zip"]
    assert seen == sorted(seen)
    assert seen[-1] == len(body)
    assert [path.name for path in folder.parent.iterdir()] == ["ml-100k"]
    assert load_dataset("ml-100k", tmp_path / "new").test_items.tolist() == [1]
    assert fetch("ml-100k", tmp_path / "new", download) == folder
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"md5": "0" * 32}, "md5"),
        ({"sha256": "0" * 64}, "sha256"),
        ({"size": 100_000}, "of 100000 bytes"),
        ({"size": 100}, "longer than the 100 bytes"),
    ],
)
def test_another_size_or_digest_leaves_nothing(tmp_path, change, what) -> None:
    body = packed(GOOD)
    with pytest.raises(DataError, match=what):
        fetch_set(replace(source_of(body), **change), tmp_path, served(body))
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_breaks_off_leaves_nothing_and_says_so_itself(tmp_path) -> None:
    body = packed(GOOD)

    def breaking(url):
        yield body[:50]
        raise ConnectionResetError("cut off")

    with pytest.raises(ConnectionResetError):
        fetch_set(source_of(body), tmp_path, breaking)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["../evil", "ml-100k/../../evil", "/etc/evil", "ml-100k//evil", "ml-100k\\..\\evil", "C:/evil", "other/u.data"],
)
def test_a_member_outside_the_sets_folder_is_refused(tmp_path, name) -> None:
    body = packed({**GOOD, name: b"x"})
    data_dir = tmp_path / "data"
    with pytest.raises(DataError, match="does not lie in ml-100k/"):
        fetch_set(source_of(body), data_dir, served(body))
    assert [path.name for path in tmp_path.rglob("*")] == ["data"]


def test_links_bombs_and_rubbish_are_refused(tmp_path, monkeypatch) -> None:
    cases = {
        "not a plain file": packed({"ml-100k/u.data": b"/etc/passwd"}, stat.S_IFLNK | 0o777),
        "cannot be unpacked": b"this is no archive",
        "holds no file": packed({"ml-100k/": b""}),
    }
    for what, body in cases.items():
        with pytest.raises(DataError, match=what):
            fetch_set(source_of(body), tmp_path, served(body))
    monkeypatch.setattr(module, "UNPACKED_LIMIT", 10)
    body = packed(GOOD)
    with pytest.raises(DataError, match="more than 10 bytes"):
        fetch_set(source_of(body), tmp_path, served(body))
    assert list(tmp_path.iterdir()) == []


def test_the_registry_is_complete_and_tells_the_terms() -> None:
    for name, source in DOWNLOADS.items():
        assert source.name == name
        assert source.url.startswith("https://")
        assert re.fullmatch("[0-9a-f]{32}", source.md5)
        assert re.fullmatch("[0-9a-f]{64}", source.sha256)
        # laid out anew for the terminal, but every word of them
        assert " ".join(source.terms.split()) in " ".join(describe(name).split())
        assert source.url in describe(name)
    with pytest.raises(DataError, match="ml-100k, ml-1m"):
        describe("netflix")
