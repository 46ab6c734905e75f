"""Apps speak of items by their own ids: in what a client takes part with, and in what it is recommended."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from client_sdk import AsyncClient, Catalogue, Client, LocalFileError, Operator, ParameterError, Policy, Waiting
from client_sdk.operator import task_request
from protocols.messages import Schedule, TaskView
from tests.support.server import AggregatorProcess

PLAIN = Policy(mechanisms=frozenset({"plain"}))
SHOP = Catalogue(tuple(f"SKU-{number:02}" for number in range(30)), tuple(f"Thing {number}" for number in range(30)))
CHOSEN = [["SKU-01", "SKU-02", "SKU-05"], {"SKU-02", "SKU-05", "SKU-07"}, ("SKU-05", "SKU-11", "SKU-01")]


@pytest.fixture
def task(operator: Operator, request: pytest.FixtureRequest) -> TaskView:
    made = task_request(
        request.node.name, "fedmf", "plain", Schedule(rounds=2, cohort_size=3, min_clients=3), {"items": 30, "dim": 4},
        catalogue=SHOP,
    )  # fmt: skip
    return operator.create_task(made, SHOP)


def test_ids_go_in_and_come_out(server: AggregatorProcess, operator: Operator, task: TaskView, tmp_path: Path) -> None:
    invitation = operator.invite(task.task_id, 4).invitation
    homes = [tmp_path / f"app-{index}" for index in range(3)]

    async def one(index: int) -> int:
        async with AsyncClient(server.url, policy=PLAIN, home=homes[index]) as client:
            joined = await client.join(invitation=invitation)
            return len(await joined.take_part(CHOSEN[index]))

    async def everyone() -> list[int]:
        return await asyncio.gather(*map(one, range(3)))

    assert asyncio.run(everyone()) == [2, 2, 2]
    with Client(server.url, policy=PLAIN, home=homes[0]) as client:  # the home has identity, membership and model
        again = client.join(task.task_id)
        found = again.recommend(5, CHOSEN[0])
        assert again.catalogue() == SHOP
        assert [item for item, _ in found] == list(found.ids or ()) and not set(found.ids or ()) & set(CHOSEN[0])
        assert found.titles == tuple(f"Thing {int(item[4:])}" for item in found.ids or ())
        assert found.items.tolist() == [SHOP.number_of(item) for item in found.ids or ()]
        with pytest.raises(ParameterError, match="SKU-99"):
            again.recommend(5, ["SKU-99"])


def test_a_catalogue_that_is_not_there_yet_is_waited_for(
    server: AggregatorProcess, operator: Operator, tmp_path: Path
) -> None:
    request = task_request("late", "fedmf", "plain", Schedule(), {"items": 30, "dim": 4}, catalogue=SHOP)
    created = operator._driver.run(operator._calls.create_task(request))
    events: list[object] = []

    def stop() -> bool:
        return len(events) > 0

    with Client(server.url, policy=PLAIN, home=tmp_path / "app") as client:
        joined = client.join(invitation=operator.invite(created.task_id).invitation)
        assert joined.take_part(["SKU-01"], events.append, stop) == []
        assert events == [Waiting("the item catalogue, which the task's operator uploads")]
        operator.put_catalogue(created.task_id, SHOP)
        assert joined.catalogue() == SHOP


def test_the_command_takes_and_shows_ids(
    server: AggregatorProcess, operator: Operator, task: TaskView, tmp_path: Path
) -> None:
    invitation = operator.invite(task.task_id, 3).invitation
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HUSHREC_")}
    started = []
    for index, items in enumerate(CHOSEN):
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / "items.csv").write_text("item\n" + "\n".join(sorted(items)) + "\n")
        command = [sys.executable, "-m", "client_sdk.cli", "join", server.url, "--invitation", invitation]
        command += ["--interactions", str(folder / "items.csv"), "--allow-plain"]
        home = {**environment, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
        started.append(subprocess.Popen(command, env=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for process in started:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err
    home = {**environment, "HOME": str(tmp_path / "0"), "XDG_DATA_HOME": str(tmp_path / "0")}
    command = [sys.executable, "-m", "client_sdk.cli", "recommend", "-k", "3"]
    shown = subprocess.run(command, env=home, capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown.count("SKU-") == 3 and shown.count("Thing ") == 3


def test_one_home_takes_part_once_at_a_time(
    server: AggregatorProcess, operator: Operator, task: TaskView, tmp_path: Path
) -> None:
    invitation = operator.invite(task.task_id).invitation
    with Client(server.url, policy=PLAIN, home=tmp_path) as client, Client(server.url, home=tmp_path) as other:
        joined = client.join(invitation=invitation)
        with other._account.store.locked(task.task_id), pytest.raises(LocalFileError, match="another process"):
            joined.take_part(CHOSEN[0])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "a client needs an identity, got none: pass home='FOLDER'"),
        ({"identity": "me.key"}, "needs an identity, got a str"),
        ({"store": "folder", "home": "x"}, "leave out identity= and store="),
    ],
)
def test_what_a_client_is_made_of(arguments: dict[str, str], text: str) -> None:
    with pytest.raises(ParameterError, match=text):
        Client("https://recs.example.org", **arguments)  # type: ignore[arg-type]
