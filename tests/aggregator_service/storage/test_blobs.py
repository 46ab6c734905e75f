"""Blobs in a directory and in an S3 store: what the service relies on."""

from __future__ import annotations

import hashlib
import os
import pickle
import resource
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregator_service.storage.blobs import (
    BlobDamagedError,
    BlobStore,
    BlobsUnavailableError,
    Piece,
    new_key,
    task_of_key,
)
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.storage.stores import open_store

KEY = "partials/t_1-3-00"


@given(body=st.binary(max_size=5000))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_blobs_are_read_as_they_were_written(blobs: BlobStore, body: bytes) -> None:
    key = new_key("partials", "t_1", 3)
    assert task_of_key(key) == "t_1"
    digest = blobs.put(key, body)
    assert digest == hashlib.sha256(body).hexdigest()
    assert bytes(blobs.view(key, digest)) == body == b"".join(blobs.chunks(key, digest))
    blobs.check()  # writes nothing
    assert list(blobs.keys()) == list(blobs.keys(before=time.time() + 60)) == [key]
    assert list(blobs.keys(before=time.time() - 60)) == []
    blobs.delete(key, key, new_key("partials", "missing"))
    blobs.delete(key)
    assert list(blobs.keys()) == []


@pytest.mark.parametrize("size", [0, 9_000_001])
def test_a_file_is_adopted(blobs: BlobStore, tmp_path: Path, size: int) -> None:
    body = os.urandom(size)
    path = tmp_path / "body"
    path.write_bytes(body)
    blobs.adopt(path, KEY)
    assert not path.exists()
    digest = hashlib.sha256(body).hexdigest()
    assert bytes(blobs.view(KEY, digest)) == body
    chunks = list(blobs.chunks(KEY, digest))
    assert b"".join(chunks) == body
    assert max(map(len, chunks), default=0) <= 256 * 1024
    assert blobs.put(KEY, memoryview(body)) == digest  # a long one is written in parts


def test_a_damaged_or_missing_blob_is_detected(blobs: BlobStore) -> None:
    digest = blobs.put(KEY, b"abc")
    blobs.put(KEY, b"abd")
    for read in (blobs.view, blobs.chunks):
        with pytest.raises(BlobDamagedError, match="digest"):
            read(KEY, digest)
        with pytest.raises(BlobDamagedError, match="does not exist"):
            read(new_key("partials", "missing"), digest)


def test_a_blob_of_which_only_the_length_is_known(blobs: BlobStore) -> None:
    """A store holds what others wrote: neither a long, a short nor a missing blob becomes a value."""
    size, missing = 1_000_001, new_key("partials", "missing")
    body, room = os.urandom(size), memoryview(bytearray(size + 1))
    blobs.put(KEY, body)
    blobs.read_into(KEY, room[:size])
    assert room == body + b"\0"
    assert blobs.pieces([Piece(KEY, start, 5) for start in (10, size - 5)]) == [body[10:15], body[-5:]]
    empty = new_key("partials", "empty")
    blobs.put(empty, b"")
    blobs.read_into(empty, room[:0])
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: blobs.read_into(KEY, room[: size - 1]), f"{KEY} does not have {size - 1} bytes"),
        (lambda: blobs.read_into(KEY, room), f"{KEY} does not have {size + 1} bytes"),
        (lambda: blobs.pieces([Piece(KEY, size - 4, 5)]), f"fewer than {size + 1} bytes"),
        (lambda: blobs.read_into(missing, room), "does not exist"),
        (lambda: blobs.pieces([Piece(missing, 0, 5)]), "does not exist"),
    ]
    for act, error in refused:
        with pytest.raises(BlobDamagedError, match=error):
            act()


def test_invalid_keys_are_refused(blobs: BlobStore) -> None:
    for key in ("", "x", "/etc/passwd", "../x/y", "a/../b", "a/b/c", "a/.hidden", ".x/y"):
        for act in (partial(blobs.put, key, b""), partial(blobs.view, key, ""), partial(blobs.delete, key)):
            with pytest.raises(ValueError, match="not a blob key"):
                act()


