"""Prints what tells this build from others: .dev20261129124235+g1a2b3c4d5e6f, the time (UTC) and the id of the commit.

    python3 scripts/build_tag.py

It follows the version of pyproject.toml. Where tracked files differ from the commit, it ends with `.dirty`. Nothing is
printed for the commit of a release, which has the tag `v0.1.0` of this version, and where there is no repository.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build_tag(root: Path = ROOT) -> str:
    """Return the tag of a checkout, "" for a release and for a folder that is not the root of a repository."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():
        return ""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    dirty = ".dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else ""
    if not dirty and f"v{version}" in (_git(root, "tag", "--points-at", "HEAD") or "").split():
        return ""
    commit = _git(root, "show", "--no-patch", "--date=format-local:%Y%m%d%H%M%S", "--format=%cd+g%H", "HEAD")
    if not commit:
        return ""  # a repository without a commit
    time, _, name = commit.partition("+g")
    return f".dev{time}+g{name[:12]}{dirty}"


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git prints, None where it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, env=os.environ | {"TZ": "UTC"}, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


if __name__ == "__main__":
    print(build_tag())
