"""FAIR through a real server: devices of two memory sizes train one model, over every mechanism that supports it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from client_sdk import Operator, Policy, task_request
from client_sdk.api.http import SyncDriver
from client_sdk.errors import Conflict, ContractBroken, InvalidParameters
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.rounds.contribution import OwnRound
from client_sdk.rounds.events import Waiting, waiting_to_start
from client_sdk.training.fair import FairConfig
from protocols.errors import ParameterError
from protocols.messages import Schedule
from protocols.recipes.base import Recipe
from protocols.recipes.fair import Fair, FairView
from protocols.recipes.registry import recipe as make_recipe
from protocols.recipes.state import state_as
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRIAL, SmallTask, enrolled_fleet, new_client, take_part_together

ITEMS, DIM, EACH = 400, 8, 4
GROUPS = (0, 1) * EACH
PARAMETERS = {"items": ITEMS, "dim": DIM, "capacities": (0, 2), "max_interactions": 10, "reveal_weights": True}
TRAINING = FairConfig(learning_rate=0.02, epochs=2, batch_size=8)
TURN = 2
SUMS = ("plain", "ckks")
ANY = Policy(mechanisms=frozenset(SUMS), trust_models=True)
RECEIPT = 1000
"""More bytes than the JSON around a contribution has; the tables of a small device have six times as many."""


def chosen(users: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.choice(ITEMS, 6, replace=False).astype(np.int32) for _ in range(users)]


def create(operator: Operator, name: str, sums: str = "plain", users: int = len(GROUPS), **schedule: Any) -> SmallTask:
    plan = Schedule(**{"rounds": TURN, "cohort_size": EACH, **schedule})
    how = {"degree": 4096} if sums == "ckks" else {}
    organiser = None if sums == "plain" else TRIAL.pin
    request = task_request(name, "fair", sums, plan, PARAMETERS, how, seed=bytes(32), organiser=organiser)
    return SmallTask.of(operator, request, users)


def fleet_of(server: AggregatorProcess, task: SmallTask, device_groups: Sequence[int] = GROUPS) -> Fleet:
    own = chosen(len(device_groups))
    return enrolled_fleet(server.url, task, own, training=TRAINING, policy=ANY, device_groups=device_groups)


def predicted_error(recipe: Recipe, fleet: Fleet) -> float:
    """Return the error of a turn's mean: the errors of the sums divided by the weight of six interactions of ten."""
    terms = fleet.clients[0].member.terms
    errors = [terms.sum_plan_at(step).predicted_error for step in range(1, recipe.device_groups + 1)]
    return sum(errors) / (len(GROUPS) * 0.6)


def test_every_sum_gives_the_same_model(server: AggregatorProcess, operator: Operator) -> None:
    recipe = make_recipe("fair", PARAMETERS)
    views: dict[str, list[FairView]] = {}
    errors: dict[str, float] = {}
    for sums in SUMS:
        with fleet_of(server, create(operator, f"fair-{sums}", sums)) as fleet:
            assert [(played.state, played.survivors) for played in fleet.run()] == [("complete", EACH)] * TURN
            views[sums] = [
                state_as(fleet.model(device_group), FairView) for device_group in range(recipe.device_groups)
            ]
            errors[sums] = predicted_error(recipe, fleet)
            scores = list(fleet.scores())
            assert [one.shape for one in scores] == [(ITEMS,)] * len(GROUPS)
    first = [
        state_as(recipe.initial_view(bytes(32), device_group), FairView) for device_group in range(recipe.device_groups)
    ]
    for device_group, plain in enumerate(views["plain"]):
        assert plain.tables.shape[1] == (ITEMS * DIM) >> (2 * device_group)
        assert np.abs(plain.tables - first[device_group].tables).max() > 0.01
        for sums, hidden in views.items():
            bound = errors["plain"] + errors[sums] + 1e-7
            assert bound < 1e-3
            np.testing.assert_allclose(hidden[device_group].tables, plain.tables, atol=bound)
            np.testing.assert_allclose(hidden[device_group].dense, plain.dense, atol=bound)


