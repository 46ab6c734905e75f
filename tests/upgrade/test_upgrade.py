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

import pytest

from tests.support.needs import UPGRADED_FROM, required
from tests.support.server import AggregatorProcess

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the earlier state."""
    archive = ["git", "archive", UPGRADED_FROM, "protocols", "client_sdk", "aggregator_service"]
    made = subprocess.run(archive, cwd=required("history"), capture_output=True, check=True)
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as packages:
        packages.extractall(folder, filter="data")
    return folder


def python(packages: Path) -> list[str]:
    """The command of a Python whose packages are those of `packages`."""
    return ["env", f"PYTHONPATH={packages}", sys.executable, "-P"]


def take_part(packages: Path, server: AggregatorProcess, kept: Path, mechanism: str, until: int) -> dict[str, Any]:
    """Run the members with the code of `packages`; see federation.py."""
    script = str(Path(__file__).parent / "federation.py")
    given = [script, server.url, server.operator_token, str(kept), mechanism, str(until)]
    done = subprocess.run([*python(packages), *given], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(("mechanism", "members_first"), [("masked", False), ("ckks", True)])
def test_a_task_goes_on_after_an_upgrade(before: Path, tmp_path: Path, mechanism: str, members_first: bool) -> None:
    """First the server is upgraded and then the members, or the other way round; every round is complete."""
    data, kept = tmp_path / "data", tmp_path / "members"
    old = [*python(before), "-m", "aggregator_service.cli", "serve"]
    server = AggregatorProcess(data, command=old)
    try:
        server.start()
        first = take_part(before, server, kept, mechanism, 2)
        if members_first:
            second = take_part(ROOT, server, kept, mechanism, 3)
        server.stop()
        server = AggregatorProcess(data, port=server.port)
        server.start()
        if not members_first:
            second = take_part(before, server, kept, mechanism, 3)
        third = take_part(ROOT, server, kept, mechanism, 4)
    finally:
        server.stop()
    assert [len(done) for done in first["rounds"]] >= [2] * 4 and third["state"] == "complete"
    assert max(map(max, second["rounds"])) > min(map(max, first["rounds"]))
    for stage in (first, second, third):
        assert len(set(stage["models"])) == 1  # every member has the same model
    assert len({stage["models"][0] for stage in (first, second, third)}) == 3
