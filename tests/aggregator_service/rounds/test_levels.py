"""Rounds of SCoLR against a real server: the levels in use, and dropouts that leave few clients of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.support.api import Api, TestMember, TestTask
from tests.support.masked import MaskedClient, Step, enrol_masked, expire, masked_task, play
from tests.support.server import AggregatorProcess, running_aggregator

COHORT = 24
MIN_CLIENTS = 4
SCOLR = {"recipe_name": "scolr", "recipe_parameters": {"rank": 4}, "dim": 4, "min_clients": MIN_CLIENTS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("aggregator") / "data") as running:
        yield running


def smallest_group(task: TestTask, clients: Mapping[int, MaskedClient] | Mapping[int, TestMember]) -> list[int]:
    """The numbers of the clients of the level that fewest clients have in round 1."""
    groups: dict[int, list[int]] = {}
    for index, client in clients.items():
        groups.setdefault(len(task.recipe.route(task.spec(1), client.client_id)), []).append(index)
    assert len(groups) > 1 and min(map(len, groups.values())) > MIN_CLIENTS
    return min(groups.values(), key=len)


def assert_nothing_was_released(task: TestTask) -> None:
    """Round 1 has failed, and does not count: the task goes on, although one failure would end it."""
    failed = task.wait_round(1, "failed")
    assert (failed["aggregate_digest"], failed["survivors"]) == (None, 0)
    assert "3 clients are left that contribute to the same blocks of the sum, and 4 are needed" in failed["failure"]
    assert task.wait_round(2, "advertising", "collecting")["step"] == 1


@pytest.mark.parametrize("step", ["advertise", "contribute"])
def test_dropouts_that_leave_few_clients_of_a_level(server: AggregatorProcess, api: Api, step: Step) -> None:
    # ten of 24 may go: of the smallest of at least two levels go at most nine
    task = masked_task(api, f"levels-{step}", COHORT, dropout=0.45, max_failed_rounds=1, **SCOLR)
    clients = enrol_masked(task, COHORT)
    play(
        server,
        task,
        clients,
        drop=dict.fromkeys(smallest_group(task, clients)[MIN_CLIENTS - 1 :], step),
        value=lambda _: 1.0,
    )
    assert_nothing_was_released(task)


def test_dropouts_of_a_plain_round(server: AggregatorProcess, api: Api) -> None:
    task = api.create_task("levels-plain", cohort=COHORT, max_failed_rounds=1, collect_seconds=3600, **SCOLR)
    members = dict(enumerate(task.enrol(COHORT)))
    away = smallest_group(task, members)[MIN_CLIENTS - 1 :]
    for index, member in members.items():
        if index not in away:
            assert member.put(1, member.contribution(1, 1.0)).status_code == 201
    expire(server, task, 1)
    assert_nothing_was_released(task)


def test_a_level_that_enough_clients_have_is_released(server: AggregatorProcess, api: Api) -> None:
    task = masked_task(api, "levels-enough", COHORT, **SCOLR)
    clients = enrol_masked(task, COHORT)
    play(
        server,
        task,
        clients,
        drop=dict.fromkeys(smallest_group(task, clients)[MIN_CLIENTS:], "contribute"),
        value=lambda _: 1.0,
    )
    assert task.wait_round(1, "complete", "failed")["state"] == "complete"


def test_a_client_that_was_told_other_levels_is_refused(server: AggregatorProcess, api: Api) -> None:
    """Levels in use are part of what keys, masks and signatures are bound to."""
    task = masked_task(api, "levels-told", COHORT, **SCOLR)
    clients = enrol_masked(task, COHORT)
    told = task.wait_round(1, "advertising")["levels"]
    assert told[0] == 1 and len(told) > 1
    lied_to = clients[0]
    view = lied_to.view
    lied_to.view = lambda number: view(number) | {"levels": [1]}  # type: ignore[method-assign]
    assert lied_to.take(1, "advertise").status_code == 400
    assert clients[1].take(1, "advertise").status_code == 201
