"""What tasks with a privacy block cost an identity's data: `Client.budget`, and the command `hushrec ledger`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_sdk import AsyncClient, Client, Identity, LocalFileError, MemoryStore, Policy
from client_sdk.cli import app
from client_sdk.cli.member import JoinOptions
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import Spending
from client_sdk.store.stores import Store, default_store
from protocols.errors import ParameterError
from protocols.privacy.renyi import epsilon_of, skellam_curve

URL = "https://example.org"
CURVE = skellam_curve((100.0, 10.0), 900.0)
"""Of one sum: counts of up to 100 items, noise of three times their L2 norm."""
DELTA = Policy.budget_delta


def keep_two_tasks(store: Store, owner: str) -> None:
    """Records of two tasks on two servers: one goes on, one has ended before all its sums."""
    here, there = (ClientStore(store, owner, url) for url in (URL, "https://example.net"))
    here.keep_spending("t_open", Spending("movies", 4, 4 * CURVE).with_sum(CURVE))
    there.keep_spending("t_over", Spending("books", 9, 9 * CURVE, 2, 2 * CURVE, over=True))


def test_a_client_says_what_its_tasks_cost_on_all_servers() -> None:
    identity, store, policy = Identity.generate(), MemoryStore(), Policy(max_epsilon=7.0)
    with Client(URL, identity, store, policy) as client:
        empty = client.budget()
        assert (empty.tasks, empty.spent, empty.reserved) == ((), 0.0, 0.0)
        keep_two_tasks(store, identity.fingerprint)
        found = client.budget()
    books, movies = found.tasks
    assert (movies.task_id, movies.task_name, movies.sums, movies.most_sums) == ("t_open", "movies", 1, 4)
    assert (movies.spent, movies.reserved) == (epsilon_of(CURVE, DELTA), epsilon_of(4 * CURVE, DELTA))
    assert (books.sums, books.most_sums, books.ended, movies.ended) == (2, 9, True, False)
    assert books.spent == books.reserved == epsilon_of(2 * CURVE, DELTA), "what was not spent is free"
    assert found.spent == pytest.approx(epsilon_of(3 * CURVE, DELTA))
    assert found.reserved == pytest.approx(epsilon_of(6 * CURVE, DELTA))
    assert found.reserved < movies.reserved + books.reserved
    assert (found.max_epsilon, found.delta) == (7.0, DELTA)

    async def over_asyncio() -> None:
        async with AsyncClient(URL, identity, store, policy) as client:
            assert client.budget() == found

    asyncio.run(over_asyncio())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data directory, with an identity `me.key` that has the records of two tasks."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    identity = Identity.load_or_create(tmp_path / "me.key")
    keep_two_tasks(default_store(), identity.fingerprint)
    return tmp_path


def test_the_command_shows_costs_without_a_server(home: Path) -> None:
    run, key = CliRunner(), str(home / "me.key")
    shown = run.invoke(app, ["ledger", "--offline", "--identity", key])
    assert shown.exit_code == 0, shown.output
    cells = [
        [cell.strip() for cell in line.strip("│ ").split("│")] for line in shown.stdout.splitlines() if "│" in line
    ]
    spent, reserved = (f"{epsilon_of(times * CURVE, DELTA):.3g}" for times in (1, 4))
    assert ["movies", "t_open", "1 of 4", spent, reserved, "open"] in cells
    assert [row[0] for row in cells] == ["books", "movies", "all together"]
    assert f"{epsilon_of(6 * CURVE, DELTA):.3g}" in cells[-1]
    assert "at delta 1e-06" in shown.stdout
    assert "exceed 10, or --max-epsilon" in shown.stdout
    answer = json.loads(run.invoke(app, ["ledger", "--offline", "--json", "--identity", key]).stdout)
    assert answer["tasks"] == []
    assert [one["task_name"] for one in answer["budget"]["tasks"]] == ["books", "movies"]
    assert answer["budget"]["reserved"] == pytest.approx(epsilon_of(6 * CURVE, DELTA))


def test_costs_are_shown_before_a_server_is_asked(home: Path) -> None:
    """This identity has records, but no membership: the list of sums fails, the costs do not."""
    shown = CliRunner().invoke(app, ["ledger", "--identity", str(home / "me.key")])
    assert shown.exit_code == 1
    assert "all together" in shown.stdout
    assert "is not a member of any task" in shown.stderr


def test_without_a_task_with_a_privacy_block_there_is_nothing_to_show(home: Path) -> None:
    other = home / "other.key"
    Identity.load_or_create(other)
    shown = CliRunner().invoke(app, ["ledger", "--offline", "--identity", str(other)])
    assert (shown.exit_code, shown.stdout) == (0, "no task with a privacy block has been joined\n")


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"orders": []}', b"\xff"])
def test_a_damaged_record_is_named(home: Path, damage: bytes) -> None:
    (record,) = (path for path in home.rglob("privacy.json") if "t_open" in str(path))
    record.write_bytes(damage)
    shown = CliRunner().invoke(app, ["ledger", "--offline", "--identity", str(home / "me.key")])
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert "the stored privacy budget of task t_open@" in shown.stderr
    assert "is damaged" in shown.stderr
    identity = Identity.load(home / "me.key")
    with Client(URL, identity) as client, pytest.raises(LocalFileError, match="privacy budget of task t_open@"):
        client.budget()


def test_max_epsilon_is_part_of_the_policy_of_join() -> None:
    assert JoinOptions("https://example.org", Path("items.txt")).policy().max_epsilon == 10.0
    assert JoinOptions("https://example.org", Path("items.txt"), max_epsilon=3.5).policy().max_epsilon == 3.5
    with pytest.raises(ParameterError, match="max_epsilon must be above 0"):
        JoinOptions("https://example.org", Path("items.txt"), max_epsilon=0.0).policy()
