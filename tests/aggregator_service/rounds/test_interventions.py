"""Extend, abort and resume: interventions of operators, over HTTP, with a manual clock."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.rounds.interventions import ABORTED, abort_round, extend_round
from aggregator_service.storage.round_rows import entered_states, find_round
from aggregator_service.storage.schema import HandoutRow, RoundRow, RoundStateRow, StageMessageRow
from tests.support.api import Api, TestTask, aggregator_inside, checked, contribute, detail, services, slug
from tests.support.clock import ManualClock
from tests.support.dashboard import new_operator
from tests.support.masked import STAGES, MaskedClient, enrol_masked, masked_task, steps_of
from tests.support.world import SECONDS, World, an_operator

CLOCK = ManualClock()
STAGE_SECONDS = 50.0


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with aggregator_inside(tmp_path_factory.mktemp("interventions") / "data", clock=CLOCK) as inside:
        yield inside


def extend(task: TestTask, number: int, seconds: Any, auth: dict[str, str] | None = None) -> httpx.Response:
    return task.post(f"rounds/{number}/extend", {"seconds": seconds}, auth)


def abort(task: TestTask, number: int, auth: dict[str, str] | None = None) -> httpx.Response:
    return task.post(f"rounds/{number}/abort", auth=auth)


@contextmanager
def rows_of(task: TestTask, number: int) -> Iterator[tuple[Session, RoundRow]]:
    with services(task.api).database.read() as session:
        yield session, find_round(session, task.id, number)


def states_of(task: TestTask) -> list[RoundStateRow]:
    with rows_of(task, 1) as (session, round_):
        return entered_states(session, round_.id)


def test_an_extended_round_goes_on_past_its_old_deadline_and_a_finished_one_stays_as_it_is(api: Api) -> None:
    task, members = api.begin(3, "longer", collect_seconds=100.0)
    answer = extend(task, 1, 60)
    assert (answer.status_code, answer.json()["seconds_left"]) == (200, 160.0)
    CLOCK.advance(150)
    contribute(members, 1, 2.0)
    assert task.wait_round(1, "complete")["survivors"] == 3
    rows = states_of(task)  # one a transition, kept with the round
    assert [(row.state, row.handed_out) for row in rows] == [("collecting", 0), ("folding", 0), ("complete", 0)]
    assert rows[1].entered_at - rows[0].entered_at == 150
    for answer in (extend(task, 1, 5), abort(task, 1)):
        assert "complete" in detail(answer, 409) and slug(answer) == "conflict"
    assert extend(task, 2, 5).status_code == abort(task, 2).status_code == 404


def test_a_stage_never_has_more_than_a_week_left(api: Api) -> None:
    task = api.create_task("week", cohort=3, collect_seconds=604_000.0)
    task.begin(3)
    for seconds in (0, -5, 604_801, "soon", None):
        assert extend(task, 1, seconds).status_code == 422
    assert task.round(1)["seconds_left"] == 604_000
    said = detail(extend(task, 1, 801), 422)
    assert "604,800 seconds" in said and "can be extended by 800" in said
    assert extend(task, 1, 800).json()["seconds_left"] == 604_800


def test_a_folding_round_can_be_aborted_but_not_extended(world: World) -> None:
    """Nor a round whose deadline is over: clients get round-closed from then on, before the engine ends the stage."""
    task = world.task(members=4)
    world.run(task)
    world.contribute(task, *world.cohort(task))
    with pytest.raises(Problem, match="conflict"), world.database.write() as session:
        extend_round(session, task, 1, 5.0, an_operator(world.clock.now() + SECONDS))
    with world.database.write() as session:
        find_round(session, task, 1).state = "folding"
    with pytest.raises(Problem, match="conflict"), world.database.write() as session:
        extend_round(session, task, 1, 5.0, an_operator(world.clock.now()))
    with world.database.write() as session:
        abort_round(session, task, 1, an_operator(world.clock.now()))
    assert (world.round(task).state, world.round(task).failure) == ("failed", ABORTED)
    assert not list(world.blobs.keys())
    assert world.run(task) == SECONDS
    assert world.round(task).number == 2


def test_an_aborted_round_is_followed_by_another_and_does_not_count_as_failure(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the operator, and not the token."""
    task, members = api.begin(3, "abort", max_failed_rounds=1, rounds=2)
    assert members[0].put(1, members[0].contribution(1, 1.0)).status_code == 201
    token = new_operator(api, "ada")
    caplog.set_level(logging.INFO, "aggregator_service")
    auth = {"Authorization": f"Bearer {token}"}
    assert extend(task, 1, 5, auth).status_code == 200
    answer = checked(abort(task, 1, auth))
    logged = {record.message: vars(record).get("hushrec_fields", {}) for record in caplog.records}
    assert logged["round extended"]["operator"] == logged["round aborted"]["operator"] == "ada"
    assert (logged["round extended"]["stage"], logged["round extended"]["seconds"]) == ("collecting", 5)
    assert token not in str([vars(record) for record in caplog.records])
    assert (answer.json()["state"], answer.json()["failure"]) == ("failed", ABORTED)
    assert abort(task, 1).json() == answer.json()  # the client lost the answer and asks again
    task.wait_round(2, "collecting")
    contribute(members, 2, 1.0)
    task.wait_round(2, "complete")
    view = task.now()
    assert (view["state"], view["completed_rounds"], view["failed_rounds"]) == ("open", 1, 1)
    late = members[0].put(1, members[0].contribution(1, 1.0))  # the same bytes: the same receipt
    assert late.status_code == 200
    assert members[1].put(1, members[1].contribution(1, 1.0)).status_code == 409


