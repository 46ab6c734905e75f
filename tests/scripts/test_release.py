"""The version stands in one place, release notes come from the changelog, and the package index gets whole links."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from datetime import date
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    """The script as a module."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import release as found
    finally:
        sys.path.pop(0)
    return found


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that name the version."""
    for name in ("CHANGELOG.md", "pyproject.toml", "openapi/openapi.json", "docs/deploy.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs" / "deploy", tmp_path / "docs" / "deploy")
    return tmp_path


def test_every_file_names_the_version_of_pyproject(release: ModuleType) -> None:
    version = release.current()
    assert metadata.version("hushrec") == version
    assert f'"version": "{version}"' in (ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8")[:200_000]
    named = [path.read_text(encoding="utf-8") for path in release.images()]
    assert len(named) >= 5
    assert {tag for text in named for tag in re.findall(r"\bhushrec:([0-9][\w.]*)", text)} == {version}
    for package in ("aggregator_service", "client_sdk", "protocols"):
        for path in (ROOT / package).rglob("*.py"):
            assert f'"{version}"' not in path.read_text(encoding="utf-8"), path


def test_preparing_a_release_changes_every_place(release: ModuleType, copy: Path) -> None:
    old = release.current()
    assert len(release.prepare("9.8.7", date(2030, 2, 1), copy)) >= 8
    assert release.current(copy) == "9.8.7"
    changelog = (copy / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]\n\n## [9.8.7] - 2030-02-01\n" in changelog
    assert release.notes(changelog, "9.8.7") == release.notes((ROOT / "CHANGELOG.md").read_text(), "Unreleased")
    assert [path for path in release.images(copy) if f"hushrec:{old}" in path.read_text(encoding="utf-8")] == []
    with pytest.raises(SystemExit, match="no entries for Unreleased"):
        release.prepare("9.8.8", date(2030, 2, 2), copy)
    with pytest.raises(SystemExit, match="not a version"):
        release.prepare("v1", date(2030, 2, 2), copy)


def test_release_notes_are_printed(release: ModuleType) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "release.py"), "notes"]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == release.notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), "Unreleased")
    missing = subprocess.run([*script, "0.0.1"], capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stderr.startswith("CHANGELOG.md has no entries for 0.0.1")) == (1, True)


def test_the_page_of_the_package_index_has_whole_links_to_existing_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / project["readme"]).read_text(encoding="utf-8")
    base = f"{project['urls']['Repository']}/blob/main/"
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) >= 8
    for link in links:
        assert link.startswith(base), f"{link} does not work on the package index"
        assert (ROOT / link.removeprefix(base)).is_file(), link
    for extra in project["optional-dependencies"]:
        assert f"`{extra}`" in page or extra in ("bench", "dev", "mutants", "peers"), extra
    assert all(url.startswith(project["urls"]["Repository"]) for url in project["urls"].values())
