"""One-shot rounds of the SDK against a real server: clients, fleet, and a committee of three processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import AsyncClient, Identity, MemoryStore, Operator, task_request
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from protocols.errors import ParameterError
from protocols.messages import Schedule
from protocols.recipes.base import FactorState, ModelState
from protocols.recipes.privirec import PriviRecState
from protocols.recipes.registry import recipe as make_recipe
from protocols.recipes.state import state_as
from tests.client_sdk.cli.test_cli_server import certified, devices, ended, make_task
from tests.support.command import cells
from tests.support.fleets import enrolled_fleet
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import ITEMS, TRIAL, SmallTask, interactions, new_client, small_task, take_part_together

USERS = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    data_dir: Path = tmp_path_factory.mktemp("aggregator") / "data"
    with running_aggregator(data_dir, fold_batch=3) as running:
        yield running


def played(
    server: AggregatorProcess, operator: Operator, recipe: str, parameters: Any, **plan: Any
) -> list[ModelState]:
    """The last model of a fleet with fixed seeds, over one-shot sums and over plain ones."""
    found = []
    for mechanism in ("oneshot", "plain"):
        schedule = Schedule(cohort_size=USERS, start_clients=USERS, **{"rounds": 2, **plan})
        organiser = TRIAL.pin if mechanism == "oneshot" else None
        request = task_request(
            f"{recipe}-{mechanism}", recipe, mechanism, schedule, parameters, seed=bytes(32), organiser=organiser
        )
        with enrolled_fleet(server.url, SmallTask.of(operator, request, USERS), interactions(USERS), 5) as fleet:
            reports = fleet.run()
            assert [report.state for report in reports] == ["complete"] * schedule.rounds, reports
            assert all(report.survivors == USERS for report in reports)
            found.append(fleet.model())
    return found


def test_a_fleet_trains_over_one_shot_sums_as_over_plain_ones(server: AggregatorProcess, operator: Operator) -> None:
    made = played(server, operator, "colr", {"items": ITEMS, "dim": 8, "clip": 2.0, "rank": 4})
    oneshot, plain = (state_as(model, FactorState).item_factors for model in made)
    assert np.allclose(oneshot, plain, atol=1e-3)


def test_privirec_over_one_shot_sums_has_the_spectrum_of_plain_ones(
    server: AggregatorProcess, operator: Operator
) -> None:
    """Every sum is over the same data of a frozen cohort."""
    parameters = {"items": ITEMS, "components": 4, "iterations": 2, "oversampling": 4, "rayleigh_ritz": True}
    steps = make_recipe("privirec-k", parameters).steps
    made = played(server, operator, "privirec-k", parameters, rounds=steps, min_clients=4, min_difference=3)
    oneshot, plain = (state_as(model, PriviRecState).singular_values for model in made)
    assert np.allclose(oneshot[:4], plain[:4], rtol=1e-3)


def test_clients_that_vanish_are_left_out_and_the_round_completes(
    server: AggregatorProcess, operator: Operator
) -> None:
    task = small_task(operator, "vanishing", users=USERS, mechanism="oneshot", rounds=1, collect_seconds=6.0)
    dropouts = np.random.default_rng(2)
    with enrolled_fleet(server.url, task, interactions(USERS), 5, dropout=0.3, dropout_rng=dropouts) as fleet:
        (report,) = fleet.run()
    assert report.state == "complete" and report.missed
    assert report.survivors == len(report.reports) == USERS - len(report.missed)


def test_a_committee_needs_an_enrolled_fleet_and_a_task_with_one(server: AggregatorProcess, operator: Operator) -> None:
    task = small_task(operator, "no-committee", users=3)
    with Fleet(server.url, interactions(3), FleetOptions()) as fleet:
        with pytest.raises(ParameterError, match="call enrol"):
            fleet.enrol_committee("hri_none")
        fleet.enrol(task.invitation)
        with pytest.raises(ParameterError, match="plain have no committee"):
            fleet.enrol_committee("hri_none")


def test_members_of_the_committee_serve(server: AggregatorProcess, operator: Operator) -> None:
    task = small_task(operator, "loops", users=3, mechanism="oneshot")
    invitation = operator.invite(task.task_id, 2, "committee").invitation
    certificate = TRIAL.source("committee")
    with new_client(server.url) as client:
        member = client.join(invitation=invitation, certificate=certificate)
        member.serve(stop=lambda: True)

    async def serve() -> None:
        async with AsyncClient(server.url, Identity.generate(), MemoryStore()) as client:
            part = await client.join(invitation=invitation, certificate=certificate)
            await part.serve(stop=lambda: True)
            with pytest.raises(ParameterError, match="committee serve"):
                await part.take_part([1, 2, 3])

    asyncio.run(serve())
    assert "2 of 5" in (operator.task(task.task_id).waiting_for or "")


MEMBERS = 3


def test_a_task_with_a_committee_of_three_processes(tmp_path: Path) -> None:
    with running_aggregator(tmp_path / "data") as server, ExitStack() as stack:
        operator = stack.enter_context(Operator(server.url, server.operator_token))
        task = make_task(operator, "films", "oneshot", committee=MEMBERS)
        contributor, *members = devices(tmp_path, 1 + MEMBERS)
        invitation = operator.invite(task.task_id, MEMBERS, "committee").invitation
        for member in members:
            own = certified(member, member.key.with_suffix(".json"), "committee")
            status, out, err = member.run("committee", "join", server.url, "--invitation", invitation, *own)
            assert status == 0, err
            assert "hushrec committee serve --task films" in out
        serving = [member.start("committee", "serve", "--task", "films") for member in members]
        for process in serving:
            stack.callback(process.kill)
        assert (serving[0].stdout is not None) and "serving in the committee" in serving[0].stdout.readline()
        serving[0].kill()  # kill -9 at any moment
        ended(serving[0])
        serving[0] = members[0].start("committee", "serve", "--task", "films")
        stack.callback(serving[0].kill)

        invitation = operator.invite(task.task_id, MEMBERS).invitation
        parts = [
            stack.enter_context(new_client(server.url)).join(invitation=invitation, certificate=TRIAL.source())
            for _ in range(MEMBERS)
        ]
        reports = take_part_together(parts, interactions(MEMBERS))
        assert [[report.round for report in mine] for mine in reports] == [[1, 2]] * MEMBERS
        for status, out, err in [ended(process) for process in serving]:
            assert status == 0, err
            assert ["shares of sums sent", "2"] in cells(out)
            assert "round 2: confirmed the set of 3 clients" in out
        assert operator.task(task.task_id).state == "complete"
        kept = [path for path in (members[0].folder / "home").rglob("committee*") if path.is_file()]
        assert {path.name for path in kept} == {"committee.json", "committee.sum-1.json", "committee_keys.bin"}
        assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
        status, _, err = contributor.run("committee", "serve", "--task", "films")
        assert status == 1 and "does not exist" in err
        items = str(contributor.items)
        status, _, err = members[0].run("join", server.url, "--task", "films", "--interactions", items)
        assert status == 1 and "hushrec committee serve" in err
