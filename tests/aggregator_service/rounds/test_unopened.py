"""Masked sums with fixed survivors that were not opened: of whom they are asked again, and what comes then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import monotonic, sleep
from typing import Any

import pytest

from tests.aggregator_service.rounds.test_disputes import Dealer, faulty
from tests.support.api import Api, TestTask
from tests.support.masked import MaskedClient, Step, enrol_masked, expire, masked_task, play
from tests.support.server import AggregatorProcess, running_aggregator

COHORT = 9
VANISHING: Mapping[int, Step] = dict.fromkeys(range(6), "unmask")
"""Too many of 9 for the shares of anybody's secret."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("unopened") / "data") as running:
        yield running


def state_of(task: TestTask) -> dict[str, Any]:
    return dict(task.api.http.get(task.path, headers=task.api.operator).json())


def wait_state(task: TestTask, state: str) -> dict[str, Any]:
    """Return the task once it is over."""
    ends = monotonic() + 60.0
    while (view := state_of(task))["state"] == "open" and monotonic() < ends:
        sleep(0.05)
    assert view["state"] == state, view
    return view


def asked(task: TestTask, number: int) -> set[str]:
    answer = task.api.http.get(f"{task.path}/rounds/{number}/cohort", headers=task.api.operator)
    return set(answer.json()["clients"])


def in_cohort(task: TestTask, clients: Mapping[int, MaskedClient], number: int) -> dict[int, MaskedClient]:
    ids = asked(task, number)
    return dict(enumerate(one for one in clients.values() if one.client_id in ids))


@pytest.mark.parametrize("mode", ["semi-malicious", "curious"])
def test_it_is_asked_again_of_its_survivors_though_there_are_others(
    server: AggregatorProcess, api: Api, mode: str
) -> None:
    task = masked_task(api, f"again-{mode}", COHORT, mode, max_failed_rounds=1, rounds=3)
    clients = enrol_masked(task, 2 * COHORT)
    first = in_cohort(task, clients, task.wait_round(1, "advertising")["number"])
    play(server, task, first, 1, drop={8: "contribute"} | VANISHING)
    task.wait_round(1, "failed")
    again = task.wait_round(2, "advertising")
    assert (again["step"], asked(task, 2)) == (1, {first[index].client_id for index in range(COHORT - 1)})
    play(server, task, in_cohort(task, clients, 2), 2)
    assert task.wait_round(2, "complete", "failed")["survivors"] == COHORT - 1
    assert task.wait_round(3, "advertising")["step"] == 2
    assert (state_of(task)["state"], state_of(task)["abandoned_sums"]) == ("open", 0)


def test_a_survivor_that_does_not_come_back_ends_the_sum_and_not_the_task(server: AggregatorProcess, api: Api) -> None:
    """The sum is not opened over the others: they would refuse, since it could reveal the one that is missing."""
    task = masked_task(api, "gone", COHORT, max_failed_rounds=1, rounds=3)
    clients = enrol_masked(task, COHORT)
    play(server, task, clients, 1, drop=VANISHING)
    play(server, task, clients, 2, drop={3: "contribute"})
    assert "9 clients are needed in the round, 8 are present" in task.wait_round(2, "failed")["failure"]
    assert task.wait_round(3, "advertising")["step"] == 2
    assert (state_of(task)["state"], state_of(task)["abandoned_sums"]) == ("open", 1)
    play(server, task, clients, 3, drop={3: "contribute"})
    assert task.wait_round(3, "complete", "failed")["survivors"] == COHORT - 1


@pytest.mark.parametrize("left", ["revoked", "at fault"])
def test_a_sum_whose_survivor_has_left_is_abandoned_at_once(server: AggregatorProcess, api: Api, left: str) -> None:
    task = masked_task(api, f"left-{left.replace(' ', '-')}", COHORT, max_failed_rounds=1, rounds=3)
    clients = enrol_masked(task, COHORT)
    if left == "revoked":
        play(server, task, clients, 1, until="unmask")
        path = f"{task.path}/members/{clients[8].client_id}"
        assert api.http.delete(path, headers=api.operator).status_code in (200, 204)
        task.wait_round(1, "unmasking")
        expire(server, task, 1)
    else:
        clients = faulty(clients, Dealer, 8)
        play(server, task, clients, 1)
    task.wait_round(1, "failed")
    assert task.wait_round(2, "advertising")["step"] == 2
    assert clients[8].client_id not in asked(task, 2)
    assert state_of(task)["abandoned_sums"] == 1


def test_the_same_clients_are_asked_three_times_and_a_task_without_any_sum_fails(
    server: AggregatorProcess, api: Api
) -> None:
    task = masked_task(api, "never", COHORT, max_failed_rounds=1, rounds=2)
    clients = enrol_masked(task, COHORT)
    steps = []
    for number in range(1, 7):
        steps.append(task.wait_round(number, "advertising")["step"])
        play(server, task, clients, number, drop=VANISHING)
        task.wait_round(number, "failed")
    assert steps == [1, 1, 1, 2, 2, 2]
    assert wait_state(task, "failed")["abandoned_sums"] == 2
    refused = api.http.post(f"{task.path}/resume", headers=api.operator)
    assert (refused.status_code, "no sum" in refused.json()["detail"]) == (409, True)


