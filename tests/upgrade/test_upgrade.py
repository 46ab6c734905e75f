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
from tests.support.needs import MASKED_FROM, UPGRADED_FROM, required
from tests.support.server import AggregatorProcess
from tests.upgrade import federation


def python_of(folder: Path, commit: str) -> list[str]:
    """Return the start of a command that runs Python with the packages of an earlier state, which `folder` keeps."""
    folder.mkdir()
    archive = ["git", "archive", commit, "protocols", "client_sdk", "aggregator_service"]
    made = subprocess.run(archive, cwd=required("history"), capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as packages:
        packages.extractall(folder, filter="data")
    return ["env", f"PYTHONPATH={folder}", sys.executable, "-P"]


@pytest.mark.parametrize(("mechanism", "commit"), [("masked", MASKED_FROM), ("ckks", UPGRADED_FROM)])
def test_a_task_goes_on_after_an_upgrade(tmp_path: Path, mechanism: str, commit: str) -> None:
    """First the server is upgraded and then the members (masked), or the other way round; every round is complete."""
    data, kept, python = tmp_path / "data", tmp_path / "members", python_of(tmp_path / "before", commit)

    def take_part_before(until: int) -> dict[str, Any]:
        """Run the members with the code of the earlier state."""
        script = Path(__file__).with_name("federation.py")
        command = [*python, str(script), server.url, server.operator_token, str(kept), f"{mechanism}={until}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
        assert done.returncode == 0, done.stderr[-4000:]
        return dict(json.loads(done.stdout.splitlines()[-1])[mechanism])

    def take_part(until: int) -> dict[str, Any]:
        return dict(federation.main(server.url, server.operator_token, kept, {mechanism: until})[mechanism])

    server = AggregatorProcess(data, command=[*python, "-m", "aggregator_service.cli", "serve"])
    try:
        server.start()
        stages = [take_part_before(2)]
        if mechanism == "ckks":
            stages.append(take_part(3))
        server.stop()
        server = AggregatorProcess(data, port=server.port)
        server.start()
        if mechanism == "masked":
            stages.append(take_part_before(3))
        stages.append(take_part(4))
    finally:
        server.stop()
    assert [len(done) for done in stages[0]["rounds"]] >= [2] * 4 and stages[2]["state"] == "complete"
    assert max(map(max, stages[1]["rounds"])) > min(map(max, stages[0]["rounds"]))
    assert all(len(set(stage["models"])) == 1 for stage in stages)  # every member has the same model
    assert len({stage["models"][0] for stage in stages}) == 3


@pytest.mark.parametrize("items", [5, 8_000])
def test_a_round_goes_on_after_an_upgrade_while_it_collects(tmp_path: Path, items: int) -> None:
    """The sum has what the earlier server stored: contributions as rows, or in files, and a part of one."""
    data, python = tmp_path / "data", python_of(tmp_path / "before", UPGRADED_FROM)
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
