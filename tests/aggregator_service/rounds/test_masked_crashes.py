"""kill -9 in any state of a masked or a one-shot round: after a restart it continues, and its sum is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from aggregator_service.crash_points import CRASH_POINTS
from tests.support.api import Api, TestTask
from tests.support.masked import STAGES, MaskedClient, enrol_masked, masked_task, steps_of
from tests.support.oneshot import (
    OneshotClient,
    OneshotMember,
    enrol_clients,
    enrol_committee,
    oneshot_task,
    publish_keys,
)
from tests.support.server import AggregatorProcess, Persistent

COHORT = 5
OF_STAGES = [point for point in CRASH_POINTS if point.startswith("stage.")]
OF_THE_SUM = ["fold.blob-written-before-commit", "release.blob-written-before-commit", "release.committed"]
"""In the order in which a masked round reaches them."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AggregatorProcess]:
    process = AggregatorProcess(tmp_path / "data")
    yield process
    process.stop()


def stubborn_step(attempt: Persistent, client: MaskedClient, step: str, value: float) -> None:
    """Take a step, sending its message until it is acknowledged."""
    body = attempt(lambda: client.make(1, step, value))  # type: ignore[arg-type]
    answer = attempt(lambda: client.send(1, step, body))
    assert answer.status_code in (200, 201), (step, answer.text)


def assert_exact(task: TestTask, server: AggregatorProcess) -> None:
    """There was one round, its sum is that of all clients, and what they sent is deleted."""
    assert task.round(1)["survivors"] == COHORT
    total = task.opened(1)
    mask = np.concatenate([block.integral_mask() for block in task.plan.layout.blocks])
    assert np.array_equal(total[mask], np.full(mask.sum(), float(COHORT)))
    assert np.allclose(total[~mask], 2.0**COHORT - 1, rtol=0, atol=task.plan.predicted_error)
    listed = task.api.http.get(f"{task.path}/rounds", headers=task.api.operator).json()["rounds"]
    assert [row["number"] for row in listed] == [1]
    kinds = Counter(key.partition("/")[0] for key in server.blobs.keys())  # noqa: SIM118 - a store, not a dict
    assert kinds == {"aggregates": 1, "snapshots": 1}


@pytest.mark.timeout(600)  # a server starts again after each death
@pytest.mark.parametrize("points", [OF_STAGES, OF_THE_SUM], ids=["stages", "sum"])
def test_death_at_every_named_point_of_one_round(server: AggregatorProcess, api: Api, points: list[str]) -> None:
    server.start(crash_at=points[0])
    attempt = Persistent(server, points[1:])
    task = masked_task(api, "points", COHORT)
    clients = enrol_masked(task, COHORT)
    for step in steps_of(task):
        attempt(lambda step=step: task.wait_round(1, STAGES[step]))
        for index, client in clients.items():
            stubborn_step(attempt, client, step, 2.0**index)
    attempt(lambda: task.wait_round(1, "complete"))
    if attempt.deaths < len(points):  # the round is complete a moment before its blobs are deleted
        attempt.revive()
    assert attempt.deaths == len(points)
    assert_exact(task, server)


@pytest.mark.timeout(600)
def test_death_in_the_middle_of_every_stage(server: AggregatorProcess, api: Api) -> None:
    server.start()
    attempt = Persistent(server)
    task = masked_task(api, "stages", COHORT)
    clients = enrol_masked(task, COHORT)
    for step in steps_of(task):
        attempt(lambda step=step: task.wait_round(1, STAGES[step]))
        for index, client in clients.items():
            if index == 2:
                server.kill()
                server.start()
            stubborn_step(attempt, client, step, 2.0**index)
    task.wait_round(1, "complete")
    assert attempt.deaths == 0
    assert_exact(task, server)


ONESHOT_COHORT = 4
BEFORE_THE_SUM = [
    "round.opened",
    "upload.stored-before-row",
    "upload.row-before-ack",
    "stage.collecting-ended",
    "stage.stored-before-ack",
    "stage.confirming-ended",
]
ONESHOT_OF_THE_SUM = [
    "fold.blob-written-before-commit",
    "fold.committed",
    "release.blob-written-before-commit",
    "release.committed",
]
"""In the order in which a one-shot round reaches them."""