def test_a_task_whose_last_sum_is_abandoned_is_complete(server: AggregatorProcess, api: Api) -> None:
    task = masked_task(api, "last", COHORT, max_failed_rounds=1, rounds=2)
    clients = enrol_masked(task, COHORT)
    play(server, task, clients, 1)
    task.wait_round(1, "complete")
    play(server, task, clients, 2, drop=VANISHING)
    play(server, task, clients, 3, drop={0: "advertise"})
    view = wait_state(task, "complete")
    assert (view["completed_rounds"], view["abandoned_sums"], view["failed_rounds"]) == (1, 1, 2)


FROZEN = {
    "recipe": {"name": "privirec-k", "parameters": {"items": 6, "components": 2, "iterations": 2}},
    "mechanism": {"name": "masked", "parameters": {"corrupt": 0.0, "dropout": 0.34}},
    "schedule": {
        "cohort_size": 9,
        "min_clients": 4,
        "min_difference": 2,
        "max_failed_rounds": 1,
        "stage_seconds": 3600,
        "collect_seconds": 3600,
    },
}


def test_a_frozen_cohort_keeps_the_set_of_a_sum_that_was_not_opened(server: AggregatorProcess, api: Api) -> None:
    """Clients that signed a set sign only parts of it that are smaller by the minimum difference, in later sums too."""
    answer = api.http.post("/v1/tasks", json={"name": "chain", **FROZEN}, headers=api.operator)
    assert answer.status_code == 201, answer.text
    task = TestTask(api, answer.json())
    clients = enrol_masked(task, COHORT)
    play(server, task, clients, 1)
    task.wait_round(1, "complete")
    small = dict.fromkeys(range(2), "contribute")
    play(server, task, clients, 2, drop=small | dict.fromkeys(range(2, 7), "unmask"), value=lambda index: 0.01)
    task.wait_round(2, "failed")
    assert task.wait_round(3, "advertising")["step"] == 2
    assert asked(task, 3) == {clients[index].client_id for index in range(2, COHORT)}
    stay = in_cohort(task, clients, 3)
    play(server, task, stay, 3, drop={0: "contribute"}, value=lambda index: 0.01)
    assert "differ from those of an earlier sum by 1 clients" in task.wait_round(3, "failed")["failure"]
    assert task.wait_round(4, "advertising")["cohort"] == 5
    play(server, task, in_cohort(task, clients, 4), 4, value=lambda index: 0.01)
    assert task.wait_round(4, "complete", "failed")["survivors"] == 5


def test_a_member_of_a_frozen_cohort_that_never_answers_leaves(server: AggregatorProcess, api: Api) -> None:
    answer = api.http.post("/v1/tasks", json={"name": "silent", **FROZEN}, headers=api.operator)
    assert answer.status_code == 201, answer.text
    task = TestTask(api, answer.json())
    clients = enrol_masked(task, COHORT)
    for number in range(1, 4):
        assert task.wait_round(number, "advertising")["cohort"] == COHORT
        play(server, task, clients, number, drop=dict.fromkeys(range(4), "unmask"), value=lambda index: 1.0)
        task.wait_round(number, "failed", "complete")
    assert task.wait_round(4, "advertising")["step"] == 1
    assert asked(task, 4) == {clients[index].client_id for index in range(4, COHORT)}


def refuse(task: TestTask, number: int, clients: Mapping[int, MaskedClient], reason: str) -> None:
    for one in clients.values():
        path = f"{task.path}/rounds/{number}/refusals"
        answer = task.api.http.post(path, json={"reason": reason}, headers=one.auth)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("refusing", "reason", "abandoned"),
    [(6, "survivors", 1), (5, "survivors", 0), (9, "survivors", 1), (9, "policy", 0)],
)
def test_a_sum_that_most_clients_took_part_in_before_is_abandoned_at_once(
    server: AggregatorProcess, api: Api, refusing: int, reason: str, abandoned: int
) -> None:
    """As after a restore: 6 of 9 refuse it, and 3 are fewer than min_clients, 4. The stage is an hour long."""
    task = masked_task(api, f"taken-{refusing}-{reason}", COHORT, max_failed_rounds=2, rounds=5)
    clients = enrol_masked(task, COHORT)
    for number in (1, 2):
        task.wait_round(number, "advertising")
        refuse(task, number, dict(list(clients.items())[:refusing]), reason)
        for one in list(clients.values())[refusing:]:
            assert one.take(number, "advertise").status_code == 201
        if refusing == 5:  # the others go on without them
            assert task.wait_round(number, "sharing", "failed")["step"] == 1
            assert state_of(task)["abandoned_sums"] == 0
            return
        task.wait_round(number, "failed")
    if abandoned:
        assert task.wait_round(3, "advertising")["step"] == 3
        view = state_of(task)
        assert (view["state"], view["abandoned_sums"], view["failed_rounds"]) == ("open", 2, 2)
        play(server, task, clients, 3)
        assert task.wait_round(3, "complete", "failed")["survivors"] == COHORT
    else:
        assert wait_state(task, "failed")["abandoned_sums"] == 0
