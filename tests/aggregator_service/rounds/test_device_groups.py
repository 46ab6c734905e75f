"""Recipes with device groups or levels: enrolment, order, floors, views, and dropouts that leave few clients."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select

from aggregator_service.rounds.opening import enough_members
from aggregator_service.storage.round_rows import last_completed
from aggregator_service.storage.schema import ClientRow, TaskRow, ViewRow
from aggregator_service.storage.stores import named_blobs
from aggregator_service.tasks.task_views import agreed_digest, task_view
from protocols.crypto.sealing import SealingKey
from protocols.messages import Schedule, TaskView
from protocols.recipes.registry import recipe
from protocols.task_terms import broadcast_digest
from tests.support.api import Api, TestMember, TestTask, contribute, detail, signed_enrolment
from tests.support.masked import MaskedClient, enrol_masked, masked_task, play
from tests.support.world import World, client_row, request_json

FAIR = {"items": 8, "dim": 4, "capacities": [0, 2]}
RECIPE = recipe("fair", FAIR)


class Groups(World):
    """Members in device groups, with contributions of the length that each sum needs."""

    def fair(self, *device_groups: int, **schedule: Any) -> str:
        """Create a FAIR task and enrol one member for each of these groups."""
        task_id = self.task({}, recipe=("fair", FAIR), cohort_size=2, **schedule)
        self.join(task_id, *device_groups)
        return task_id

    def join(self, task_id: str, *device_groups: int) -> None:
        with self.database.write() as session:
            known = session.execute(select(func.count()).select_from(ClientRow)).scalar_one()
            for index, device_group in enumerate(device_groups, start=known):
                own = {"sequence": index + 1, "device_group": device_group, "turn": index}
                session.add(client_row(f"c_{index:02}", task_id, **own))

    def deliver(self, task_id: str) -> None:
        """All clients of the cohort contribute ones with weight one; then the round ends."""
        self.run(task_id)
        assert self.round(task_id).state == "collecting"
        length = RECIPE.layout(self.round(task_id).sum_index).length
        self.contribute(task_id, *self.cohort(task_id), vector=lambda _: np.ones(length))
        self.run(task_id)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Groups]:
    with closing(Groups(tmp_path)) as made:
        yield made


def test_a_task_begins_when_every_group_has_a_cohort(world: Groups) -> None:
    task = world.fair(0, 0, 0, 0, 1)
    world.run(task)
    assert (len(world.rounds(task)), world.view(task).able_members) == (0, [4, 1])
    world.join(task, 1)
    world.run(task)
    assert (len(world.rounds(task)), world.view(task).able_members) == (1, [4, 2])


def test_start_clients_counts_all_groups_and_each_needs_the_floor() -> None:
    schedule = Schedule(cohort_size=10, min_clients=3, start_clients=8)
    starts = {able: enough_members(schedule, able, 0, 3, first=True) for able in ((5, 3), (4, 3), (6, 2), (3, 20))}
    assert starts == {(5, 3): True, (4, 3): False, (6, 2): False, (3, 20): True}
    by_default = Schedule(cohort_size=10, min_clients=3)
    assert not enough_members(by_default, (10, 9), 0, 3, first=True)
    assert enough_members(by_default, (10, 10), 0, 3, first=True)
    later = [enough_members(schedule, (3, 2), device_group, 3, first=False) for device_group in (0, 1)]
    assert later == [True, False]


def test_groups_are_asked_in_turn(world: Groups) -> None:
    task = world.fair(0, 1, 0, 1, 0, 1, rounds=6)
    cohorts = []
    for _ in range(6):
        world.run(task)
        cohorts.append({int(client[2:]) for client in world.cohort(task)})
        world.deliver(task)
    assert all(len(cohort) == 2 for cohort in cohorts)
    assert [{index % 2 for index in cohort} for cohort in cohorts] == [{0}, {1}] * 3
    for device_group in (0, 1):
        asked = sorted(index for cohort in cohorts[device_group::2] for index in cohort)
        assert asked == sorted([device_group, device_group + 2, device_group + 4] * 2)
    assert world.state(task) == "complete"


def test_a_group_below_the_floor_gets_no_round(world: Groups) -> None:
    task = world.fair(0, 0, 1, 1)
    world.run(task)
    assert len(world.rounds(task)) == 1
    with world.database.write() as session:  # the service deletes no member, so the test deletes the row
        session.get_one(ClientRow, "c_03").device_group = 0
    world.deliver(task)
    assert (world.round(task).state, len(world.rounds(task)), world.view(task).able_members) == ("complete", 1, [3, 1])
    assert world.state(task) == "open"
    world.join(task, 1)
    world.run(task)
    assert (len(world.rounds(task)), sorted(world.cohort(task))) == (2, ["c_02", "c_04"])


def test_each_group_has_a_view_and_the_newest_two_are_kept(world: Groups) -> None:
    task = world.fair(0, 0, 1, 1, rounds=10)
    for number in range(1, 4):
        world.deliver(task)
        with world.database.read() as session:
            rows = session.scalars(select(ViewRow).order_by(ViewRow.round_number, ViewRow.device_group)).all()
        assert [(row.round_number, row.device_group) for row in rows] == [
            (n, g) for n in range(1, number + 1) for g in (0, 1)
        ]
        kept = [row.blob_key for row in rows if row.blob_key is not None]
        assert len(kept) == 2 * min(number, 2)
        assert set(kept) == {key for key in world.blobs.keys() if key.startswith("views/")}  # noqa: SIM118
        assert [row.bytes for row in rows[-2:]] == [RECIPE.view_bytes(number, device_group) for device_group in (0, 1)]
        assert sum(key.startswith("snapshots/") for key in world.blobs.keys()) == min(number, 2)  # noqa: SIM118
    with world.database.read() as session:
        assert set(named_blobs(session)) == set(world.blobs.keys())


def test_a_masked_round_is_bound_to_its_groups_view(world: Groups) -> None:
    task_id = world.fair(0, 0, 1, 1, rounds=10)
    world.deliver(task_id)
    with world.database.read() as session:
        task = session.get_one(TaskRow, task_id)
        completed = last_completed(session, task_id)
        views = session.scalars(select(ViewRow).order_by(ViewRow.device_group)).all()
        for step in (1, 2, 3):
            model = bytes.fromhex(views[(step - 1) % 2].digest)
            expected = broadcast_digest(task_view(session, task), step, model, ())
            assert agreed_digest(session, task, step, completed, ()) == expected
    assert views[0].digest != views[1].digest


def fair_task(api: Api, name: str) -> TestTask:
    return api.task_of(request_json(name, "fair", FAIR, rounds=2, cohort_size=2))


def test_a_client_cannot_change_its_group(api: Api) -> None:
    task = fair_task(api, "groups-enrolment")
    invitation = api.invite(task.id, uses=9)
    identity, mailbox = Ed25519PrivateKey.generate(), SealingKey.generate()

    def enrol(signed: int | None, renewal: int = 0, **changes: Any) -> httpx.Response:
        body = signed_enrolment(invitation, identity, mailbox, signed, renewal=renewal) | changes
        return api.http.post("/v1/enrolments", json=body)

    assert "groups 0 to 1" in detail(enrol(None), 422)
    assert "groups 0 to 1: there is no group 2" in detail(enrol(2), 422)
    for signed in (0, None):  # the group in the signature counts
        assert "signature" in detail(enrol(signed, group=1), 403)
    assert enrol(-1).status_code == 422
    first = enrol(1)
    assert (first.status_code, first.json()["group"]) == (201, 1)
    assert "group 1; a client cannot change its group" in detail(enrol(0), 409)
    for again in (enrol(1, renewal=1), enrol(None, renewal=2)):
        assert (again.status_code, again.json()["group"]) == (200, 1)
    assert [member["group"] for member in task.found("members")["members"]] == [1]
    view = TaskView.model_validate(task.now())
    assert (view.members, view.able_members) == (1, [0, 1])
    invitation = api.invite(api.create_task("one-group").id, uses=9)
    assert [api.enrol(invitation, device_group=group).status_code for group in (None, 0)] == [201, 201]
    assert "one device group, 0: there is no group 1" in detail(api.enrol(invitation, device_group=1), 422)


def test_a_member_downloads_its_groups_view(api: Api) -> None:
    task = fair_task(api, "groups-views")
    members = [*task.enrol(2, device_group=0), *task.enrol(2, device_group=1)]
    for number in (1, 2):
        task.wait_round(number, "collecting")
        layout = RECIPE.layout(number)
        plan = task.mechanism.plan({}, layout, 2)
        for member in members[2 * (number - 1) : 2 * number]:
            body = task.mechanism.seal(plan, 1, [np.full(layout.length, 0.5)], None)
            assert member.put(number, body).status_code == 201
        task.wait_round(number, "complete")
    states = {}
    for member, device_group in ((members[0], 0), (members[2], 1)):
        view, body = member.found("snapshots/latest").json(), member.found("snapshots/2").content
        assert (view["round"], view["bytes"]) == (2, RECIPE.view_bytes(2, device_group))
        assert (len(body), hashlib.sha256(body).hexdigest()) == (view["bytes"], view["digest"])
        states[device_group] = body
        assert task.found("snapshots/latest", group=device_group) == view
        operators = {"headers": api.operator, "params": {"group": device_group}}
        assert api.http.get(f"{task.path}/snapshots/2", **operators).content == body
        for what in ("latest", "2"):
            assert "own device group" in detail(member.get(f"snapshots/{what}?group={1 - device_group}"), 403)
    whole = RECIPE.decode_state(2, api.http.get(f"{task.path}/snapshots/2", headers=api.operator).content)
    assert states == {group: RECIPE.encode_view(RECIPE.view(whole, group), group) for group in (0, 1)}
    latest = f"{task.path}/snapshots/latest"
    assert "groups 0 to 1" in detail(api.http.get(latest, headers=api.operator, params={"group": 2}), 422)
    (stranger,) = api.create_task("groups-elsewhere").enrol(1)
    assert api.http.get(latest, headers=stranger.auth).status_code == 404


COHORT = 32
MIN_CLIENTS = 4
SCOLR = {"recipe_name": "scolr", "recipe_parameters": {"rank": 4}, "dim": 4, "min_clients": MIN_CLIENTS}


def smallest_group(
    task: TestTask, clients: Mapping[int, MaskedClient] | Mapping[int, TestMember], number: int = 1
) -> list[int]:
    """The numbers of the clients of the level that fewest clients have in a round."""
    groups: dict[int, list[int]] = {}
    for index, client in clients.items():
        groups.setdefault(task.recipe.route(task.spec(number), client.client_id), []).append(index)
    assert len(groups) > 1 and min(map(len, groups.values())) > MIN_CLIENTS
    return min(groups.values(), key=len)


def assert_too_few_of_a_level(task: TestTask) -> None:
    """Nothing is released. It does not count: the task goes on, although one failure would end it."""
    failed = task.wait_round(1, "failed")
    assert (failed["aggregate_digest"], failed["survivors"]) == (None, 0)
    assert "3 clients are left that contribute to the same blocks of the sum, and 4 are needed" in failed["failure"]
    assert task.wait_round(2, "advertising", "collecting")["step"] == 1


def test_dropouts_that_leave_few_clients_of_a_level(api: Api) -> None:
    task = api.create_task("levels-plain", cohort=COHORT, max_failed_rounds=1, collect_seconds=3600, **SCOLR)
    members = dict(enumerate(task.enrol(COHORT)))
    for number, left in ((1, MIN_CLIENTS - 1), (2, MIN_CLIENTS)):
        task.wait_round(number, "collecting")
        away = smallest_group(task, members, number)[left:]
        contribute([member for index, member in members.items() if index not in away], number, 1.0)
        task.expire(number)
        if number == 1:
            assert_too_few_of_a_level(task)
    assert task.wait_round(2, "complete", "failed")["state"] == "complete"


def test_levels_of_a_masked_round_need_enough_clients_and_a_client_told_others_is_refused(api: Api) -> None:
    """Levels in use are part of what keys, masks and signatures are bound to."""
    # 14 of 32 may go: of the smallest of at least two levels go at most 13
    task = masked_task(api, "levels", COHORT, dropout=0.45, max_failed_rounds=1, **SCOLR)
    clients = enrol_masked(task, COHORT)
    smallest = smallest_group(task, clients)
    lied_to = clients[smallest[-1]]
    told, view = task.wait_round(1, "advertising")["levels"], lied_to.view
    assert told[0] == 1 and len(told) > 1
    lied_to.view = lambda number: view(number) | {"levels": [1]}
    assert lied_to.take(1, "advertise").status_code == 400
    lied_to.view = view
    play(task, clients, drop=dict.fromkeys(smallest[MIN_CLIENTS - 1 :], "contribute"), value=lambda _: 1.0)
    assert_too_few_of_a_level(task)
