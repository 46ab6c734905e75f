"""Blobs in memory: the stored bytes, checked once, within a limit."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from aggregator_service.storage.blobs import BlobDamagedError, RecentBlobs, new_key
from aggregator_service.storage.directory import DirectoryBlobs


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    made = DirectoryBlobs(tmp_path)
    made.prepare()
    return made


def put(blobs: DirectoryBlobs, body: bytes) -> tuple[str, str, int]:
    key = new_key("snapshots", "t_1", 1)
    return key, blobs.put(key, body), len(body)


def test_a_blob_is_read_once(blobs: DirectoryBlobs) -> None:
    recent, blob = RecentBlobs(), put(blobs, b"model")
    assert recent.read(blobs, *blob) == b"model"
    (blobs.root / blob[0]).unlink()
    assert recent.read(blobs, *blob) == b"model"


def test_another_digest_is_checked_against_the_stored_bytes(blobs: DirectoryBlobs) -> None:
    recent, (key, digest, length) = RecentBlobs(), put(blobs, b"model")
    assert recent.read(blobs, key, digest, length) == b"model"
    with pytest.raises(BlobDamagedError):
        recent.read(blobs, key, hashlib.sha256(b"other").hexdigest(), length)


def test_long_blobs_are_not_kept_and_the_oldest_leaves(blobs: DirectoryBlobs) -> None:
    recent = RecentBlobs(longest=4, total=8)
    assert recent.read(blobs, *put(blobs, b"12345")) is None
    kept = [put(blobs, bytes([index]) * 4) for index in range(3)]
    assert [recent.read(blobs, *blob) for blob in kept] == [bytes([index]) * 4 for index in range(3)]
    for key, _, _ in kept:
        (blobs.root / key).unlink()
    assert recent.read(blobs, *kept[2]) == b"\2" * 4
    with pytest.raises(BlobDamagedError):
        recent.read(blobs, *kept[0])
