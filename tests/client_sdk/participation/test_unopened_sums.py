"""Sums that too few clients helped to open: asked again of the same clients, then abandoned; no task ends for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from client_sdk import Fleet, FleetOptions, FleetRound, Operator
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import interactions, small_task

USERS = 12
VANISHING = 5
"""Too many of 12: a secret is reconstructed from 7 of the 11 others."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("unopened") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def operator(server: AggregatorProcess) -> Iterator[Operator]:
    with Operator(server.url, server.operator_token) as found:
        yield found


@dataclass
class Vanishing:
    """Replaces the generator of a fleet: in round `number` the first `leaving[number]` clients of the cohort vanish."""

    leaving: Mapping[int, int]
    number: int = 0

    def random(self, clients: int) -> np.ndarray:
        self.number += 1
        return np.where(np.arange(clients) < self.leaving.get(self.number, 0), 0.0, 1.0)


def rounds(
    server: AggregatorProcess,
    operator: Operator,
    name: str,
    leaving: Mapping[int, int],
    stage: str = "unmasking",
    **schedule: Any,
) -> list[FleetRound]:
    """Return the rounds of a task from which so many clients vanish in a stage, by round."""
    task = small_task(
        operator, name, users=USERS, mechanism="masked", start_clients=USERS, min_clients=5, stage_seconds=3.0,
        collect_seconds=10.0, **schedule,
    )  # fmt: skip
    options = FleetOptions(
        seed=3, dropout=0.5, dropout_rng=cast(np.random.Generator, Vanishing(leaving)), dropout_stage=stage
    )
    with Fleet(server.url, interactions(USERS), options) as fleet:
        fleet.enrol(task.invitation, certificates=task.certificates)
        played = fleet.run()
    assert operator.task(task.task_id).state == "complete"
    return played


def outcome(played: list[FleetRound]) -> list[tuple[str, int, int]]:
    return [(one.state, one.asked, one.survivors) for one in played]


def test_a_sum_that_was_not_opened_is_asked_again_of_the_same_clients(
    server: AggregatorProcess, operator: Operator
) -> None:
    played = rounds(server, operator, "again", {1: VANISHING}, rounds=2, max_failed_rounds=1)
    assert [one.state for one in played] == ["failed", "complete", "complete"]
