"""Tasks with a privacy block through a real server: noise in every sum, and a budget that clients keep and show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import (
    Client,
    Identity,
    LocalFileError,
    MemoryStore,
    Operator,
    Policy,
    PolicyRefused,
    task_request,
)
from client_sdk.api.http import SyncDriver
from client_sdk.cli.take_part import JoinOptions
from client_sdk.errors import RoundLost
from client_sdk.lab.fleet import Fleet
from client_sdk.rounds.contribution import OwnRound
from client_sdk.store import Store, default_store
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import Spending, total_epsilon
from client_sdk.training.base import LocalResult
from protocols.errors import ParameterError, to_accept
from protocols.messages import Schedule, TaskRequest
from protocols.messages.privacy import Privacy
from protocols.privacy.noise import epsilon_of, skellam_curve
from protocols.recipes.base import Contribution
from protocols.recipes.private import FAILED_SUMS, Private
from protocols.sums.masked import client as stages
from tests.support.pages import cells, hushrec
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRIAL, SmallTask, enrolled_fleet, joined, new_client, take_part_together

USERS, ITEMS, ROUNDS = 5, 30, 3
ROWS = [list(range(user, user + 9)) for user in range(USERS)]
PRIVACY = Privacy(epsilon=6.0, delta=1e-6)
COLR = {"items": ITEMS, "dim": 4, "rank": 2, "item_bias": "counts"}
PRIVIREC = {"items": ITEMS, "components": 3, "iterations": 2, "item_exponent": 0.0}
HOW = {"ckks": {"set": "precise"}, "masked": {"dropout": 0.0}, "oneshot": {}}


def request(name: str, recipe: str, mechanism: str, privacy: Privacy = PRIVACY, rounds: int = ROUNDS) -> TaskRequest:
    schedule = Schedule(rounds=rounds, cohort_size=USERS, min_clients=USERS, start_clients=USERS)
    parameters = COLR if recipe == "colr" else PRIVIREC
    return task_request(
        name, recipe, mechanism, schedule, parameters, HOW[mechanism], organiser=TRIAL.pin, privacy=privacy
    )


def enrolled(server: AggregatorProcess, operator: Operator, wanted: TaskRequest) -> Fleet:
    return enrolled_fleet(server.url, SmallTask.of(operator, wanted, USERS), ROWS)


def test_noisy_sums_make_a_model_and_clients_record_their_cost(server: AggregatorProcess, operator: Operator) -> None:
    with enrolled(server, operator, request("private", "colr", "ckks")) as fleet:
        members, task_id = [client.member for client in fleet.clients], fleet.clients[0].member.task_id
        invitation = operator.invite(task_id).invitation
        with new_client(server.url) as client:
            part = client.join(invitation=invitation, certificate=TRIAL.source("member"))
            assert part.privacy() == operator.privacy(task_id)
        assert {done.state for done in fleet.run()} == {"complete"}
        state = fleet.model()
    assert operator.task(task_id).privacy == PRIVACY
    assert isinstance(members[0].terms.recipe, Private)
    assert state.round_number == ROUNDS
    assert abs(np.log(state.l2_clip)) < 0.21  # two steps of the bound on updates, each by 0.1 at most
    for member in members:
        spending = member.store.spending(member.task_id)
        assert spending.sums == ROUNDS
        assert total_epsilon([spending], PRIVACY.delta, spent_only=True) < total_epsilon([spending], PRIVACY.delta)
        assert PRIVACY.epsilon * 0.99 < total_epsilon([spending], PRIVACY.delta) <= PRIVACY.epsilon


def test_a_client_joins_no_task_that_its_budget_does_not_allow(server: AggregatorProcess, operator: Operator) -> None:
    """Two tasks of epsilon 6 cost more than 8 together, whatever the data set is called."""
    identity, store, policy = Identity.generate(), MemoryStore(), Policy(max_epsilon=8.0)
    tasks = [operator.create_task(request(f"budget-{number}", "colr", "masked")).task_id for number in range(2)]
    first, second = (operator.invite(task_id, uses=2).invitation for task_id in tasks)
    with Client(server.url, identity, store, policy) as client:
        client.join(invitation=first, certificate=TRIAL.source("member"))
        with pytest.raises(PolicyRefused, match=r"may cost this client's data epsilon .* of it for other tasks; .* 8 "):
            client.join(invitation=second, certificate=TRIAL.source("member"))
        with pytest.raises(PolicyRefused) as caught:
            client.preview(second)
        assert caught.value.remedy == to_accept("max_epsilon=...", "--max-epsilon")
    with Client(server.url, identity, store, Policy(max_epsilon=12.0)) as client:
        client.preview(second)


def test_a_task_ends_once_the_sums_that_it_pays_for_are_made(server: AggregatorProcess, operator: Operator) -> None:
    """Five clients are in every sum. A committee keeps publishing keys for one-shot rounds until the end."""
    two = PRIVACY.model_copy(update={"rounds": 2})
    with enrolled(server, operator, request("two-sums", "colr", "oneshot", two)) as fleet:
        assert [done.state for done in fleet.run()] == ["complete", "complete"]
        member = fleet.clients[0].member
        spending = member.store.spending(member.task_id)
    assert spending.sums == 2
    assert np.array_equal(np.maximum(spending.spent, spending.reserved), spending.reserved)
    ended = operator.task(member.task_id)
    assert ended.state == "complete"
    assert f"0 of {USERS} members may contribute once more, and a sum needs {USERS}" in ended.warnings[0]
    assert [view.number for view in operator.rounds(member.task_id)] == [1, 2]
    found = operator.privacy(member.task_id)
    assert (found.most_sums, found.released_sums, found.spent_members) == (2, 2, USERS)
    assert total_epsilon([spending], PRIVACY.delta) == pytest.approx(found.largest_epsilon)


def test_a_round_that_bad_shares_end_costs_its_members_nothing(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours report a client's shares before they train, and send nothing to the round that fails of it.

    In a cohort of 5 everybody is everybody's neighbour.
    """
    users, share, at_fault = 5, stages.share, list[str]()
    schedule = Schedule(rounds=1, cohort_size=users, min_clients=4, start_clients=users, stage_seconds=30)
    wanted = task_request("bad-shares", "privirec", "masked", schedule, {"items": ITEMS, "components": 3},
                          {"dropout": 0.2}, organiser=TRIAL.pin, privacy=PRIVACY)  # fmt: skip
    task = SmallTask.of(operator, wanted, users)

    def garbage(state: stages.Advertised, *rest: Any) -> tuple[stages.Shared, bytes]:
        after, body = share(state, *rest)
        return after, bytes([7]) * len(body) if state.client_id in at_fault else body

    monkeypatch.setattr(stages, "share", garbage)
    with joined(server.url, task, users) as parts:
        at_fault.append(parts[3].membership.client_id)
        take_part_together(parts, [list(range(user, user + 9)) for user in range(users)])
        spent = [part.part.member.store.spending(part.membership.task_id).sums for part in parts]
    assert [view.state for view in operator.rounds(task.task_id)] == ["failed", "complete"]
    assert [sums for place, sums in enumerate(spent) if place != 3] == [1] * (users - 1)


