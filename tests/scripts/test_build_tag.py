"""Builds of two commits have two versions; a release has its own; a source archive keeps its tag."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHO = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with one commit, of what a build needs."""
    folder = tmp_path / "clone"
    (folder / "scripts").mkdir(parents=True)
    (folder / "protocols").mkdir()
    for name in ("pyproject.toml", "setup.py", "LICENSE", "scripts/build_tag.py", "protocols/__init__.py"):
        shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "-q")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, *WHO, "commit", "-q", "--allow-empty", "-m", "a change")
    return git(folder, "rev-parse", "HEAD")


def tag(folder: Path) -> str:
    command = [sys.executable, folder / "scripts" / "build_tag.py"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def build(kind: str, source: Path, target: Path) -> Path:
    how = (f"--{kind}", "--no-build-isolation", "--offline", "--python", sys.executable)
    command = [Path(sys.executable).with_name("uv"), "build", *how, "--out-dir", target, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def test_each_commit_has_a_tag_and_a_release_none(clone: Path) -> None:
    first = tag(clone)
    assert re.fullmatch(rf"\.dev20[0-9]{{12}}\+g{git(clone, 'rev-parse', 'HEAD')[:12]}", first)
    (clone / "LICENSE").write_text("other")
    assert tag(clone) == f"{first}.dirty"
    second = commit(clone)
    assert tag(clone).endswith(f"+g{second[:12]}")
    version = re.search(r'^version = "(.+)"$', (clone / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    git(clone, "tag", f"v{version[1]}")
    assert tag(clone) == ""
    git(clone, "tag", "--delete", f"v{version[1]}")
    (clone / ".git").rename(clone.parent / "elsewhere")
    git(clone.parent, "init", "-q")  # a repository around it is another one
    assert tag(clone) == ""


def test_a_wheel_and_one_of_a_source_archive_name_the_commit(clone: Path, tmp_path: Path) -> None:
    expected = tag(clone)
    wheel = build("wheel", clone, tmp_path / "wheel")
    assert f"{expected}-py3" in wheel.name
    archive = build("sdist", clone, tmp_path / "archive")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert not (source / "scripts").exists()
    assert build("wheel", source, tmp_path / "again").name == wheel.name
