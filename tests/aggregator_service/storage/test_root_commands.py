"""Commands that root runs on the data directory of a service user leave nothing there that this user cannot use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.needs import required

SERVICE_USER = 12_345


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The empty data directory of the service user."""
    required("root")
    made = tmp_path / "data"
    made.mkdir(mode=0o700)
    os.chown(made, SERVICE_USER, SERVICE_USER)
    return made


def run(data: Path, *arguments: str, status: int = 0) -> str:
    """Run a command as root; return what it printed."""
    command = [sys.executable, "-m", "aggregator_service.cli", *arguments, "--data-dir", str(data)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == status, ended.stderr
    return ended.stdout + ended.stderr


def of_root(data: Path) -> list[str]:
    return [str(path.relative_to(data)) for path in data.rglob("*") if path.lstat().st_uid != SERVICE_USER]


def create(data: Path, values: Path, status: int = 0) -> str:
    task = ("task", "create", "start", "--recipe", "arrays", "--mechanism", "plain", "-r", "reveal_weights=true")
    return run(data, *task, "-r", "max_weight=10", "--initial", str(values), status=status)


def test_everything_belongs_to_the_service_user(data: Path, tmp_path: Path) -> None:
    save_file({"w": np.zeros((4, 2), np.float32)}, tmp_path / "values.safetensors")
    run(data, "init")
    assert (data / "admin.token").exists()
    create(data, tmp_path / "values.safetensors")
    (snapshot,) = (data / "blobs" / "snapshots").iterdir()
    assert "already" in create(data, tmp_path / "values.safetensors", status=1)
    assert list((data / "blobs" / "snapshots").iterdir()) == [snapshot]  # a task that was not created has no blob
    run(data, "migrate-storage", "--to-blobs", f"dir:{data / 'moved'}")
    run(data, "token", "create", "ann", "--token-file", str(tmp_path / "ann.token"))
    assert {"hushrec.db", "hushrec.db-leader", "blobs", "moved"} <= {path.name for path in data.iterdir()}
    assert of_root(data) == []
    assert (tmp_path / "ann.token").stat().st_uid == 0  # a file that root names is root's
