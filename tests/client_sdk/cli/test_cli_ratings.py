"""`hushrec join` in a task that learns from ratings; every client is a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from client_sdk import Operator, task_request
from protocols.messages import Schedule
from tests.support.server import AggregatorProcess, running_aggregator


def hushrec(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command for the user whose files are in `folder`."""
    command = [sys.executable, "-m", "client_sdk.cli", *arguments, "--identity", str(folder / "me.key")]
    environment = {**os.environ, "XDG_DATA_HOME": str(folder / "home"), "COLUMNS": "200"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def joined(server: AggregatorProcess, folder: Path, invitation: str, text: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "films.csv").write_text(text, encoding="utf-8")
    accepted = ("--allow-plain", "--min-cohort", "2", "--invitation", invitation)
    return hushrec(folder, "join", server.url, "--interactions", str(folder / "films.csv"), *accepted)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


def test_ratings_are_required_and_checked_against_the_tasks_range(tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data") as server, Operator(server.url, server.operator_token) as operator:
        schedule = Schedule(rounds=1, cohort_size=2, min_clients=2, start_clients=2)
        request = task_request("stars", "rfrec", "plain", schedule, {"items": 20, "dim": 2})
        task_id = operator.create_task(request).task_id
        invitation = operator.invite(task_id, uses=4).invitation
        one, other = tmp_path / "one", tmp_path / "other"
        faulty = {"3\n7\n": "recipe 'rfrec' learns from ratings", "item,rating\n3,5\n7,0\n": "1 .. 5 in this task"}
        processes = [joined(server, one, invitation, text) for text in list(faulty)[:1]]
        processes += [joined(server, other, invitation, text) for text in list(faulty)[1:]]
        for (status, _, err), problem in zip(map(ended, processes), faulty.values(), strict=True):
            assert status == 1
            assert problem in err
            assert "Traceback" not in err
        both = [joined(server, folder, invitation, "item,rating\n3,5\n7,1\n") for folder in (one, other)]
        for status, out, err in map(ended, both):
            assert status == 0, err
            assert "training on 2 items" in out
        assert operator.task(task_id).state == "complete"
        for arguments in (("recommend", "-k", "3"), ("evaluate", "--held-out", "5")):
            status, out, err = ended(hushrec(one, *arguments))
            assert status == 0, err
