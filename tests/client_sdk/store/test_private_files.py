"""A client's files: private, written atomically, checked when they are read; full disks and a second process."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from client_sdk import store as stores
from client_sdk.errors import LocalFileError
from client_sdk.store import DirectoryStore, MemoryStore, Store, write_private
from client_sdk.store.client_store import ClientStore
from client_sdk.store.identity import Identity, Membership
from client_sdk.store.states import FollowedState
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.keys import Keyring
from protocols.errors import ParameterError
from protocols.recipes.base import FactorState
from protocols.recipes.registry import recipe
from tests.support.tasks import TRIAL

MEMBER = Membership("https://example.org", "t_1", "movies", "c_1", "member", "hrc_token", bytes(range(81)), TRIAL.pin)
KEYRING = Keyring("ckks", bytes(32), b"public", b"the secret key", bytes(range(32)))
LIKE = {"user_factor": np.zeros(4, dtype=np.float32)}
RECIPE = recipe("colr", {"items": 5, "dim": 4, "rank": 2})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_identity_is_saved_for_its_owner_only_and_loads_again(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        identity = Identity.generate()
        identity.save(tmp_path / "keys" / "me.key")
    finally:
        os.umask(old)
    assert mode(tmp_path / "keys" / "me.key") == 0o600
    assert mode(tmp_path / "keys") == 0o700
    again = Identity.load(tmp_path / "keys" / "me.key")
    assert (again.public_key, again.mailbox_key) == (identity.public_key, identity.mailbox_key)
    assert repr(again) == f"<Identity {identity.fingerprint}>"


def test_identity_files_that_others_can_access_missing_damaged_and_existing_ones(tmp_path: Path) -> None:
    path = tmp_path / "me.key"
    with pytest.raises(LocalFileError, match="does not exist"):
        Identity.load(path)
    made = Identity.load_or_create(path)
    assert Identity.load_or_create(path).fingerprint == made.fingerprint
    with pytest.raises(LocalFileError, match="never overwritten"):
        Identity.generate().save(path)
    for wrong in (0o640, 0o604, 0o660, 0o620):
        path.chmod(wrong)
        with pytest.raises(LocalFileError, match=f"chmod 600 {path}"):
            Identity.load(path)
    path.chmod(0o600)
    for body in (b"{", b"[]", b'{"format": "other"}', path.read_bytes()[:-20], b"\xff"):
        path.unlink()
        write_private(path, body)
        with pytest.raises(LocalFileError):
            Identity.load(path)


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return DirectoryStore(tmp_path / "store") if request.param == "directory" else MemoryStore()


def test_a_client_store_returns_what_was_stored(store: Store) -> None:
    client_store, other = ClientStore(store, "aa"), ClientStore(store, "bb")
    assert (
        client_store.membership("t_1") is client_store.keyring("t_1") is client_store.client_state("t_1", LIKE) is None
    )
    assert client_store.item_state("t_1", RECIPE) is None
    factor = np.arange(4, dtype=np.float32)
    state = FactorState(7, np.arange(20, dtype=np.float32).reshape(5, 4))
    client_store.keep_membership(MEMBER)
    client_store.keep_keyring("t_1", KEYRING)
    client_store.keep_client_state("t_1", {"user_factor": factor})
    client_store.keep_item_state("t_1", RECIPE, FollowedState(state))
    assert client_store.memberships() == [MEMBER]
    assert client_store.keyring("t_1") == KEYRING
    np.testing.assert_array_equal(client_store.client_state("t_1", LIKE)["user_factor"], factor)
    with pytest.raises(LocalFileError, match="does not fit its recipe"):
        client_store.client_state("t_1", {"user_factor": np.zeros(5, dtype=np.float32)})
    kept = client_store.item_state("t_1", RECIPE)
    assert kept.chain is None
    assert kept.state.round_number == 7
    np.testing.assert_array_equal(kept.state.item_factors, state.item_factors)
    assert client_store.item_state("t_1", RECIPE, chained=True) is None
    chain = AggregateChain.first("t_1").extended(7, b"aggregate")
    client_store.keep_item_state("t_1", RECIPE, FollowedState(state, chain, from_snapshot=True))
    chained = client_store.item_state("t_1", RECIPE, chained=True)
    assert (chained.chain, chained.from_snapshot, chained.state.round_number) == (chain, True, 7)
    assert other.memberships() == []
    shown = repr(MEMBER) + repr(KEYRING) + str(MEMBER)
    assert not any(secret in shown for secret in ("hrc_token", "the secret key", repr(bytes(range(32)))))


def test_two_servers_with_the_same_task_id_have_separate_records(store: Store) -> None:
    """A server that chooses the id of another server's task must not get at the records of that task."""
    honest, evil = (ClientStore(store, "aa", url) for url in (MEMBER.url, "https://evil.example"))
    honest.keep_membership(MEMBER)
    honest.keep_keyring("t_1", KEYRING)
    assert evil.membership("t_1") is evil.keyring("t_1") is None
    other = replace(MEMBER, url="https://evil.example", client_id="c_9")
    evil.keep_membership(other)
    evil.keep_keyring("t_1", replace(KEYRING, state_key=bytes(32)))
    assert (honest.membership("t_1"), honest.keyring("t_1")) == (MEMBER, KEYRING)
    assert evil.membership("t_1") == other
    assert {one.client_id for one in ClientStore(store, "aa").memberships()} == {"c_1", "c_9"}
    with pytest.raises(ParameterError, match="not an id of a task"):
        evil.keyring("t_1@" + "x")


