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
from pathlib import Path
from typing import Any

from tests.support.needs import UPGRADED_FROM, required
from tests.support.server import AggregatorProcess
from tests.upgrade import federation


def test_tasks_go_on_after_an_upgrade(tmp_path: Path) -> None:
    """First the server is upgraded and then the members, or the other way round; every round is complete."""
    data, kept, before = tmp_path / "data", tmp_path / "members", tmp_path / "before"
    archive = ["git", "archive", UPGRADED_FROM, "protocols", "client_sdk", "aggregator_service"]
    made = subprocess.run(archive, cwd=required("history"), capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as packages:
        packages.extractall(before, filter="data")
    python = ["env", f"PYTHONPATH={before}", sys.executable, "-P"]

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
