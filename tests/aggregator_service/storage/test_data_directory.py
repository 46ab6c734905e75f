"""The data directory: who can read it, what a start deletes from it, and what root's commands leave there."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import new_key
from aggregator_service.storage.data_directory import body_path, make_private, own_data_directory
from aggregator_service.storage.database import Database
from aggregator_service.storage.directory import DirectoryBlobs
from protocols.errors import ParameterError
from tests.support.api import aggregator_inside
from tests.support.forked import ForkedProcess
from tests.support.needs import required
from tests.support.server import running_aggregator

OTHER_USER = 12_345
Run = Callable[..., str]


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `path` belong to a user who is neither this one nor root; without the right to do so, be another user."""
    if os.geteuid() == 0:
        os.chown(path, OTHER_USER, OTHER_USER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)


def open_directory(data: Path) -> None:
    with own_data_directory(Settings(data_dir=data)):
        pass


def test_a_start_deletes_its_own_bodies_and_nothing_else(tmp_path: Path) -> None:
    uploads, elsewhere = tmp_path / "data" / "uploads", tmp_path / "elsewhere"
    own, other = body_path(uploads, "contribution"), body_path(uploads, "chunk")
    kept = [uploads / "photo.jpg", uploads / "album" / "body-1", elsewhere / "body-2"]
    for path in (own, other, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")
    (uploads / "body-linked").symlink_to(elsewhere / "body-2")
    if os.geteuid() == 0:
        kept.append(uploads / "body-of-another-user")
        kept[-1].write_bytes(b"content")
        os.chown(kept[-1], OTHER_USER, OTHER_USER)
    with aggregator_inside(tmp_path / "data"):
        pass
    assert not own.exists() and not other.exists()
    assert all(path.read_bytes() == b"content" for path in kept)
    assert (uploads / "body-linked").is_symlink()


@pytest.mark.parametrize("name", ["uploads", "scratch"])
def test_a_link_in_place_of_a_directory_is_refused(tmp_path: Path, name: str) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data.mkdir(), elsewhere.mkdir(mode=0o755)
    (elsewhere / "body-1").write_bytes(b"content")
    (data / name).symlink_to(elsewhere, target_is_directory=True)
    with pytest.raises(PermissionError, match=f"{name} is a link or a file, .* mount it there"):
        open_directory(data)
    assert (elsewhere / "body-1").read_bytes() == b"content"


@pytest.mark.parametrize("name", ["", "uploads", "scratch"])
def test_a_directory_of_another_user_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    (data / "uploads").mkdir(parents=True)
    (data / "scratch").mkdir()
    open_directory(data)
    give_away(data / name, monkeypatch)
    with pytest.raises(PermissionError, match=r"belongs to user \d+, and the server runs as user .* chown -R"):
        open_directory(data)


def test_a_link_is_not_made_private(tmp_path: Path) -> None:
    """A service that was taken over could let a command of root change any file."""
    data, target = tmp_path / "data", tmp_path / "target"
    data.mkdir(mode=0o700)
    target.touch(mode=0o644)
    target.chmod(0o644)
    for name in ("uploads", "blobs", "hushrec.db"):
        (data / name).symlink_to(target)
    make_private(Settings(data_dir=data))
    assert target.stat().st_mode & 0o777 == 0o644


def test_attack_a_link_that_replaces_a_file_after_the_look_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    data.mkdir(mode=0o700)
    for path in (target, data / "hushrec.db"):
        path.touch()
        path.chmod(0o644)
    looked = Path.lstat

    def look(path: Path) -> os.stat_result:
        found = looked(path)
        if path.name == "hushrec.db" and stat.S_ISREG(found.st_mode):
            path.unlink()
            path.symlink_to(target)
        return found

    monkeypatch.setattr(Path, "lstat", look)
    make_private(Settings(data_dir=data))
    assert (data / "hushrec.db").is_symlink() and target.stat().st_mode & 0o777 == 0o644


def test_attack_a_link_in_the_place_of_a_blob_that_is_being_written_leads_nowhere(tmp_path: Path) -> None:
    """Root's commands would write there, and give the file to the service user."""
    root, target = tmp_path / "blobs", tmp_path / "secret"
    root.mkdir()
    target.write_bytes(b"content")
    (root / ".hushrec.tmp").symlink_to(target)
    blobs = DirectoryBlobs(root)
    made = blobs.prepare()
    assert blobs.current_id() == made
    assert target.read_bytes() == b"content" and not (root / ".hushrec").is_symlink()


def test_attack_a_link_in_the_place_of_the_lock_makes_no_file_elsewhere(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "elsewhere.lock"
    data.mkdir(mode=0o700)
    (data / "server.lock").symlink_to(target)
    with pytest.raises(PermissionError, match=r"server\.lock is a link: remove it"):
        open_directory(data)
    assert not target.exists()


def test_only_unfinished_blobs_are_cleaned_up(tmp_path: Path) -> None:
    blobs, elsewhere = DirectoryBlobs(tmp_path / "blobs"), tmp_path / "elsewhere"
    blobs.prepare()
    name = f"{new_key('partials', 't_1', 1)}.tmp"
    own, other = tmp_path / "blobs" / name, tmp_path / "blobs" / "mine" / "work.tmp"
    linked = elsewhere / Path(name).name
    for path in (own, other, linked):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")
    (tmp_path / "blobs" / "link").symlink_to(elsewhere, target_is_directory=True)
    blobs.clean()
    assert (own.exists(), other.exists(), linked.exists()) == (False, True, True)


def open_to_others(root: Path) -> list[Path]:
    return [path for path in (root, *root.rglob("*")) if path.stat().st_mode & 0o077]


def test_a_server_and_commands_create_private_files_in_an_open_directory(tmp_path: Path, run: Run) -> None:
    """`run` sets the usual umask, which lets everybody read. Existing files are closed to others."""
    data, other = tmp_path / "data", tmp_path / "other"
    for folder in (data, other):
        folder.mkdir(mode=0o755)
    with running_aggregator(other, database_url=f"sqlite:///{other / 'hushrec.db'}"):  # which it creates itself
        assert other.joinpath("hushrec.db-wal").exists()
        assert open_to_others(other) == []
    run("init", "--data-dir", str(data))
    assert data.joinpath("hushrec.db").exists()
    assert open_to_others(data) == []
    (data / "blobs").mkdir()
    (data / "hushrec.db-wal").touch()
    for path in (data, *data.rglob("*")):
        path.chmod(0o755)
    make_private(Settings(data_dir=data))
    assert not {data, data / "blobs", data / "hushrec.db", data / "hushrec.db-wal"} & set(open_to_others(data))


def test_what_cannot_be_closed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    (tmp_path / "hushrec.db").touch()
    tmp_path.joinpath("hushrec.db").chmod(0o644)

    def refuse(_descriptor: int, _mode: int) -> None:
        raise PermissionError

    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "fchmod", refuse)
    text = run("task", "list", "--data-dir", str(tmp_path), status=1)
    assert "hushrec.db is open to other users (mode 644)" in text
    assert "chmod it to 600" in text


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The empty data directory of the service user."""
    required("root")
    made = tmp_path / "data"
    made.mkdir(mode=0o700)
    os.chown(made, OTHER_USER, OTHER_USER)
    return made


def root_run(data: Path, *arguments: str, status: int = 0) -> str:
    """Run a command as root; return what it printed."""
    printed = data.parent / "printed"
    with printed.open("wb") as output:
        command = [*arguments, "--data-dir", str(data)]
        process = ForkedProcess("server", "aggregator_service.cli", command, os.environ, output)
        assert process.wait(120) == status, printed.read_text()
    return printed.read_text()


def create(data: Path, values: Path, status: int = 0) -> str:
    task = ("task", "create", "start", "--recipe", "arrays", "--mechanism", "plain", "-r", "reveal_weights=true")
    return root_run(data, *task, "-r", "max_weight=10", "--initial", str(values), status=status)


def test_everything_belongs_to_the_service_user(data: Path, tmp_path: Path) -> None:
    save_file({"w": np.zeros((4, 2), np.float32)}, tmp_path / "values.safetensors")
    root_run(data, "init")
    assert (data / "admin.token").exists()
    create(data, tmp_path / "values.safetensors")
    (snapshot,) = (data / "blobs" / "snapshots").iterdir()
    assert "already" in create(data, tmp_path / "values.safetensors", status=1)
    assert list((data / "blobs" / "snapshots").iterdir()) == [snapshot]  # a task that was not created has no blob
    root_run(data, "migrate-storage", "--to-blobs", f"dir:{data / 'moved'}")
    root_run(data, "token", "create", "ann", "--token-file", str(tmp_path / "ann.token"))
    assert {"hushrec.db", "hushrec.db-leader", "blobs", "moved"} <= {path.name for path in data.iterdir()}
    assert [path for path in data.rglob("*") if path.lstat().st_uid != OTHER_USER] == []
    assert (tmp_path / "ann.token").stat().st_uid == 0  # a file that root names is root's


def test_attack_a_link_in_the_place_of_the_database_makes_no_file_elsewhere(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.db"
    (tmp_path / "hushrec.db").symlink_to(target)
    with pytest.raises(ParameterError, match="is a link"):
        Database(f"sqlite:///{tmp_path / 'hushrec.db'}")
    assert not target.exists()
