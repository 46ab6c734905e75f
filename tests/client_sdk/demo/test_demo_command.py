"""`hushrec demo`: errors before anything starts, signals that stop the server too, and the report."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_sdk.cli import app
from client_sdk.cli.demo import _delete_older_runs
from client_sdk.demo.report import render_report
from client_sdk.demo.results import ArmResult, CurvePoint, DemoResult
from client_sdk.demo.server import is_in_use, run_server


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset", "nope"], "unknown data set 'nope'; the demo has ml-100k, ml-1m, synthetic"),
        (["--dataset", "ml-100k", "--data-dir", "nowhere"], "ml-100k not found"),
        (["--recipe", "fedmf"], "the demo runs colr or scolr"),
        (["--rank", "20"], "rank 20 is greater than the dimension 16"),
        (["--cohort", "4000"], "greater than the 400 users"),
    ],
)
def test_invalid_options_fail_before_anything_is_written(tmp_path: Path, arguments: list[str], words: str) -> None:
    output = tmp_path / "out"
    done = CliRunner().invoke(app, ["demo", "--output", str(output), *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert words in done.stderr
    assert done.stdout == ""
    assert not output.exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_stops_the_demo_and_its_server(tmp_path: Path, number: signal.Signals, status: int) -> None:
    command = [sys.executable, "-c", "from client_sdk.cli import main; main()", "demo", "--output", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
    ) as demo:
        try:
            assert demo.stdout is not None
            line = next(line for line in demo.stdout if "Aggregator at" in line)
            port = int(line.partition(",")[0].rpartition(":")[2])
            time.sleep(1)  # so that the demo is running
            demo.send_signal(number)
            _, errors = demo.communicate(timeout=60)
        finally:
            demo.kill()
    assert demo.returncode == status
    assert "Traceback" not in errors
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_report_shows_the_sum_plan() -> None:
    arm = ArmResult("CoLR-4 encrypted", 0.5, 0.3, 2048.0, 4096.0, 1.0, curve=(CurvePoint(1, 0.5, 0.3, 1.0),))
    plan: dict[str, object] = {
        "ring_degree": 4096,
        "flooding_distance": None,
        "segment_errors": {"items/update": 1e-7 / 3},
    }
    page = render_report(DemoResult("synthetic", 4, 5, 6, 1, 3, "colr", plan, [arm], "by hand", {}))
    assert "<td>ring degree</td><td>4096</td>" in page
    assert "<td>segment errors items/update</td><td>3.333e-08</td>" in page
    assert "None" not in page
    assert page.count('role="img"') == 4
    assert "#64748b" not in page.partition("<svg")[2].replace("--dim: #64748b", "")


def test_data_of_a_running_demo_is_not_deleted(tmp_path: Path) -> None:
    finished, mine = tmp_path / "server-finished", tmp_path / "server-mine"
    finished.mkdir()
    mine.mkdir()
    with run_server(tmp_path / "server-running") as running:
        assert is_in_use(running.data_dir)
        _delete_older_runs(tmp_path, mine)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["server-mine", "server-running"]
    assert not is_in_use(tmp_path / "server-running")
    _delete_older_runs(tmp_path, mine)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server-mine"]
