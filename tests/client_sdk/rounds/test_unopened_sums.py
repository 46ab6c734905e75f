"""Sums that were not opened, for absent clients or for shares that do not open: no task ends for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from client_sdk import Operator
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from protocols.sums.masked import client as stages
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


def test_clients_of_sums_that_were_not_opened_take_part_until_the_task_is_complete(
    server: AggregatorProcess, operator: Operator
) -> None:
    """The first sum is opened when it is asked again; the second one never, and the third one follows."""
    task = small_task(
        operator, "again", users=USERS, mechanism="masked", rounds=3, max_failed_rounds=1, min_clients=5,
        stage_seconds=3.0, collect_seconds=10.0,
    )  # fmt: skip
    vanishing = cast(np.random.Generator, Vanishing(dict.fromkeys((1, 3, 4, 5), VANISHING)))
    options = FleetOptions(seed=3, dropout=0.5, dropout_rng=vanishing, dropout_stage="unmasking")
    with Fleet(server.url, interactions(USERS), options) as fleet:
        fleet.enrol(task.invitation, certificates=task.certificates)
        played = fleet.run()
    assert [one.state for one in played] == ["failed", "complete", "failed", "failed", "failed", "complete"]
    assert [one.survivors for one in played if one.state == "complete"] == [USERS, USERS]
    view = operator.task(task.task_id)
    assert (view.state, view.completed_rounds, view.abandoned_sums) == ("complete", 2, 1)


def test_a_client_whose_shares_do_not_open_is_reported_and_the_others_go_on(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = small_task(
        operator, "garbage", users=USERS, mechanism="masked", rounds=1, max_failed_rounds=1, min_clients=5
    )
    share = stages.share
    with Fleet(server.url, interactions(USERS), FleetOptions(seed=3)) as fleet:
        fleet.enrol(task.invitation, certificates=task.certificates)
        at_fault = fleet.clients[3].member.membership.client_id

        def garbage(state: stages.Advertised, *rest: Any) -> tuple[stages.Shared, bytes]:
            after, body = share(state, *rest)
            return after, bytes([7]) * len(body) if state.client_id == at_fault else body

        monkeypatch.setattr(stages, "share", garbage)
        played = fleet.run()
    assert [(one.state, one.asked) for one in played] == [("failed", USERS), ("complete", USERS - 1)]
    assert at_fault in str(played[0].failure)
    assert operator.task(task.task_id).state == "complete"
