"""The check that keeps built, private and large files out of the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_files.py"


def run(*arguments: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], check=False, cwd=folder, capture_output=True, text=True
    )
    return done.returncode, done.stdout


def test_small_source_files_pass(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    assert run("a.py", folder=tmp_path) == (0, "")


def test_a_built_file_and_a_large_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "tool.whl").write_bytes(b"PK")
    (tmp_path / "large.txt").write_bytes(b"x" * 500_001)
    status, said = run("tool.whl", "large.txt", folder=tmp_path)
    assert status == 1
    assert "tool.whl: a built, downloaded or private file (.whl)" in said
    assert "large.txt: 500,001 bytes, the limit is 500,000" in said


def test_without_arguments_the_tracked_files_are_checked(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "kept.whl").write_bytes(b"PK")
    (tmp_path / "ignored.whl").write_bytes(b"PK")
    subprocess.run(["git", "add", "kept.whl"], cwd=tmp_path, check=True)
    status, said = run(folder=tmp_path)
    assert status == 1
    assert "kept.whl" in said
    assert "ignored.whl" not in said
