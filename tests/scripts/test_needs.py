"""The end of a test run on a machine that lacks something: passed with a list of what was not run, or failed in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "tests/aggregator_service/test_deploy.py::test_systemd_accepts_the_unit"
SERVICE = "tests/aggregator_service/storage/test_postgres.py"
NEVER_IN_CI = "tests/client_sdk/lab/data/test_data_published.py"


def run_tests(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run tests without programs, services and data sets; return the exit code and what was printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HUSHREC_", "PYTEST_"))}
    bare = {"PATH": str(folder), "HUSHREC_TEST_POSTGRES": "postgresql://postgres@127.0.0.1:1/none"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**kept, **bare, **variables}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["one process", "two processes"])
def test_a_run_passes_and_ends_with_what_was_not_run(tmp_path: Path, processes: list[str]) -> None:
    code, output = run_tests(tmp_path, PROGRAM, SERVICE, NEVER_IN_CI, *processes)
    assert code == 0, output
    _, _, end = output.partition(" not run on this machine ")
    listed = dict(reversed(line.split("  needs ", 1)) for line in end.splitlines() if "  needs " in line)
    assert [need.split(":")[0] for need in listed] == [
        "PostgreSQL at port 5432 or HUSHREC_TEST_POSTGRES",
        "published data sets",
        "systemd-analyze",
    ]
    assert listed["systemd-analyze: apt-get install systemd"].split() == ["tests", "1"]


@pytest.mark.parametrize("tests", [PROGRAM, SERVICE], ids=["program", "service"])
def test_a_gap_is_a_failure_in_ci(tmp_path: Path, tests: str) -> None:
    code, output = run_tests(tmp_path, tests, HUSHREC_TEST_ALL="1")
    assert code == 1
    assert "needs " in output and "skipped" not in output


def test_what_ci_cannot_have_is_no_failure_there(tmp_path: Path) -> None:
    code, output = run_tests(tmp_path, NEVER_IN_CI, HUSHREC_TEST_ALL="1")
    assert code == 0
    assert "5  needs published data sets: HUSHREC_TEST_DATA=" in output
