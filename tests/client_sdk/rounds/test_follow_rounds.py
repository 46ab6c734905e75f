"""The one poll loop: what it returns for a changed round, for no change and for a task that has ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Request, Response
from client_sdk.rounds.events import TaskEnded, Waiting
from client_sdk.rounds.polling import NothingNew, RoundChange, RoundChanged, await_round, await_start, follow_rounds
from protocols.messages import MechanismChoice, RecipeChoice, RoundView, Schedule, TaskView
from tests.support.programs import ProgramRunner

CALLS = ApiCalls("https://example.org", "token")


def round_view(number: int, state: str) -> RoundView:
    return RoundView(
        task_id="t_1", number=number, step=number, state=state, seed="A" * 43, cohort=3,
        received=0, survivors=0, folded=0, seconds_left=None, aggregate_bytes=None,
    )  # fmt: skip


def task_view(state: str) -> TaskView:
    return TaskView(
        task_id="t_1", name="movies", state=state,
        recipe=RecipeChoice(name="colr", parameters={"items": 6, "dim": 4, "rank": 2}),
        mechanism=MechanismChoice(name="plain"), schedule=Schedule(cohort_size=5), seed="A" * 43, plan={},
        opened_by="anyone", members=2, keyed_members=1, able_members=[2], completed_rounds=0, failed_rounds=0,
    )  # fmt: skip


def server(rounds: list[RoundView | None], task_state: str = "open") -> Callable[[Request], Response]:
    """Answers each poll with the next entry of `rounds`; None stands for no change."""

    def answer(request: Request) -> Response:
        if "/rounds/current" not in request.url:
            numbered = request.url.rsplit("/rounds/", 1)
            body = round_view(int(numbered[1]), "complete") if len(numbered) == 2 else task_view(task_state)
            return Response(200, {}, body.model_dump_json().encode())
        view = rounds.pop(0)
        if view is None:
            return Response(304, {}) if "if-none-match" in request.headers else Response(204, {})
        return Response(200, {"etag": f'"{view.number}-{view.state}"'}, view.model_dump_json().encode())

    return answer


def paths(runner: ProgramRunner) -> list[str]:
    return [request.url.removeprefix("https://example.org/v1/tasks/t_1") for request in runner.requests]


def test_a_changed_round_is_returned_with_its_etag_which_the_next_poll_sends() -> None:
    runner = ProgramRunner(server([round_view(1, "collecting"), None]))
    change = runner.run(follow_rounds(CALLS, "t_1", None, wait=0.0))
    assert change == RoundChanged(round_view(1, "collecting"), '"1-collecting"')
    assert not change.is_over
    change = runner.run(follow_rounds(CALLS, "t_1", change, wait=5.0))
    assert change == NothingNew(task_view("open"), '"1-collecting"')
    assert paths(runner) == ["/rounds/current", "/rounds/current?wait=5.0", ""]
    assert runner.requests[1].headers["if-none-match"] == '"1-collecting"'


@pytest.mark.parametrize("state", ["complete", "failed"])
def test_after_a_round_that_is_over_the_task_is_asked_for_before_the_next_poll(state: str) -> None:
    over = RoundChanged(round_view(1, state), "etag")
    assert over.is_over
    runner = ProgramRunner(server([round_view(2, "collecting")]))
    assert isinstance(runner.run(follow_rounds(CALLS, "t_1", over)), RoundChanged)
    assert paths(runner) == ["", "/rounds/current?wait=20.0"]
    ended = ProgramRunner(server([], "complete"))
    assert ended.run(follow_rounds(CALLS, "t_1", over)) == TaskEnded("complete")
    assert paths(ended) == [""]


@pytest.mark.parametrize("state", ["closed", "complete", "failed"])
def test_the_end_of_a_task_is_found_after_a_poll_without_a_change_and_stays(state: str) -> None:
    runner = ProgramRunner(server([None], state))
    change: RoundChange = runner.run(follow_rounds(CALLS, "t_1", None))
    assert change == TaskEnded(state)  # type: ignore[arg-type]
    assert runner.run(follow_rounds(CALLS, "t_1", change)) == change
    assert len(runner.requests) == 2


def test_what_round_1_waits_for_is_reported_once() -> None:
    runner, events = ProgramRunner(server([])), list[object]()
    first = runner.run(await_start(task_view("open"), False, None, events.append))
    assert runner.run(await_start(task_view("open"), False, first, events.append)) == first
    assert events == [first]
    assert isinstance(first, Waiting)
    assert runner.pauses == [0.2, 0.2]


def test_a_round_is_awaited_until_its_state_is_accepted_or_a_later_round_opens() -> None:
    runner = ProgramRunner(
        server([round_view(1, "collecting"), None, round_view(1, "folding"), round_view(1, "complete")])
    )
    found = runner.run(await_round(CALLS, "t_1", 1, lambda view: view.state == "complete"))
    assert found.state == "complete"
    runner = ProgramRunner(server([round_view(1, "collecting"), round_view(2, "collecting")]))
    assert runner.run(await_round(CALLS, "t_1", 1, lambda view: view.state == "complete")).number == 1
    assert paths(runner)[-1] == "/rounds/1"
