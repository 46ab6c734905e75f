"""A start deletes what the server left in its data directory, and nothing else; directories of others are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aggregator_service.settings import Settings
from aggregator_service.storage.blobs import new_key
from aggregator_service.storage.cleanup import body_path, make_private, own_data_directory
from aggregator_service.storage.directory import DirectoryBlobs
from tests.support.server import running_aggregator

OTHER_USER = 12_345


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
    with running_aggregator(tmp_path / "data"):
        assert not own.exists() and not other.exists()
        assert all(path.read_bytes() == b"content" for path in kept)
        assert (uploads / "body-linked").is_symlink()


@pytest.mark.parametrize("name", ["uploads", "scratch"])
def test_a_link_in_place_of_a_directory_is_refused(tmp_path: Path, name: str) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data.mkdir(), elsewhere.mkdir(mode=0o755)
    (elsewhere / "body-1").write_bytes(b"content")
    (data / name).symlink_to(elsewhere, target_is_directory=True)
    with (
        pytest.raises(RuntimeError, match=f"{name} is a link or a file, .* mount it there") as refused,
        running_aggregator(data, fresh=True),
    ):
        pass
    assert "Traceback" not in str(refused.value)
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


def test_only_unfinished_blobs_are_cleaned_up(tmp_path: Path) -> None:
    blobs, elsewhere = DirectoryBlobs(tmp_path / "blobs"), tmp_path / "elsewhere"
    blobs.prepare()
    name = f"{new_key('partials', 't_1', 1)}.tmp"
    own, other, linked = (
        tmp_path / "blobs" / name,
        tmp_path / "blobs" / "mine" / "work.tmp",
        elsewhere / Path(name).name,
    )
    for path in (own, other, linked):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")
    (tmp_path / "blobs" / "link").symlink_to(elsewhere, target_is_directory=True)
    blobs.clean()
    assert (own.exists(), other.exists(), linked.exists()) == (False, True, True)
