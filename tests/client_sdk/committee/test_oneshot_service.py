"""A committee of the SDK at a real server: of a fleet, over asyncio, and with a member that is a process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from client_sdk import AsyncClient, Identity, MemoryStore, Operator
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from protocols.errors import ParameterError
from protocols.messages import CertificateRequest
from tests.support.pages import cells, hushrec
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRIAL, interactions, joined, new_client, small_task, take_part_together


def test_a_committee_needs_an_enrolled_fleet_and_a_task_with_one(server: AggregatorProcess, operator: Operator) -> None:
    task = small_task(operator, "no-committee", users=3)
    with Fleet(server.url, interactions(3), FleetOptions()) as fleet:
        with pytest.raises(ParameterError, match="call enrol"):
            fleet.enrol_committee("hri_none")
        fleet.enrol(task.invitation)
        with pytest.raises(ParameterError, match="plain have no committee"):
            fleet.enrol_committee("hri_none")


def test_members_of_the_committee_serve(server: AggregatorProcess, operator: Operator) -> None:
    task = small_task(operator, "loops", users=3, mechanism="oneshot")
    invitation = operator.invite(task.task_id, 2, "committee").invitation
    certificate = TRIAL.source("committee")
    with new_client(server.url) as client:
        member = client.join(invitation=invitation, certificate=certificate)
        member.serve(stop=lambda: True)

    async def serve() -> None:
        async with AsyncClient(server.url, Identity.generate(), MemoryStore()) as client:
            part = await client.join(invitation=invitation, certificate=certificate)
            await part.serve(stop=lambda: True)
            with pytest.raises(ParameterError, match="committee serve"):
                await part.take_part([1, 2, 3])

    asyncio.run(serve())
    assert "2 of 5" in (operator.task(task.task_id).waiting_for or "")


MEMBERS = 3


class Device:
    """A user's machine: a folder with a data directory, an identity and an interactions file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.key, self.items = folder, folder / "me.key", folder / "items.txt"
        self.items.write_text("1\n2\n3\n", encoding="utf-8")
        self.environment = {"XDG_DATA_HOME": str(folder / "home"), "COLUMNS": "200"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `hushrec ARGUMENTS` in a process."""
        command = [sys.executable, "-m", "client_sdk.cli", *arguments, "--identity", str(self.key)]
        environment, pipe = {**os.environ, **self.environment}, subprocess.PIPE
        return subprocess.Popen(command, env=environment, cwd=self.folder, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run `hushrec ARGUMENTS` in this process; return exit code, standard output and standard error."""
        return hushrec(*arguments, "--identity", str(self.key), **self.environment)


def test_a_member_of_the_committee_is_a_process_that_is_killed(
    server: AggregatorProcess, operator: Operator, tmp_path: Path
) -> None:
    """The other members and the clients are threads."""
    task = small_task(
        operator, "films", users=MEMBERS, mechanism="oneshot", mechanism_parameters={"committee": MEMBERS}
    )
    contributor, member = Device(tmp_path / "contributor"), Device(tmp_path / "member")
    invitation = operator.invite(task.task_id, MEMBERS, "committee").invitation
    status, asked, err = member.run("certificate", "request", "--scope", TRIAL.scope, "--role", "committee")
    assert status == 0, err
    own = tmp_path / "certificate.json"
    own.write_text(TRIAL.issue(CertificateRequest.model_validate_json(asked), "committee").model_dump_json())
    arguments = ("--invitation", invitation, "--certificate", str(own))
    status, out, err = member.run("committee", "join", server.url, *arguments)
    assert status == 0, err
    assert "hushrec committee serve --task films" in out
    with ExitStack() as stack:
        serving = member.start("committee", "serve", "--task", "films")
        stack.callback(serving.kill)
        assert (serving.stdout is not None) and "serving in the committee" in serving.stdout.readline()
        serving.kill()  # kill -9 at any moment
        serving.communicate()
        serving = member.start("committee", "serve", "--task", "films")
        stack.callback(serving.kill)
        pool = stack.enter_context(ThreadPoolExecutor(MEMBERS))
        for _ in range(1, MEMBERS):
            other = stack.enter_context(new_client(server.url))
            pool.submit(other.join(invitation=invitation, certificate=TRIAL.source("committee")).serve)
        parts = stack.enter_context(joined(server.url, task, MEMBERS))
        reports = take_part_together(parts, interactions(MEMBERS))
        assert [[report.round for report in mine] for mine in reports] == [[1, 2]] * MEMBERS
        out, err = serving.communicate(timeout=90)
    assert serving.returncode == 0, err
    assert ["shares of sums sent", "2"] in cells(out)
    assert "round 2: confirmed the set of 3 clients" in out
    assert operator.task(task.task_id).state == "complete"
    kept = [path for path in (member.folder / "home").rglob("committee*") if path.is_file()]
    assert {path.name for path in kept} == {"committee.json", "committee.sum-1.json", "committee_keys.bin"}
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    status, _, err = contributor.run("committee", "serve", "--task", "films")
    assert status == 1 and "does not exist" in err
    items = str(contributor.items)
    status, _, err = member.run("join", server.url, "--task", "films", "--interactions", items)
    assert status == 1 and "hushrec committee serve" in err