@pytest.mark.parametrize(
    ("recipe", "iterations", "at_fault", "sums"),
    [("privirec", 0, 1, 1), ("privirec-k", 2, 1, 2), ("privirec-k", 2, 2, 2)],
)
def test_bad_shares_in_a_round_or_two_do_not_keep_others_from_the_sums_they_pay_for(
    server: AggregatorProcess,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    iterations: int,
    at_fault: int,
    sums: int,
) -> None:
    """One bad member ends each of the first rounds. The block pays for as many."""
    users, share, bad = 8, stages.share, list[str]()
    schedule = Schedule(rounds=sums, cohort_size=users, min_clients=5, start_clients=users, stage_seconds=30)
    parameters = {"items": ITEMS, "components": 3, "iterations": iterations, "item_exponent": 0.0, "degrees": False}
    privacy = PRIVACY.model_copy(update={"rounds": sums + FAILED_SUMS})
    wanted = task_request(f"bad-shares-{recipe}-{at_fault}", recipe, "masked", schedule, parameters, {"dropout": 0.3},
                          organiser=TRIAL.pin, privacy=privacy)  # fmt: skip
    task = SmallTask.of(operator, wanted, users)

    def garbage(state: stages.Advertised, *rest: Any) -> tuple[stages.Shared, bytes]:
        after, body = share(state, *rest)
        turn = state.context.round_number - 1
        return after, bytes([7]) * len(body) if bad[turn : turn + 1] == [state.client_id] else body

    monkeypatch.setattr(stages, "share", garbage)
    with joined(server.url, task, users) as parts:
        bad += [part.membership.client_id for part in parts[:at_fault]]
        take_part_together(parts, [list(range(user, user + 9)) for user in range(users)])
        spent = [part.part.member.store.spending(part.membership.task_id).sums for part in parts]
    ended = ["failed"] * at_fault + ["complete"] * sums
    assert [view.state for view in operator.rounds(task.task_id)] == ended
    assert all(sums <= one <= sums + at_fault for one in spent[at_fault:])