def test_a_small_device_uploads_and_downloads_only_its_view(
    server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client has the whole model; only the server has."""

    def whole(*_: object) -> None:
        raise AssertionError("a client made the whole model")

    for name in ("initial_state", "decode_state", "absorb", "view"):
        monkeypatch.setattr(Fair, name, whole)
    recipe = make_recipe("fair", PARAMETERS)
    with fleet_of(server, create(operator, "small", rounds=2 * TURN)) as fleet:
        groups = {client.member.client_id: client.member.membership.device_group for client in fleet.clients}
        rounds = fleet.run()
        assert [played.state for played in rounds] == ["complete"] * 2 * TURN
        for played in rounds[1:]:
            device_group = recipe.device_group_of(played.number)
            assert {groups[report.client_id] for report in played.reports} == {device_group}
            held = recipe.view_bytes(played.number - 1, device_group)
            values = recipe.layout(played.number).length
            assert held == 36 + 4 * (values - 1)  # step, seed, and every value that it sends but the weight
            for report in played.reports:
                assert report.caught_up == "snapshot"
                assert held <= report.bytes_down < held + RECEIPT
                assert report.contribution_bytes == 4 * values
    assert recipe.view_bytes(1, 1) + RECEIPT < recipe.view_bytes(1, 0) / 3


def test_single_clients_choose_their_group_and_store_their_view(server: AggregatorProcess, operator: Operator) -> None:
    task = create(operator, "fair-joined", cohort_size=3)
    device_groups = [0, 1] * 3
    with ExitStack() as resources:
        clients = [resources.enter_context(new_client(server.url, ANY)) for _ in device_groups]
        parts = [
            task.join(client, device_group=device_group, training=TRAINING)
            for client, device_group in zip(clients, device_groups, strict=True)
        ]
        assert [part.membership.device_group for part in parts] == device_groups
        assert sorted(member.group for member in operator.members(task.task_id)) == [0, 0, 0, 1, 1, 1]
        assert operator.task(task.task_id).able_members == [3, 3]
        with pytest.raises(ParameterError, match="group 1 and cannot change it"):
            clients[1].join("fair-joined", device_group=0)
        with pytest.raises(Conflict, match="enrolled in group 1; a client cannot change its group"):
            clients[1].join(invitation=task.invitation, device_group=0)
        parts[1] = clients[1].join(invitation=task.invitation, training=TRAINING)
        assert parts[1].membership.device_group == 1
        reports = take_part_together(parts, chosen(6))
        assert [[report.round for report in mine] for mine in reports] == [[1], [2]] * 3
        for client, part, items in zip(clients, parts, chosen(6), strict=True):
            assert not set(part.recommend(5, refresh=False).items.tolist()) & set(items.tolist())
            client_store, device_group = client._account.store, part.membership.device_group
            kept = client_store.read(task.task_id, "item_state.bin")
            assert len(kept) == 8 + part.terms.recipe.view_bytes(TURN, device_group)
            assert client_store.memberships() == [part.membership]


def test_a_client_refuses_a_round_of_another_group(server: AggregatorProcess, operator: Operator) -> None:
    task = create(operator, "fair-lied-to", cohort_size=3)
    with fleet_of(server, task, [0, 0, 0, 1, 1, 1]) as fleet:
        with SyncDriver() as driver:
            fresh = driver.run(fleet.clients[0].member.calls.current_round(task.task_id, wait=10.0))
        asked, history = fresh.view.model_copy(update={"contribution_bytes": None}), fleet.clients[0].history([0])
        assert OwnRound(fleet.clients[0], asked, history).spec.sum_index == 1
        with pytest.raises(ContractBroken, match="round 1 is for group 0, and this client is in group 1"):
            _ = OwnRound(fleet.clients[5], fresh.view, history).spec


def test_the_group_must_exist(server: AggregatorProcess, operator: Operator) -> None:
    task = create(operator, "fair-misjoined")
    with new_client(server.url, ANY) as client:
        with pytest.raises(InvalidParameters, match="device groups 0 to 1: state the group of the client"):
            task.join(client)
        with pytest.raises(InvalidParameters, match="groups 0 to 1: there is no group 2"):
            task.join(client, device_group=2)
    with pytest.raises(ParameterError, match="device_groups must have one entry per client"):
        Fleet(server.url, chosen(2), FleetOptions(device_groups=[0]))
    with fleet_of(server, task, [1, 1]) as fleet:
        assert state_as(fleet.model(), FairView).tables.shape[1] == ITEMS * DIM // 4
        with pytest.raises(ParameterError, match="no client of this fleet is in group 0"):
            fleet.model(0)
    waiting = waiting_to_start(operator.task(task.task_id), needs_keyring=False)
    assert waiting == Waiting("the first round: 0 in group 0, 2 in group 1 are enrolled; it needs 4 in each group")
