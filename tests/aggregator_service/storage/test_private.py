"""What the server stores is readable by its own user alone, also in a directory that exists already."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator_service import cli
from aggregator_service.cli import main
from aggregator_service.commands import serve
from aggregator_service.settings import Settings
from aggregator_service.storage.cleanup import make_private
from tests.support.server import running_aggregator


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """The usual umask of a login shell, which lets everybody read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(root: Path) -> list[Path]:
    return [path for path in (root, *root.rglob("*")) if path.stat().st_mode & 0o077]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hushrec-server", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("defended", [True, False], ids=["defended", "defence taken out"])
def test_commands_create_private_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool) -> None:
    if not defended:
        monkeypatch.setattr(cli, "_UMASK", 0o022)
        monkeypatch.setattr(serve, "make_private", lambda *_: None)
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    assert run(monkeypatch, "init", "--data-dir", str(data)) == 0
    assert data.joinpath("hushrec.db").exists()
    assert (open_to_others(data) == []) is defended


def test_a_server_creates_private_files_in_an_open_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    with running_aggregator(data, fresh=True):  # as the command is started elsewhere
        assert data.joinpath("hushrec.db-wal").exists()
        assert open_to_others(data) == []


def test_existing_files_are_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    assert run(monkeypatch, "init", "--data-dir", str(data)) == 0
    (data / "blobs").mkdir()
    (data / "hushrec.db-wal").touch()
    for path in (data, *data.rglob("*")):
        path.chmod(0o755)
    make_private(Settings(data_dir=data))
    assert not {data, data / "blobs", data / "hushrec.db", data / "hushrec.db-wal"} & set(open_to_others(data))


def test_what_cannot_be_closed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hushrec.db").touch()
    tmp_path.joinpath("hushrec.db").chmod(0o644)

    def refuse(_path: Path, _mode: int) -> None:
        raise PermissionError

    tmp_path.chmod(0o700)
    monkeypatch.setattr(Path, "chmod", refuse)
    assert run(monkeypatch, "task", "list", "--data-dir", str(tmp_path)) == 1
    text = capsys.readouterr().err
    assert "hushrec.db is open to other users (mode 644)" in text
    assert "chmod it to 600" in text