def stubborn(attempt: Persistent, send: Callable[[], httpx.Response]) -> None:
    """Send a message until it is acknowledged."""
    answer = attempt(send)
    assert answer.status_code in (200, 201), answer.text


def stubborn_round(
    attempt: Persistent,
    task: TestTask,
    clients: list[OneshotClient],
    members: list[OneshotMember],
    between: Callable[[int], None] = lambda place: None,
) -> None:
    """Play round 1; `between` is called before each message, with the place of its sender."""
    attempt(lambda: task.wait_round(1, "collecting"))
    for place, client in enumerate(clients):
        body = attempt(lambda client=client, place=place: client.make(1, 2.0**place)).encode()
        between(place)
        stubborn(attempt, lambda client=client, body=body: client.send(1, body))
    attempt(lambda: task.wait_round(1, "confirming"))
    for place, member in enumerate(members):
        found = attempt(lambda member=member: member.inspect(1))
        between(place)
        stubborn(attempt, lambda member=member, found=found: member.confirm(1, found))
    attempt(lambda: task.wait_round(1, "unmasking"))
    for place, member in enumerate(members):
        share = attempt(lambda member=member: member.summed_share(1))
        between(place)
        stubborn(attempt, lambda member=member, share=share: member.unmask(1, share))
    attempt(lambda: task.wait_round(1, "complete"))


def assert_oneshot_exact(task: TestTask, server: AggregatorProcess) -> None:
    """There was one round, its sum is that of all clients, and what they sent is deleted."""
    assert task.round(1)["survivors"] == ONESHOT_COHORT
    total = task.opened(1)
    mask = np.concatenate([block.integral_mask() for block in task.plan.layout.blocks])
    assert np.array_equal(total[mask], np.full(mask.sum(), float(ONESHOT_COHORT)))
    assert np.allclose(total[~mask], 2.0**ONESHOT_COHORT - 1, rtol=0, atol=task.plan.predicted_error)
    listed = task.api.http.get(f"{task.path}/rounds", headers=task.api.operator).json()["rounds"]
    assert [row["number"] for row in listed] == [1]
    kinds = Counter(key.partition("/")[0] for key in server.blobs.keys())  # noqa: SIM118 - a store, not a dict
    assert kinds == {"aggregates": 1, "snapshots": 1}


def begin(api: Api, attempt: Persistent) -> tuple[TestTask, list[OneshotClient], list[OneshotMember]]:
    task = oneshot_task(api, "crashes", ONESHOT_COHORT)
    clients, members = enrol_clients(task, ONESHOT_COHORT), enrol_committee(task, 5)
    publish_keys(members[:4], 1)
    stubborn(attempt, lambda: members[4].publish(1))  # the round opens
    return task, clients, members


@pytest.mark.timeout(300)  # a server starts again after each death
@pytest.mark.parametrize("points", [BEFORE_THE_SUM, ONESHOT_OF_THE_SUM], ids=["stages", "sum"])
def test_oneshot_death_at_every_named_point_of_one_round(
    server: AggregatorProcess, api: Api, points: list[str]
) -> None:
    server.start(crash_at=points[0])
    attempt = Persistent(server, points[1:])
    task, clients, members = begin(api, attempt)
    stubborn_round(attempt, task, clients, members)
    if attempt.deaths < len(points):  # the round is complete a moment before its blobs are deleted
        attempt.revive()
    assert attempt.deaths == len(points)
    assert_oneshot_exact(task, server)


@pytest.mark.timeout(300)
def test_oneshot_death_in_the_middle_of_every_stage(server: AggregatorProcess, api: Api) -> None:
    server.start()
    attempt = Persistent(server)
    task, clients, members = begin(api, attempt)

    def restart(place: int) -> None:
        if place == 2:
            server.kill()
            server.start()

    stubborn_round(attempt, task, clients, members, restart)
    assert_oneshot_exact(task, server)
