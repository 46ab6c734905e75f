"""A disk that is full or cannot be read, and a second process with the same records: errors name the file and cause."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from client_sdk.errors import LocalFileError
from client_sdk.store.client_store import ClientStore
from client_sdk.store.stores import DirectoryStore, MemoryStore

HOLDER = """
import sys
from client_sdk.store.stores import DirectoryStore
with DirectoryStore(sys.argv[1]).locked("aa", "t_1"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_the_old_content_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = DirectoryStore(tmp_path)
    store.write("aa", "t_1", "record", b"old")

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LocalFileError, match=f"cannot write {tmp_path}/aa/t_1/record: {os.strerror(number)}") as it:
            store.write("aa", "t_1", "record", b"new")
    assert it.value.remedy is not None
    assert "Free space" in it.value.remedy
    assert store.read("aa", "t_1", "record") == b"old"


def test_a_store_whose_place_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "aa").write_text("not a folder")
    store = DirectoryStore(tmp_path)
    with pytest.raises(LocalFileError, match=f"cannot write {tmp_path}/aa/t_1/record: Not a directory"):
        store.write("aa", "t_1", "record", b"x")
    with pytest.raises(LocalFileError, match=f"cannot lock {tmp_path}/aa/t_1/lock"), store.locked("aa", "t_1"):
        pass


def test_records_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path)
    store.write("aa", "t_1", "record", b"x")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "exists", refused)
    monkeypatch.setattr(Path, "iterdir", refused)
    for read in (lambda: store.read("aa", "t_1", "record"), lambda: store.tasks("aa")):
        with pytest.raises(LocalFileError, match=f"cannot read {tmp_path}/aa.*: Permission denied") as caught:
            read()
        assert caught.value.remedy is not None
        assert "access to the folder" in caught.value.remedy


def test_one_process_takes_part_in_a_task_at_a_time(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LocalFileError, match="another process takes part in this task") as caught:
            store.locked("aa", "t_1").__enter__()
        assert f"{tmp_path}/aa/t_1" in str(caught.value)
        with store.locked("aa", "t_2"), store.locked("bb", "t_1"):
            pass
        holder.kill()
    with store.locked("aa", "t_1"):  # the lock of a process that was killed is free
        pass


def test_the_lock_is_held_within_a_process_and_released_after_an_error(tmp_path: Path) -> None:
    client_store = ClientStore(DirectoryStore(tmp_path), "aa", "https://example.org")
    with client_store.locked("t_1"):
        with pytest.raises(LocalFileError, match="takes part"), client_store.locked("t_1"):
            pass
        other = ClientStore(DirectoryStore(tmp_path), "aa", "https://other.example")
        with other.locked("t_1"):
            pass
    with pytest.raises(ZeroDivisionError), client_store.locked("t_1"):
        raise ZeroDivisionError
    with client_store.locked("t_1"):
        client_store.write("t_1", "record", b"x")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()} == {0o600}


def test_records_in_memory_need_no_lock() -> None:
    store = MemoryStore()
    with store.locked("aa", "t_1"), store.locked("aa", "t_1"):
        pass
