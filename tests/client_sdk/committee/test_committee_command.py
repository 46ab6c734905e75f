"""`hushrec committee` against a real server: each party is a process, and a member is killed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from client_sdk import Operator
from tests.client_sdk.cli.test_cli_server import cells, certified, devices, ended, make_task
from tests.support.server import running_aggregator

MEMBERS = 3


def test_a_task_with_a_committee_of_three_processes(tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data") as server, ExitStack() as stack:
        operator = stack.enter_context(Operator(server.url, server.operator_token))
        task = make_task(operator, "films", "oneshot", committee=MEMBERS)
        everybody = devices(tmp_path, 2 * MEMBERS)
        clients, members = everybody[:MEMBERS], everybody[MEMBERS:]
        invitation = operator.invite(task.task_id, MEMBERS, "committee").invitation
        for member in members:
            own = certified(member, member.key.with_suffix(".json"), "committee")
            status, out, err = member.run("committee", "join", server.url, "--invitation", invitation, *own)
            assert status == 0, err
            assert "hushrec committee serve --task films" in out
        serving = [member.start("committee", "serve", "--task", "films") for member in members]
        for process in serving:
            stack.callback(process.kill)
        assert (serving[0].stdout is not None) and "serving in the committee" in serving[0].stdout.readline()
        serving[0].kill()  # kill -9 at any moment
        ended(serving[0])
        serving[0] = members[0].start("committee", "serve", "--task", "films")
        stack.callback(serving[0].kill)

        invitation = operator.invite(task.task_id, MEMBERS).invitation
        joined = []
        for client in clients:
            own = certified(client, client.key.with_suffix(".json"))
            arguments = ("--invitation", invitation, *own, "--interactions", str(client.items))
            joined.append(client.start("join", server.url, *arguments))
            stack.callback(joined[-1].kill)
        results, served = [ended(process) for process in joined], [ended(process) for process in serving]

        for status, out, err in results:
            assert status == 0, err
            assert ["rounds completed", "2"] in cells(out)
            assert "the task ended: complete" in out
        for status, out, err in served:
            assert status == 0, err
            assert ["shares of sums sent", "2"] in cells(out)
            assert "round 2: confirmed the set of 3 clients" in out
        assert operator.task(task.task_id).state == "complete"
        kept = [path for path in (members[0].folder / "home").rglob("committee*") if path.is_file()]
        assert {path.name for path in kept} == {"committee.json", "committee_keys.bin"}
        assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}

        status, _, err = clients[0].run("committee", "serve", "--task", "films")
        assert status == 1 and "not in its committee" in err
        status, _, err = members[0].run("join", server.url, "--task", "films", "--interactions", str(clients[0].items))
        assert status == 1 and "hushrec committee serve" in err