def test_a_round_that_ended_while_a_client_trained_costs_nothing(server: AggregatorProcess, operator: Operator) -> None:
    with enrolled(server, operator, request("aborted", "colr", "masked")) as fleet, SyncDriver() as driver:
        part, member = fleet.clients[0], fleet.clients[0].member
        own = OwnRound(part, next(operator.watch(member.task_id)), part.history([0]))
        caught_up = driver.run(own.catch_up())
        operator.abort_round(member.task_id, own.view.number)
        with pytest.raises(RoundLost):
            driver.run(own.deliver(b"never sent", caught_up, LocalResult(Contribution([]), {}, 0.0, 0)))
        assert member.store.spending(member.task_id).sums == 0
        assert member.store.contributions(member.task_id) == {}


# --- what such tasks cost an identity's data: `Client.budget` and `hushrec ledger` ------------------------------------


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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data directory, with an identity `me.key` that has the records of two tasks."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    identity = Identity.load_or_create(tmp_path / "me.key")
    keep_two_tasks(default_store(), identity.fingerprint)
    return tmp_path


def ledger(home: Path, *options: str, key: str = "me.key") -> tuple[int, str, str]:
    return hushrec("ledger", *options, "--identity", str(home / key))


def test_the_command_shows_costs_before_a_server_is_asked(home: Path) -> None:
    """This identity has records, but no membership: the list of sums fails, the costs do not."""
    status, out, _ = ledger(home, "--offline")
    rows = cells(out)
    spent, reserved = (f"{epsilon_of(times * CURVE, DELTA):.3g}" for times in (1, 4))
    assert status == 0 and "at delta 1e-06" in out
    assert ["movies", "t_open", "1 of 4", spent, reserved, "open"] in rows
    assert [row[0] for row in rows] == ["books", "movies", "all together"]
    assert f"{epsilon_of(6 * CURVE, DELTA):.3g}" in rows[-1]
    answer = json.loads(ledger(home, "--offline", "--json")[1])
    assert answer["tasks"] == []
    assert [one["task_name"] for one in answer["budget"]["tasks"]] == ["books", "movies"]
    assert answer["budget"]["reserved"] == pytest.approx(epsilon_of(6 * CURVE, DELTA))
    status, out, err = ledger(home)
    assert (status, "all together" in out, "is not a member of any task" in err) == (1, True, True)
    Identity.load_or_create(home / "other.key")
    assert ledger(home, "--offline", key="other.key")[:2] == (0, "no task with a privacy block has been joined\n")


def test_a_damaged_record_is_named(home: Path) -> None:
    (record,) = (path for path in home.rglob("privacy.json") if "t_open" in str(path))
    for damage in (b"", b"{}", b'{"orders": []}', b"\xff"):
        record.write_bytes(damage)
        status, out, err = ledger(home, "--offline")
        assert (status, out) == (1, "")
        assert re.search("the stored privacy budget of task t_open@.* is damaged", err)
    with Client(URL, Identity.load(home / "me.key")) as client, pytest.raises(LocalFileError, match="privacy budget"):
        client.budget()
    with pytest.raises(ParameterError, match="max_epsilon must be above 0"):
        JoinOptions("https://example.org", Path("items.txt"), max_epsilon=0.0).policy()
