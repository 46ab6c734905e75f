"""The wheel installs into an empty environment with each extra, and both commands work or say what is missing.

Dependencies are those of requirements.lock, so that nothing is resolved anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.needs import required

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).with_name("uv"))
Run = Callable[..., subprocess.CompletedProcess[str]]

WORKS = {
    "": "from protocols.sums.registry import mechanism; mechanism('masked'); import client_sdk.lab.fleet; "
    "import client_sdk.training.privirec, client_sdk.training.graph_filters",
    "ckks,paillier": "from protocols.sums.registry import mechanism as of; of('ckks').plan, of('paillier').plan",
    "lab": "import client_sdk.lab.whole",
    "server": "import aggregator_service.app, aggregator_service.commands.serve; "
    "import aggregator_service.commands.task_control",
    "organiser,plots,data": "import client_sdk.organiser.app, client_sdk.lab.data.tables; "
    "from client_sdk.lab.demo.plots import plots_available; assert plots_available()",
    "privacy": "from client_sdk.cli.privacy import loss_epsilon; from dp_accounting import GaussianDpEvent; "
    "assert 0 < loss_epsilon(GaussianDpEvent(4), 1, 1e-6) < 2",
    "demo": "import client_sdk.lab.demo.arms, client_sdk.lab.demo.report, client_sdk.lab.demo.spectrum",
    "server,postgres,s3,cluster,otel": "import psycopg, opentelemetry.sdk, aggregator_service.app; "
    "import aggregator_service.storage.postgres, aggregator_service.storage.s3, aggregator_service.compute.cluster",
}
"""Extras -> what works with them. Those that are installed together have no dependency in common."""


def run(*command: object, cwd: Path | None = None, bytecode: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HUSHREC_", "PYTHON"))}
    if bytecode is not None:
        environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    given = [str(part) for part in command]
    return subprocess.run(given, check=False, capture_output=True, text=True, env=environment, timeout=300, cwd=cwd)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, ROOT / "scripts" / "build_wheel.py", folder)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each test makes its environment anew: modules at the same paths are compiled once for all tests."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture
def installed(wheel: Path, place: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """Runs a command of a new environment with the wheel and the extras that the test names."""
    extras = [extra for extra in request.param.split(",") if extra]
    environment, bytecode = place / "environment", place / "bytecode"
    pins = run(sys.executable, ROOT / "docs" / "deploy" / "pins.py", *extras)
    assert pins.returncode == 0, pins.stderr
    (tmp_path / "pins.txt").write_text(pins.stdout, encoding="utf-8")
    target = ("--python", environment / "bin" / "python", "--no-deps", *required("locked packages"))
    for command in (
        (UV, "venv", "--clear", "--python", sys.executable, environment),
        (UV, "pip", "install", *target, "--require-hashes", "-r", tmp_path / "pins.txt"),
        (UV, "pip", "install", *target, wheel),
    ):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    return lambda program, *arguments: run(environment / "bin" / program, *arguments, cwd=tmp_path, bytecode=bytecode)


@pytest.mark.parametrize(("installed", "code"), list(WORKS.items()), indirect=["installed"])
def test_what_an_extra_brings_works_without_the_others(installed: Run, code: str) -> None:
    done = installed("python", "-W", "error", "-c", code)
    assert done.returncode == 0, done.stderr
    if code in (WORKS[""], WORKS["server"]):
        assert installed("hushrec", "doctor").returncode == 0
    if code == WORKS[""]:
        _check_that_missing_extras_are_named(installed)


def _check_that_missing_extras_are_named(installed: Run) -> None:
    """In a client-only installation."""
    for command, words in {
        ("hushrec-server", "serve"): "the extra `server`, which is not installed: hushrec doctor",
        ("hushrec", "demo"): "hushrec[demo]",
        ("hushrec", "evaluate", "--dataset", "synthetic"): None,
        ("hushrec", "simulate", "--recipe", "colr", "--mechanism", "ckks", "--rounds", "1"): "hushrec[ckks]",
        ("hushrec", "organiser", "serve"): None,
    }.items():
        done = installed(*command)
        assert "Traceback" not in done.stderr, (command, done.stderr)
        if words is not None:
            assert done.returncode == 1, command
            assert words in done.stderr, (command, done.stderr)
