"""A client's ledger: the server's list of its sums, compared with its own records."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_sdk import AsyncClient, Client, Identity, MemoryStore, Operator, Policy
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Request, Response
from client_sdk.cli import app
from client_sdk.errors import LocalFileError
from client_sdk.rounds.ledger import read_ledger
from client_sdk.store.client_store import ClientStore, OwnContribution
from tests.support.programs import ProgramRunner
from tests.support.server import AggregatorProcess
from tests.support.tasks import SmallTask, interactions, small_task, take_part_together

USERS = 4
POLICY = Policy(mechanisms=frozenset({"plain", "masked"}), masked_modes=frozenset({"curious", "semi-malicious"}))


def play(task: SmallTask, clients: list[Client]) -> None:
    """Let every client take part until the task ends."""
    take_part_together([task.join(one) for one in clients], interactions(len(clients)))


def members(server: AggregatorProcess) -> tuple[list[Client], list[ClientStore]]:
    identities, stores = [Identity.generate() for _ in range(USERS)], [MemoryStore() for _ in range(USERS)]
    both = list(zip(identities, stores, strict=True))
    clients = [Client(server.url, identity, store, POLICY) for identity, store in both]
    return clients, [ClientStore(store, identity.fingerprint, server.url) for identity, store in both]


def test_the_list_agrees_with_the_records_and_a_difference_gives_a_warning(
    server: AggregatorProcess, operator: Operator
) -> None:
    task = small_task(
        operator, "masked", users=USERS, mechanism="masked", mechanism_parameters={"mode": "curious", "dropout": 0.0}
    )
    clients, shelves = members(server)
    play(task, clients)
    found, store = clients[0].ledger(task.name), shelves[0]
    assert found.warnings == ()
    assert [(entry.round, entry.survivors, entry.mechanism) for entry in found.entries] == [
        (1, USERS, "masked"),
        (2, USERS, "masked"),
    ]
    noted = store.contributions(task.task_id)
    assert {number: one.acknowledged for number, one in noted.items()} == {1: True, 2: True}
    assert [entry.contribution_digest for entry in found.entries] == [noted[1].digest, noted[2].digest]
    assert [entry.round for entry in operator.ledger(task.task_id)] == [1, 2]

    async def asynchronous() -> None:
        async with AsyncClient(server.url, clients[0]._account.identity, store.store, POLICY) as client:
            assert await client.ledger(task.name) == found

    asyncio.run(asynchronous())
    store.write(task.task_id, "contributions.json", json.dumps({"1": ["0" * 64, True]}).encode())
    assert clients[0].ledger(task.name).warnings == (
        "round 1: the server counted a contribution other than the one that this device sent",
        "round 2: the server lists a contribution that this device has no record of",
    )
    store.write(task.task_id, "contributions.json", b'{"x": 1}')
    with pytest.raises(LocalFileError, match="damaged"):
        clients[0].ledger(task.name)
    for client in clients:
        client.close()


ROUND = {
    "task_id": "t_1", "number": 7, "step": 7, "state": "complete", "seed": "A" * 43, "cohort": 4, "received": 4,
    "survivors": 4, "folded": 4, "seconds_left": None, "aggregate_bytes": 8, "aggregate_digest": "0" * 64,
    "failure": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "acknowledged", "missed"),
    [("complete", True, True), ("complete", False, False), ("failed", True, False), ("collecting", True, False)],
)
def test_an_omitted_sum_gives_a_warning(state: str, acknowledged: bool, missed: bool) -> None:
    """Only if the server acknowledged the contribution and released the sum."""

    def answer(request: Request) -> Response:
        body = {"entries": [], "more": False} if request.url.endswith("ledger?after=0") else {**ROUND, "state": state}
        return Response(200, {"content-type": "application/json"}, json.dumps(body).encode())

    client_store = ClientStore(MemoryStore(), "me")
    client_store.record_contribution("t_1", 7, OwnContribution("1" * 64, acknowledged))
    found = ProgramRunner(answer).run(
        read_ledger(ApiCalls("https://example.org", "hrc_x"), client_store, "t_1", "movies")
    )
    assert found.entries == ()
    assert found.warnings == (
        ("round 7: the server acknowledged a contribution and released the sum, but does not list it",)
        if missed
        else ()
    )


def test_the_command(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "160")
    key = tmp_path / "me.key"
    task = small_task(operator, "commanded", users=USERS, data_set="ratings")
    clients, _ = members(server)
    clients[0].close()
    clients[0] = Client(server.url, Identity.load_or_create(key), policy=POLICY)
    play(task, clients)
    run = CliRunner()
    shown = run.invoke(app, ["ledger", "--identity", str(key)])
    assert shown.exit_code == 0, shown.output
    assert "commanded" in shown.stdout
    assert "2 sums with your data" in shown.stdout
    assert f" {USERS - 1} " in shown.stdout
    assert "warning" not in shown.stderr
    answer = json.loads(run.invoke(app, ["ledger", "--task", "commanded", "--json", "--identity", str(key)]).stdout)
    assert answer["budget"]["tasks"] == []  # no task with a privacy block
    (found,) = answer["tasks"]
    assert (found["task_name"], found["warnings"]) == ("commanded", [])
    assert [(one["round"], one["others"], one["recipe"], one["data_set"]) for one in found["sums"]] == [
        (1, USERS - 1, "colr", "ratings"),
        (2, USERS - 1, "colr", "ratings"),
    ]
    notes = next((tmp_path / "home").rglob("contributions.json"))
    notes.write_text("{}", encoding="utf-8")
    warned = run.invoke(app, ["ledger", "--identity", str(key)])
    assert warned.stderr.count("warning:") == 2
    for client in clients:
        client.close()
