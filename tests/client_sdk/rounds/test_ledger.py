"""A client's ledger: the server's list of its sums, compared with its own records."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from client_sdk import AsyncClient, Client, Identity, MemoryStore, Operator
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Request, Response
from client_sdk.errors import LocalFileError
from client_sdk.rounds.events import Event, RoundMissed
from client_sdk.rounds.ledger import read_ledger
from client_sdk.store.client_store import ClientStore, OwnContribution
from tests.support.pages import hushrec
from tests.support.programs import ProgramRunner
from tests.support.server import AggregatorProcess
from tests.support.tasks import interactions, joined, small_task, take_part_together

USERS = 4


def test_the_list_agrees_with_the_records_and_a_difference_gives_a_warning(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four clients in threads; the first one has its records where the command looks for them."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    key, events = tmp_path / "me.key", list[Event]()
    task = small_task(operator, "masked", users=USERS, mechanism="masked", data_set="ratings")
    with joined(server.url, task, USERS - 1) as others, Client(server.url, Identity.load_or_create(key)) as client:
        parts = [task.join(client), *others]
        played = take_part_together(parts, interactions(USERS), lambda one, items: one.take_part(items, events.append))
        for reports in played:
            assert [(report.round, report.caught_up) for report in reports] == [(1, "nothing"), (2, "snapshot")]
        assert not [event for event in events if isinstance(event, RoundMissed)]
        found, store = client.ledger(task.name), client._account.store
        noted = store.contributions(task.task_id)
        assert found.warnings == ()
        assert [
            (entry.round, entry.survivors, entry.mechanism, entry.contribution_digest) for entry in found.entries
        ] == [(number, USERS, "masked", noted[number].digest) for number in (1, 2)]
        assert all(one.acknowledged for one in noted.values())
        assert [entry.round for entry in operator.ledger(task.task_id)] == [1, 2]

        async def asynchronous() -> None:
            async with AsyncClient(server.url, client._account.identity, store.store) as other:
                assert await other.ledger(task.name) == found

        asyncio.run(asynchronous())
        status, shown, err = hushrec("ledger", "--identity", str(key))
        assert (status, "2 sums with your data" in shown, "warning" in err) == (0, True, False)
        answer = json.loads(hushrec("ledger", "--task", "masked", "--json", "--identity", str(key))[1])
        assert answer["budget"]["tasks"] == []  # no task with a privacy block
        (listed,) = answer["tasks"]
        assert (listed["task_name"], listed["warnings"]) == ("masked", [])
        assert [(one["round"], one["others"], one["recipe"], one["data_set"]) for one in listed["sums"]] == [
            (number, USERS - 1, "colr", "ratings") for number in (1, 2)
        ]
        store.write(task.task_id, "contributions.json", json.dumps({"1": ["0" * 64, True]}).encode())
        assert client.ledger(task.name).warnings == (
            "round 1: the server counted a contribution other than the one that this device sent",
            "round 2: the server lists a contribution that this device has no record of",
        )
        assert hushrec("ledger", "--identity", str(key))[2].count("warning:") == 2
        store.write(task.task_id, "contributions.json", b'{"x": 1}')
        with pytest.raises(LocalFileError, match="damaged"):
            client.ledger(task.name)


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
