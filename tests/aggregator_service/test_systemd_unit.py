"""The server runs under the system call filters of docs/deploy/systemd/hushrec.service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from client_sdk import Operator
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from tests.support.needs import required
from tests.support.server import AggregatorProcess
from tests.support.tasks import interactions, small_task
from tests.support.unit_filter import command_under, settings_of

UNIT = Path(__file__).parents[2] / "docs" / "deploy" / "systemd" / "hushrec.service"
USERS = 6

required("systemd-analyze")
required("libseccomp")


def started_command() -> list[str | Path]:
    """Return the unit's command, with the programs of this interpreter in place of those in /opt/hushrec."""
    (line,) = settings_of(UNIT, "ExecStart")
    program, *arguments = line.split()
    return [Path(sys.executable).parent / Path(program).name, *arguments]


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty directory of mode 0700 that its owner can reach, whoever that becomes; pytest's own are for one user."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        (Path(folder) / "data").mkdir(mode=0o700)
        yield Path(folder) / "data"


def test_the_server_runs_masked_rounds_under_the_filters_of_the_unit(data_dir: Path) -> None:
    server = AggregatorProcess(data_dir, command=command_under(UNIT, started_command(), data_dir), workers=2)
    server.start()
    try:
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        with Operator(server.url, server.operator_token) as operator:
            parameters = {"dropout": 0.2}
            task = small_task(
                operator, "filtered", users=USERS, mechanism="masked", mechanism_parameters=parameters, rounds=2
            )
            with Fleet(server.url, interactions(USERS), FleetOptions(seed=3)) as fleet:
                fleet.enrol(task.invitation, certificates=task.certificates)
                played = fleet.run()
            assert [(each.state, each.survivors) for each in played] == [("complete", USERS)] * 2
            assert operator.task(task.task_id).state == "complete"
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait_dead(seconds=30) == 0
    finally:
        server.stop()


def test_the_filters_of_the_unit_end_a_process_that_makes_another_call(data_dir: Path) -> None:
    """So the test above does not pass for want of a filter."""

    def run(code: str) -> int:
        command = command_under(UNIT, [sys.executable, "-c", code], data_dir)
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert run("import numpy") == 0
    assert run("import os; os.chroot('/')") == -signal.SIGSYS
    family = "import errno, socket\ntry: socket.socket(socket.AF_NETLINK)\nexcept OSError as e: exit(e.errno)"
    assert run(family) == 97  # EAFNOSUPPORT
