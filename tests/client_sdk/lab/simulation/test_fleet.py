"""A fleet over real HTTP: shared downloads, dropouts, missed rounds and snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_sdk import Operator, Policy
from client_sdk.api.http import SyncDriver
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.model.follow import ModelFollower
from client_sdk.rounds.part import Part
from protocols.errors import ParameterError
from protocols.recipes.base import ModelState
from tests.support.server import AggregatorProcess
from tests.support.tasks import enrolled_fleet, interactions, small_task

OFTEN = Policy(mechanisms=frozenset({"ckks", "plain"}), snapshot_every=2)


def follow(client: Part, upto: int) -> ModelState:
    """Return the model that a new client with this client's keys downloads, without a shared cache."""
    keyring = client.member.store.keyring(client.member.task_id)
    follower = ModelFollower(client.member.calls, client.member.terms, keyring=keyring)
    with SyncDriver() as driver:
        return driver.run(follower.follow(upto)).state


@pytest.mark.parametrize(("recipe", "mechanism", "downloads"), [("colr", "ckks", "each"), ("scolr", "plain", "once")])
def test_a_fleet_has_the_model_that_a_client_of_its_own_downloads(
    server: AggregatorProcess, operator: Operator, recipe: str, mechanism: str, downloads: Any
) -> None:
    """Cohorts of 3 of 6 clients, so that every client misses rounds."""
    name = f"fleet-{recipe}-{mechanism}"
    task = small_task(
        operator, name, users=6, recipe=recipe, mechanism=mechanism, rounds=5, cohort_size=3, start_clients=6
    )
    seen: list[FleetRound] = []
    with enrolled_fleet(server.url, task, interactions(6), policy=OFTEN, downloads=downloads) as fleet:
        rounds = fleet.run(seen.append)
        assert rounds == seen
        assert [(r.number, r.state, r.survivors, len(r.reports)) for r in rounds] == [
            (n, "complete", 3, 3) for n in range(1, 6)
        ]
        model, client = fleet.model(), fleet.clients[5]
        assert model.round_number == 5
        np.testing.assert_array_equal(follow(client, 5).item_factors, model.item_factors)
        assert fleet.user_factors().shape == (6, 8)
        with SyncDriver() as driver:
            shot = driver.run(client.member.calls.latest_snapshot(client.member.terms.task_id))
        assert shot is not None
        assert shot.round >= 4
        spared, loaded = sum(r.bytes_spared for r in rounds), sum(r.bytes_down for r in rounds)
        assert (spared > 0) == (downloads == "once")
        receipts = 1000 * 3 * 5
        assert (loaded > max(spared, receipts)) == (downloads == "each")
        assert all(r.bytes_up == sum(report.contribution_bytes for report in r.reports) for r in rounds)
    assert operator.task(task.task_id).state == "complete"


def test_dropouts_are_excluded_and_the_task_continues_after_failed_rounds(
    server: AggregatorProcess, operator: Operator
) -> None:
    task = small_task(
        operator, "dropouts", users=6, mechanism="plain", rounds=2, min_clients=3, collect_seconds=1.5,
        max_failed_rounds=20,
    )  # fmt: skip

    class Coins:
        """Drops five of six clients in the first round, then two of six in every round."""

        def __init__(self) -> None:
            self.left = [np.array([0, 0, 0, 0, 0, 1.0])]

        def random(self, size: int) -> Any:
            return self.left.pop() if self.left else np.array([0, 0] + [1.0] * (size - 2))

    with enrolled_fleet(server.url, task, interactions(6), policy=OFTEN, dropout=0.5, dropout_rng=Coins()) as fleet:
        rounds = fleet.run()
        assert [(r.number, r.state, r.survivors, len(r.missed)) for r in rounds] == [
            (1, "failed", 0, 5),
            (2, "complete", 4, 2),
            (3, "complete", 4, 2),
        ]
        assert rounds[0].failure
        np.testing.assert_array_equal(follow(fleet.clients[0], 3).item_factors, fleet.model().item_factors)


def test_invalid_options_and_missing_enrolment_are_refused(server: AggregatorProcess) -> None:
    for call, words in (
        (lambda: Fleet(server.url, []), "at least one client"),
        (lambda: FleetOptions(dropout=1.0), "less than 1"),
        (lambda: FleetOptions(patience=-1.0), "patience"),
        (lambda: Fleet(server.url, interactions(2)).run(), "call enrol"),
    ):
        with pytest.raises(ParameterError, match=words):
            call()
