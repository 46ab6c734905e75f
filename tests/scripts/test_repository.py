"""What the repository keeps: no built or private files, no private names of others, one version, gaps that CI sees."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date
from importlib import metadata
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_files.py"


def run(*arguments: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], check=False, cwd=folder, capture_output=True, text=True
    )
    return done.returncode, done.stdout


def test_built_private_and_large_files_are_named_among_those_given_or_tracked(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    assert run("a.py", folder=tmp_path) == (0, "")
    for name in ("kept.whl", "ignored.whl"):
        (tmp_path / name).write_bytes(b"PK")
    (tmp_path / "large.txt").write_bytes(b"x" * 500_001)
    status, said = run("kept.whl", "large.txt", folder=tmp_path)
    assert status == 1
    assert "kept.whl: a built, downloaded or private file (.whl)" in said
    assert "large.txt: 500,001 bytes, the limit is 500,000" in said
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "add", "kept.whl"], cwd=tmp_path, check=True)
    status, said = run(folder=tmp_path)
    assert (status, "kept.whl" in said, "ignored.whl" in said) == (1, True, False)


ROOT = Path(__file__).parents[2]
PACKAGES = ("aggregator_service", "client_sdk", "protocols")
DOCUMENTED = {"_asdict", "_exit", "_fields", "_replace"}
"""Names that the reference of Python describes: of named tuples, and `os._exit`."""


def nodes_of(source: str) -> list[ast.AST]:
    return [*ast.walk(ast.parse(source))]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(nodes: Iterable[ast.AST]) -> set[str]:
    """All private names that our code defines: functions, classes, variables, attributes, parameters."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
            case ast.Constant(value=str() as name) if name.isidentifier():  # in __slots__
                found.add(name)
    return {name for name in found if is_private(name)}


def foreign(nodes: list[ast.AST], own: set[str]) -> Iterator[str]:
    """Private names of other libraries that a module imports, or reads from an imported module or any object."""
    imported = set()
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str() as module, level=0) if module.partition(".")[0] not in PACKAGES:
                imported |= {alias.asname or alias.name for alias in node.names}
                if any(is_private(part) for part in (*module.split("."), *(alias.name for alias in node.names))):
                    yield ast.unparse(node)
            case ast.Import(names=names):
                others = [alias for alias in names if alias.name.partition(".")[0] not in PACKAGES]
                imported |= {(alias.asname or alias.name).partition(".")[0] for alias in others}
                if any(is_private(part) for alias in others for part in alias.name.split(".")):
                    yield ast.unparse(node)
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in DOCUMENTED:
            base: ast.AST = node.value
            while isinstance(base, ast.Attribute):
                base = base.value
            of_a_library = isinstance(base, ast.Name) and base.id in imported
            if node.attr not in own or of_a_library:
                yield ast.unparse(node)


def test_no_private_name_of_another_library_is_used() -> None:
    """Nor would one be overlooked; our own and documented names are none."""
    paths = (path for one in PACKAGES for path in (ROOT / one).rglob("*.py"))
    modules = {str(path.relative_to(ROOT)): nodes_of(path.read_text(encoding="utf-8")) for path in paths}
    own = own_names(chain.from_iterable(modules.values()))
    found = {name: names for name, nodes in modules.items() if (names := [*foreign(nodes, own)])}
    assert found == {}
    for line in (
        "from uvicorn.protocols.http.h11_impl import _get_status_line",
        "import multiprocessing._winapi",
        "import logging\nlogging._srcfile = None",
        "from distributed import comm\ncomm.registry._backends",
        "engine.pool._inc_overflow()",
    ):
        assert [*foreign(nodes_of(line), own)], line
    for line in ("self._lock.acquire()", "import os\nos._exit(1)", "from protocols.sums import _x"):
        assert not [*foreign(nodes_of(line), own)], line


@pytest.fixture(scope="module")
def release() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import release as found
    finally:
        sys.path.pop(0)
    return found


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that name the version."""
    package = "examples/web/hushrec/package.json"
    for name in (
        "CHANGELOG.md", "pyproject.toml", "openapi/openapi.json", "docs/deploy.md", "docs/wire/changes.json", package,
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs" / "deploy", tmp_path / "docs" / "deploy")
    return tmp_path


def test_every_file_names_the_version_of_pyproject(release: ModuleType) -> None:
    version = release.current()
    assert metadata.version("hushrec").partition(".dev")[0] == version
    assert f'"version": "{version}"' in (ROOT / "openapi" / "openapi.json").read_text(encoding="utf-8")
    assert f'"version": "{version}"' in (ROOT / release.PACKAGE).read_text(encoding="utf-8")
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
    page = project["readme"]["text"]
    base = f"{project['urls']['Repository']}/blob/main/"
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) >= 5
    for link in links:
        assert link.startswith(base), f"{link} does not work on the package index"
        assert (ROOT / link.removeprefix(base)).is_file(), link
    assert all(url.startswith(project["urls"]["Repository"]) for url in project["urls"].values())


NEEDING = """
from tests.support.needs import required
def test_program(): required("systemd-analyze")
def test_service(): required("postgres")
def test_data(): required("data")
"""


def test_a_gap_is_a_failure_in_ci_unless_ci_cannot_have_it_and_is_then_listed(tmp_path: Path) -> None:
    """Also where another process reports."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_terminal_summary\n")
    (tmp_path / "test_needing.py").write_text(NEEDING)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HUSHREC_", "PYTEST_"))}
    bare = {"PATH": str(tmp_path), "HUSHREC_TEST_POSTGRES": "postgresql://postgres@127.0.0.1:1/none"}
    bare |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HUSHREC_TEST_ALL": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist", "-n", "1", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env={**kept, **bare}, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert "needs systemd-analyze: apt-get install systemd" in output
    assert "needs PostgreSQL at port 5432 or HUSHREC_TEST_POSTGRES" in output
    assert "1  needs published data sets: HUSHREC_TEST_DATA=" in output.partition(" not run on this machine ")[2]
    assert "2 failed, 1 skipped" in output


@pytest.mark.parametrize("package", ["aggregator_service", "client_sdk"])
def test_no_two_files_of_a_package_have_one_name(package: str) -> None:
    """Not of `protocols`, whose mechanisms each have a plan, a wire format and a run."""
    names = Counter(path.name for path in (ROOT / package).rglob("*.py") if path.name not in ("__init__.py", "env.py"))
    assert {name for name, count in names.items() if count > 1} == set()
