"""An upgrade from an earlier state of the repository: server, database, blobs, and what members keep on their devices.

The earlier state's own code runs the first rounds; this one goes on with the files that it left.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, checked
from tests.support.needs import UPGRADED_FROM, required
from tests.support.server import AggregatorProcess
from tests.upgrade import federation


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The start of a command that runs Python with the packages of the earlier state."""
    before = tmp_path_factory.mktemp("before")
    archive = ["git", "archive", UPGRADED_FROM, "protocols", "client_sdk", "aggregator_service"]
    made = subprocess.run(archive, cwd=required("history"), capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as packages:
        packages.extractall(before, filter="data")
    return ["env", f"PYTHONPATH={before}", sys.executable, "-P"]


def test_tasks_go_on_after_an_upgrade(tmp_path: Path, python: list[str]) -> None:
    """First the server is upgraded and then the members, or the other way round; every round is complete."""
    data, kept = tmp_path / "data", tmp_path / "members"

    def take_part_before(**until: int) -> dict[str, Any]:
        """Run the members with the code of the earlier state."""
        script, asked = Path(__file__).with_name("federation.py"), [f"{how}={last}" for how, last in until.items()]
        command = [*python, str(script), server.url, server.operator_token, str(kept), *asked]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        assert done.returncode == 0, done.stderr[-4000:]
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def take_part(**until: int) -> dict[str, Any]:
        return federation.main(server.url, server.operator_token, kept, until)

    server = AggregatorProcess(data, command=[*python, "-m", "aggregator_service.cli", "serve"])
    try:
        server.start()
        first = take_part_before(masked=2, ckks=2)
        second = take_part(ckks=3)  # its members are upgraded first
        server.stop()
        server = AggregatorProcess(data, port=server.port)
        server.start()
        second |= take_part_before(masked=3)
        third = take_part(masked=4, ckks=4)
    finally:
        server.stop()
    for mechanism in ("masked", "ckks"):
        stages = [played[mechanism] for played in (first, second, third)]
        assert [len(done) for done in stages[0]["rounds"]] >= [2] * 4 and stages[2]["state"] == "complete"
        assert max(map(max, stages[1]["rounds"])) > min(map(max, stages[0]["rounds"]))
        assert all(len(set(stage["models"])) == 1 for stage in stages)  # every member has the same model
        assert len({stage["models"][0] for stage in stages}) == 3


@pytest.mark.parametrize("items", [5, 8_000])
def test_a_round_goes_on_after_an_upgrade_while_it_collects(tmp_path: Path, python: list[str], items: int) -> None:
    """The sum has what the earlier server stored: contributions as rows, or in files, and a part of one."""
    data = tmp_path / "data"
    server = AggregatorProcess(data, command=[*python, "-m", "aggregator_service.cli", "serve"])
    try:
        server.start()
        with closing(Api.of(server)) as api:
            task, (first, second, third, fourth) = api.begin(4, items=items, collect_seconds=600)
            bodies = [member.contribution(1, 2.0**power) for power, member in enumerate((first, second, third, fourth))]
            half = len(bodies[2]) // 2
            checked(first.put(1, bodies[0]), 201)
            checked(second.put(1, bodies[1]), 201)
            checked(third.piece(0, bodies[2][:half]), 204)
        stored = list((data / "blobs" / "contributions").glob("*"))
        assert len(stored) == (2 if items > 5 else 0)
        server.stop()
        server = AggregatorProcess(data, port=server.port)
        server.start()
        with closing(Api.of(server)) as api:
            task.api = api
            checked(first.put(1, bodies[0]), 200)
            checked(third.piece(half, bodies[2][half:], bodies[2]), 201)
            checked(fourth.put(1, bodies[3]), 201)
            assert task.wait_round(1, "complete", "failed")["survivors"] == 4
            total = task.opened(1)
    finally:
        server.stop()
    assert total.max() == 15.0
    assert not list((data / "blobs" / "contributions").glob("*"))