def test_files_of_a_directory_store_are_private_damaged_ones_are_named_and_ids_cannot_leave_it(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    client_store = ClientStore(store, "aa")
    for name in ("membership.json", "keyring.bin", "memory.npz", "item_state.bin", "chained_state.bin"):
        store.write("aa", "t_1", name, b"\x00\x01")
    assert {mode(path) for path in tmp_path.rglob("*") if path.is_file()} == {0o600}
    for read in (
        lambda: client_store.membership("t_1"),
        lambda: client_store.keyring("t_1"),
        lambda: client_store.client_state("t_1", LIKE),
        lambda: client_store.item_state("t_1", RECIPE),
        lambda: client_store.item_state("t_1", RECIPE, chained=True),
    ):
        with pytest.raises(LocalFileError, match="task t_1"):
            read()
    (tmp_path / "aa" / "t_1" / "keyring.bin").chmod(0o644)
    with pytest.raises(LocalFileError, match="chmod 600"):
        client_store.keyring("t_1")
    for task_id in ("..", "a/b", "", "a\x00b"):
        with pytest.raises(ParameterError):
            store.write("aa", task_id, "x", b"")


def test_what_the_system_refuses_is_named_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path)
    store.write("aa", "t_1", "record", b"old")
    (tmp_path / "bb").write_text("not a folder")

    def failing(number: int) -> Callable[..., None]:
        def call(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        return call

    def refused(act: Callable[[], object], fault: str) -> str | None:
        with pytest.raises(LocalFileError, match=f"cannot {fault}") as caught:
            act()
        return caught.value.remedy

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.ENOSPC))
        full = refused(lambda: store.write("aa", "t_1", "record", b"new"), f"write {tmp_path}/aa/t_1/record: No space")
        assert full is not None and "Free space" in full
    assert store.read("aa", "t_1", "record") == b"old"
    assert [path.name for path in (tmp_path / "aa" / "t_1").iterdir()] == ["record"]
    refused(lambda: store.write("bb", "t_1", "record", b"x"), f"write {tmp_path}/bb/t_1/record: Not a directory")
    refused(lambda: store.locked("bb", "t_1").__enter__(), f"lock {tmp_path}/bb/t_1/lock")
    for name in ("exists", "iterdir"):
        monkeypatch.setattr(Path, name, failing(errno.EACCES))
    for read in (lambda: store.read("aa", "t_1", "record"), lambda: store.tasks("aa")):
        remedy = refused(read, f"read {tmp_path}/aa.*: Permission denied")
        assert remedy is not None and "access to the folder" in remedy


@pytest.fixture(params=["here", "windows"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This system, or Windows: `msvcrt.locking` is played by a function with its arguments and its error."""

    def locking(handle: int, mode: int, count: int) -> None:
        assert (os.lseek(handle, 0, os.SEEK_CUR), mode, count) == (0, 2, 1)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    if request.param == "windows":
        lock = stores.try_lock
        monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
        monkeypatch.setattr(stores, "try_lock", lambda handle: lock(handle, "win32"))


@pytest.mark.usefixtures("system")
def test_one_process_takes_part_in_a_task_at_a_time(tmp_path: Path) -> None:
    client_store, ours = ClientStore(DirectoryStore(tmp_path), "aa", "https://example.org"), os.pipe()
    if not (child := os.fork()):
        with client_store.locked("t_1"):
            os.write(ours[1], b"held")
            signal.pause()
        os._exit(1)
    assert os.read(ours[0], 4) == b"held"
    with pytest.raises(LocalFileError, match=f"another process .* {tmp_path}/aa/t_1"), client_store.locked("t_1"):
        pass
    os.kill(child, signal.SIGKILL)  # which frees its lock
    os.waitpid(child, 0)
    with client_store.locked("t_1"):
        with pytest.raises(LocalFileError, match="takes part"), client_store.locked("t_1"):
            pass
        with ClientStore(DirectoryStore(tmp_path), "aa", "https://other.example").locked("t_1"):
            pass
    with pytest.raises(ZeroDivisionError), client_store.locked("t_1"):
        raise ZeroDivisionError
    with client_store.locked("t_1"):
        client_store.write("t_1", "record", b"x")
    assert {mode(path) for path in tmp_path.rglob("*") if path.is_file()} == {0o600}
    memory = MemoryStore()
    with memory.locked("aa", "t_1"), memory.locked("aa", "t_1"):
        pass