def through(
    task: TestTask, clients: dict[int, MaskedClient], number: int, until: str | None = None, late_comer: bool = False
) -> None:
    """All clients take every step before `until`. late_comer: sends after the first deadline of each stage."""
    for step in steps_of(task):
        task.wait_round(number, STAGES[step])
        if step == until:
            return
        *early, late = clients.values()
        for index, one in enumerate(early):
            assert one.take(number, step, 2.0**index).status_code == 201
        if late_comer:
            assert extend(task, number, STAGE_SECONDS).status_code == 200
            CLOCK.advance(STAGE_SECONDS + 5)
        assert late.take(number, step, 2.0 ** len(early)).status_code == 201


def test_every_stage_of_a_masked_round_can_be_extended(api: Api) -> None:
    task = masked_task(api, "masked", 5, stage_seconds=STAGE_SECONDS, collect_seconds=STAGE_SECONDS)
    through(task, enrol_masked(task, 5), 1, late_comer=True)
    assert task.wait_round(1, "complete")["survivors"] == 5
    assert task.opened(1)[0] == pytest.approx(0b11111, abs=0.01)
    entered = states_of(task)
    stages = [STAGES[step] for step in steps_of(task)]
    assert [row.state for row in entered] == [*stages, "complete"]
    assert [row.handed_out > 0 for row in entered] == [*(stage != "advertising" for stage in stages), False]


def test_a_masked_round_can_be_aborted_early_and_late(api: Api) -> None:
    task = masked_task(api, "abort-stages", 5, stage_seconds=STAGE_SECONDS, collect_seconds=STAGE_SECONDS)
    clients = enrol_masked(task, 5)
    for number, step in enumerate(("share", "unmask"), 1):
        through(task, clients, number, until=step)
        assert abort(task, number).json()["failure"] == ABORTED
        with rows_of(task, number) as (session, round_):
            held = StageMessageRow.round_id == round_.id, StageMessageRow.body.is_not(None)
            assert not session.execute(select(func.count()).select_from(StageMessageRow).where(*held)).scalar_one()
            assert not session.scalars(select(HandoutRow).where(HandoutRow.round_id == round_.id)).all()
    through(task, clients, number + 1)  # the next round has new keys, and accepts no message of an earlier one
    assert task.wait_round(number + 1, "complete")["survivors"] == 5


def test_a_failed_task_goes_on_when_it_is_resumed(api: Api) -> None:
    task, members = api.begin(3, "resumed", collect_seconds=100.0, max_failed_rounds=1)
    assert task.post("resume").json()["state"] == "open"  # nothing to do
    CLOCK.advance(101)
    task.wait_round(1, "failed")
    assert task.now()["state"] == "failed"
    assert task.post("resume", auth=members[0].auth).status_code == 403
    assert task.post("resume").json()["state"] == "open"
    assert task.wait_round(2, "collecting")["step"] == 1
    contribute(members, 2, 2.0)
    task.wait_round(2, "complete")
    assert "the task is complete" in detail(task.post("close"), 409)
    assert "only a failed task" in detail(task.post("resume"), 409)


def test_a_failed_task_is_closed_for_good(api: Api) -> None:
    task, _ = api.begin(3, "failed-closed", collect_seconds=100.0, max_failed_rounds=1)
    CLOCK.advance(101)
    task.wait_round(1, "failed")
    assert task.now()["state"] == "failed"
    for _ in range(2):
        assert checked(task.post("close")).json()["state"] == "closed"
    assert "only a failed task" in detail(task.post("resume"), 409)
