"""Fuzzing guided by coverage: it runs, and it finds what a decoder should have refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import required

ROOT = Path(__file__).parents[2]
_PLANTED = """
import dataclasses, sys
from tests.fuzz import guided, test_decoders

def read(body):
    if body[:2] == b"\\xff\\xfe":
        raise IndexError("not one of ours")

one = test_decoders.Decoder("planted", read, bytes(8), 0)
guided.decoders = lambda: (one,)
guided.main(["planted", "-runs=200000", "-seed=1", "-artifact_prefix=" + sys.argv[1] + "/"])
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("name", ["masked set", "keyring"])
def test_decoders_are_fuzzed_by_name(name: str) -> None:
    required("atheris")
    done = run("-m", "tests.fuzz.guided", name, "-runs=2000", "-seed=1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Done 2000 runs" in done.stderr


def test_another_error_than_ours_is_found_and_kept(tmp_path: Path) -> None:
    required("atheris")
    done = run("-c", _PLANTED, str(tmp_path))
    assert done.returncode != 0
    assert "IndexError: not one of ours" in done.stdout + done.stderr
    (kept,) = tmp_path.glob("crash-*")
    assert kept.read_bytes()[:2] == b"\xff\xfe"


def test_an_unknown_name_is_answered_with_all_names() -> None:
    required("atheris")
    done = run("-m", "tests.fuzz.guided", "nothing")
    assert done.returncode == 1
    assert "masked roster" in done.stderr