def test_many_blobs_are_deleted_at_once(blobs: BlobStore) -> None:
    keys = [new_key("contributions", "t_1", index) for index in range(1100)]
    for key in keys[:5]:
        blobs.put(key, b"x")
    blobs.delete(*keys)
    assert list(blobs.keys()) == []


def test_a_worker_that_gets_a_pickled_store_opens_it_itself(blobs: BlobStore) -> None:
    digest, described = blobs.put(KEY, b"abc"), pickle.dumps(blobs)
    assert b"secret-key" not in described
    opened = pickle.loads(described)  # noqa: S301 - our own
    assert opened == blobs
    assert bytes(opened.view(KEY, digest)) == b"abc"
    assert bytes(blobs.view("aggregates/t_1-1-00", opened.put("aggregates/t_1-1-00", b"abcabc"))) == b"abcabc"


def test_a_directory_that_is_not_mounted_is_unavailable(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs")
    blobs.prepare()
    digest = blobs.put(KEY, b"abc")
    (tmp_path / "blobs").rename(tmp_path / "elsewhere")
    (tmp_path / "blobs").mkdir()
    for act in (
        blobs.check,
        lambda: blobs.view(KEY, digest),
        lambda: blobs.chunks(KEY, digest),
        lambda: blobs.put(KEY, b""),
    ):
        with pytest.raises(BlobsUnavailableError):
            act()


def test_a_directory_that_disappears_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs")
    blobs.prepare()
    path = tmp_path / "body"
    path.write_bytes(b"abc")
    rename = Path.replace

    def too_late(source: Path, target: Path) -> Path:
        rename(tmp_path / "blobs", tmp_path / "elsewhere")
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", too_late)
    with pytest.raises(BlobsUnavailableError):
        blobs.adopt(path, KEY)
    assert path.read_bytes() == b"abc"


def test_an_empty_bucket_is_unavailable(new_prefix: Callable[[], str], tmp_path: Path) -> None:
    """A prefix that was never prepared is a wrong setting, not lost contributions."""
    blobs = open_store(new_prefix(), tmp_path)
    for act in (blobs.check, lambda: blobs.view(KEY, "0" * 64)):
        with pytest.raises(BlobsUnavailableError):
            act()


def test_errors_do_not_contain_the_credentials(
    new_prefix: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    with pytest.raises(BlobsUnavailableError, match=r"the S3 store cannot be used \(") as raised:
        open_store(new_prefix(), tmp_path).prepare()
    shown = "".join(traceback.format_exception(raised.value))
    assert "wrong-secret" not in shown
    assert "AccessKey" not in shown


def test_downloads_of_a_blob_of_s3_share_a_copy_and_take_constant_memory(
    new_prefix: Callable[[], str], tmp_path: Path
) -> None:
    """Two downloads of 64 MiB take far less memory than one of them, and one unnamed file in the scratch directory."""
    scratch = tmp_path / "scratch"
    store = open_store(new_prefix(), scratch)
    store.prepare()
    digest = store.put(KEY, os.urandom(1024 * 1024) * 64)

    def copies() -> int:
        found = 0
        for link in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # the descriptor of the listing itself
                found += str(link.readlink()).startswith(str(scratch))
        return found

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ThreadPoolExecutor(2) as pool:
        readers = list(pool.map(lambda _: store.chunks(KEY, digest), range(2)))
        assert copies() == 1
        hashes = [hashlib.sha256(next(reader)) for reader in readers]  # each has a place of its own
        for reader, read in zip(readers, hashes, strict=True):
            for piece in reader:
                read.update(piece)
    assert [read.hexdigest() for read in hashes] == [digest] * 2
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 32 * 1024  # KiB
    readers.clear()
    assert copies() == 0
    assert not list(scratch.iterdir())
