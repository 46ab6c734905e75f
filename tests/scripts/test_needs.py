"""The end of a test run on a machine that lacks something: passed with a list of what was not run, or failed in CI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = "tests/aggregator_service/test_deploy.py::test_systemd_accepts_the_unit"
SERVICE = "tests/aggregator_service/storage/test_postgres.py"
ONE_OF_SERVICE = "test_a_deadlock_is_tried_again"
NEVER_IN_CI = "tests/client_sdk/lab/data/test_data_sources.py::test_ratings_are_read_with_their_values"


def run_tests(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run tests without programs, services and data sets; return the exit code and what was printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HUSHREC_", "PYTEST_"))}
    bare = {"PATH": str(folder), "HUSHREC_TEST_POSTGRES": "postgresql://postgres@127.0.0.1:1/none"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**kept, **bare, **variables}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_run_passes_and_ends_with_what_was_not_run(tmp_path: Path) -> None:
    """Also where two processes report to a third."""
    code, output = run_tests(tmp_path, PROGRAM, SERVICE, NEVER_IN_CI, "-n", "2")
    assert code == 0, output
    _, _, end = output.partition(" not run on this machine ")
    listed = dict(reversed(line.split("  needs ", 1)) for line in end.splitlines() if "  needs " in line)
    assert [need.split(":")[0] for need in listed] == [
        "PostgreSQL at port 5432 or HUSHREC_TEST_POSTGRES",
        "published data sets",
        "systemd-analyze",
    ]
    assert listed["systemd-analyze: apt-get install systemd"].split() == ["tests", "1"]


def test_a_gap_is_a_failure_in_ci_unless_ci_cannot_have_it(tmp_path: Path) -> None:
    code, output = run_tests(tmp_path, PROGRAM, f"{SERVICE}::{ONE_OF_SERVICE}", NEVER_IN_CI, HUSHREC_TEST_ALL="1")
    assert code == 1
    assert "needs systemd-analyze" in output and "needs PostgreSQL" in output
    assert "3  needs published data sets: HUSHREC_TEST_DATA=" in output
    assert re.search(r"\b[12] (failed|error).* 3 skipped", output), output
