"""The commands against a real server process; every client is a separate process, as on a device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from client_sdk import Operator, Policy, task_request
from client_sdk.organiser import TrialOrganiser
from protocols.crypto.certificates import CertifiedRole
from protocols.messages import CertificateRequest, Schedule, TaskView
from tests.support.command import cells, hushrec
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRIAL, new_client

ITEMS = 130  # enough to draw 99 negatives from
SECONDS = 90


class Device:
    """A user's machine: a folder with a data directory, an identity and an interactions file."""

    def __init__(self, folder: Path, items: list[int]) -> None:
        folder.mkdir()
        self.folder = folder
        self.items = folder / "items.txt"
        self.items.write_text("".join(f"{item}\n" for item in items), encoding="utf-8")
        self.key = folder / "me.key"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HUSHREC_")}
        self.environment = {**kept, "XDG_DATA_HOME": str(folder / "home"), "COLUMNS": "200"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `hushrec ARGUMENTS` in a process."""
        command = [sys.executable, "-m", "client_sdk.cli", *arguments, "--identity", str(self.key)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run `hushrec ARGUMENTS` in this process; return exit code, standard output and standard error."""
        return hushrec(*arguments, "--identity", str(self.key), **self.environment)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


def make_task(
    operator: Operator, name: str, mechanism: str, rounds: int = 2, cohort: int = 3, **parameters_of_sum: int
) -> TaskView:
    schedule = Schedule(rounds=rounds, cohort_size=cohort, min_clients=cohort, collect_seconds=60)
    parameters = {"items": ITEMS, "dim": 8, "rank": 2, "clip": 1.0}
    organiser = None if mechanism == "plain" else TRIAL.pin
    request = task_request(name, "colr", mechanism, schedule, parameters, parameters_of_sum, organiser=organiser)
    return operator.create_task(request)


def certified(
    device: Device, path: Path, role: CertifiedRole = "member", organiser: TrialOrganiser = TRIAL
) -> tuple[str, str]:
    """The option with a certificate for the device, in a file, asked for as a user asks for it."""
    status, asked, err = device.run("certificate", "request", "--scope", organiser.scope, "--role", role)
    assert status == 0, err
    path.write_text(organiser.issue(CertificateRequest.model_validate_json(asked), role).model_dump_json())
    return "--certificate", str(path)


def devices(tmp_path: Path, count: int) -> list[Device]:
    return [Device(tmp_path / f"user{user}", list(range(10 * user, 10 * user + 8))) for user in range(count)]


def test_encrypted_task_from_certificates_to_recommendations(
    operator: Operator, server: AggregatorProcess, tmp_path: Path
) -> None:
    task = make_task(operator, "films", "ckks")
    holder, *members = devices(tmp_path, 3)
    for_holder = operator.invite(task.task_id, role="holder").invitation
    for_members = operator.invite(task.task_id, uses=2).invitation
    arguments = ("--invitation", for_holder, *certified(holder, tmp_path / "holder.json", "holder"))
    status, out, err = holder.run("keyring", "create", server.url, *arguments)
    assert status == 0, err
    assert holder.key.stat().st_mode & 0o777 == 0o600
    status, fingerprint, _ = holder.run("keyring", "fingerprint", "--task", "films")
    assert status == 0
    assert fingerprint.strip() in out

    with ExitStack() as stack:
        serving = holder.start("keyring", "serve", "--task", "films")
        stack.callback(serving.kill)
        joined = [holder.start("join", server.url, "--task", "films", "--interactions", str(holder.items))]
        for member in members:
            own = certified(member, member.key.with_suffix(".json"))
            arguments = ("--invitation", for_members, *own, "--interactions", str(member.items))
            joined.append(member.start("join", server.url, *arguments))
        for process in joined:
            stack.callback(process.kill)
        results = [ended(process) for process in joined]
        served = ended(serving)

    for status, out, err in results:
        assert status == 0, err
        assert ["rounds completed", "2"] in cells(out)
        assert ["rounds missed", "0"] in cells(out)
        assert "sums can be opened by its members" in out
        assert "the task ended: complete" in out
    assert served[0] == 0, served[2]
    assert ["members given keys", "2"] in cells(served[1])
    assert members[0].run("keyring", "fingerprint")[1] == fingerprint
    assert operator.task(task.task_id).state == "complete"
    status, _, err = members[0].run("keyring", "serve", "--task", "films")
    assert status == 1
    assert "not its key holder" in err
    _check_recommendations(members[0])


def _check_recommendations(member: Device) -> None:
    titles = member.folder / "titles.csv"
    titles.write_text("item,title\n" + "".join(f"{item},Film [{item}]\n" for item in range(ITEMS)), encoding="utf-8")
    status, out, err = member.run("recommend", "--task", "films", "-k", "5", "--titles", str(titles))
    assert status == 0, err
    rows = cells(out)
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert all(row[2] == f"Film [{row[1]}]" for row in rows)
    assert not {int(row[1]) for row in rows} & set(range(10, 18))
    scores = [float(row[3]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    status, offline, err = member.run("recommend", "-k", "5", "--titles", str(titles), "--offline")
    assert (status, offline) == (0, out)
    assert "is used: no update was asked for" in err
    assert member.run("recommend", "-k", "0")[0] == 1
    status, out, err = member.run("evaluate", "--held-out", "18", "--held-out", "19", "-k", "200")
    assert status == 0, err
    rows = cells(out)
    assert [row[1:4] for row in rows] == [["full ranking", "2", "1.0000"], ["99 sampled negatives", "2", "1.0000"]]
    status, _, err = member.run("evaluate", "--held-out", "12")
    assert (status, "held-out item 12 is in the interactions file" in err) == (1, True)
    assert member.run("evaluate", "--held-out", str(ITEMS))[0] == 1


def test_refusals_say_why_and_name_the_option(operator: Operator, server: AggregatorProcess, tmp_path: Path) -> None:
    (member,) = devices(tmp_path, 1)
    join = ("join", server.url, "--interactions", str(member.items), "--invitation")

    def refused(*arguments: str) -> str:
        status, _, err = member.run(*join, *arguments)
        assert status == 1
        return err

    err = refused("hri_" + "x" * 43)
    assert "the invitation is unknown" in err
    assert "Check that the invitation is copied in full" in err
    task = make_task(operator, "closed-circle", "plain")
    invitation = operator.invite(task.task_id).invitation
    assert "change it with --allow-plain, or Policy(mechanisms=...)" in refused(invitation)
    err = refused(invitation, "--allow-plain", "--max-model-bytes", "100")
    assert "this client's policy allows 100 (change it with --max-model-bytes" in err
    pair = operator.invite(make_task(operator, "pair", "plain", cohort=2).task_id).invitation
    assert "releases sums of 2 clients" in refused(pair, "--allow-plain")
    rated = task_request("stars", "rfrec", "plain", Schedule(cohort_size=3), {"items": 20, "dim": 2})
    stars = operator.invite(operator.create_task(rated).task_id, uses=2).invitation
    for text, fault in (("3\n7\n", "learns from ratings"), ("item,rating\n3,5\n7,0\n", "1 .. 5 in this task")):
        member.items.write_text(text, encoding="utf-8")
        assert fault in refused(stars, "--allow-plain", "--task", "stars")
    with new_client(server.url, Policy(mechanisms=frozenset({"plain"}))) as client:
        client.join("closed-circle", invitation=invitation)
    err = refused(invitation, "--allow-plain")
    assert "used up" in err
    assert "hushrec-server invite TASK" in err


def test_encrypted_task_needs_a_certificate(operator: Operator, server: AggregatorProcess, tmp_path: Path) -> None:
    task = make_task(operator, "no-certificate", "ckks")
    (member,) = devices(tmp_path, 1)
    stranger, garbage = Device(tmp_path / "stranger", [1, 2]), tmp_path / "garbage.json"
    garbage.write_text("{}")
    invitation = operator.invite(task.task_id).invitation
    refusals: dict[tuple[str, ...], tuple[str, ...]] = {
        (): (
            "needs a membership certificate from its organiser",
            "--issuer with --scope and --code, or --certificate",
        ),
        ("--certificate", str(tmp_path / "missing.json")): ("cannot read the membership certificate",),
        ("--certificate", str(garbage)): ("holds no membership certificate",),
        ("--issuer", "https://login.example.org"): ("--issuer needs --scope and --code",),
        certified(member, tmp_path / "wrong.json", organiser=TrialOrganiser("tests")): ("not signed by the organiser",),
        certified(stranger, tmp_path / "foreign.json"): (
            "not signed by the organiser",
            "Ask the task's organiser for a certificate for this identity",
        ),
    }
    for options, faults in refusals.items():
        arguments = ("join", server.url, "--invitation", invitation, "--interactions", str(member.items))
        status, _, err = member.run(*arguments, *options)
        assert status == 1
        for fault in faults:
            assert fault in err
    assert member.run("keyring", "fingerprint")[0] == 1


def test_doctor_finds_the_server_and_ctrl_c_stops_a_waiting_client(
    operator: Operator, server: AggregatorProcess, tmp_path: Path
) -> None:
    code, out, err = hushrec("doctor", "--url", server.url, COLUMNS="200")
    assert (code, f"{server.url} is ready" in out) == (0, True), err
    task = make_task(operator, "patience", "plain")
    (member,) = devices(tmp_path, 1)
    invitation = operator.invite(task.task_id).invitation
    waiting = member.start(
        "join", server.url, "--invitation", invitation, "--interactions", str(member.items), "--allow-plain"
    )
    assert waiting.stdout is not None
    assert "task patience" in waiting.stdout.readline()  # joined
    waiting.send_signal(signal.SIGINT)
    status, out, err = ended(waiting)
    assert status == 130
    assert ["rounds completed", "0"] in cells(out)
    assert err.endswith("stopped\n")
    assert "Traceback" not in err
