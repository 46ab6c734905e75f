"""The one poll loop: what it returns for a changed round, for no change and for a task that has ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from client_sdk.api.calls import ApiCalls, RoundChanged
from client_sdk.api.retry import (
    LONGEST_PAUSE,
    Outage,
    RetryPolicy,
    StoppedInOutage,
)
from client_sdk.api.wire import Request, Response, through
from client_sdk.errors import (
    NotFound,
)
from client_sdk.rounds.events import TaskEnded
from client_sdk.rounds.polling import NothingNew, RoundChange, await_round, follow_rounds, is_over
from protocols.messages import RoundView
from protocols.pace import LONGEST_REST
from tests.support.programs import ProgramRunner, problem, round_view, task_view

CALLS = ApiCalls("https://example.org", "token", RetryPolicy(jitter=lambda: 0.0))
FEW = {"schedule": {"cohort_size": 5}, "members": 2, "keyed_members": 1, "able_members": [2]}


def server(rounds: list[RoundView | None], task_state: str = "open") -> Callable[[Request], Response]:
    """Answers each poll with the next entry of `rounds`; None stands for no change."""

    def answer(request: Request) -> Response:
        if "/rounds/current" not in request.url:
            numbered = request.url.rsplit("/rounds/", 1)
            body = (
                round_view(int(numbered[1]), "complete") if len(numbered) == 2 else task_view(state=task_state, **FEW)
            )
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
    assert not is_over(change.view)
    change = runner.run(follow_rounds(CALLS, "t_1", change, wait=5.0))
    assert change == NothingNew(task_view(**FEW), '"1-collecting"')
    assert paths(runner) == ["/rounds/current", "/rounds/current?wait=5.0", ""]
    assert runner.requests[1].headers["if-none-match"] == '"1-collecting"'


def test_a_server_without_room_for_a_poll_that_waits_is_asked_again_when_it_says() -> None:
    ask = server([None])

    def answer(request: Request) -> Response:
        if "/rounds/current" in request.url:
            return replace(ask(request), headers={"retry-after": "5"})
        return problem("not-found", retry_after="500") if "/keyring" in request.url else ask(request)

    runner = ProgramRunner(answer)
    change = RoundChanged(round_view(1, "collecting"), '"1-collecting"')
    assert isinstance(runner.run(follow_rounds(CALLS, "t_1", change)), NothingNew)
    assert runner.pauses == [5.0]
    assert runner.run(CALLS.envelope("t_1", wait=20.0)) is None
    assert runner.pauses == [5.0, *[LONGEST_PAUSE] * 25]  # in parts, so that a client can be stopped
    assert runner.run(CALLS.envelope("t_1")) is None


def test_a_client_comes_in_its_window_and_no_server_makes_it_silent() -> None:
    """The round is returned after the pause; a server that says a year is asked again after ten minutes."""
    pauses = {"37": 37.0, "31536000": LONGEST_REST, "-1": 0.0, "soon": 0.0}
    for said, expected in pauses.items():
        view = round_view(1, "collecting")
        body = view.model_dump_json().encode()
        runner = ProgramRunner(
            lambda _, text=said, body=body: Response(200, {"etag": '"1"', "retry-after": text}, body)
        )
        assert runner.run(follow_rounds(CALLS, "t_1", None, wait=0.0)) == RoundChanged(view, '"1"')
        assert sum(runner.pauses) == expected
        assert max(runner.pauses, default=0.0) <= LONGEST_PAUSE


def test_a_client_that_waits_for_its_window_can_be_stopped() -> None:
    body, asked = round_view(1, "collecting").model_dump_json().encode(), iter([False, False, True])
    runner = ProgramRunner(lambda _: Response(200, {"etag": '"1"', "retry-after": "500"}, body))
    with pytest.raises(StoppedInOutage, match="asked this client to pause"):
        runner.run(through(follow_rounds(CALLS, "t_1", None, wait=0.0), Outage(stop=lambda: next(asked))))
    assert runner.pauses == [LONGEST_PAUSE] * 2


def test_the_end_of_a_task_is_found_after_a_round_or_a_poll_without_a_change_and_stays() -> None:
    over = RoundChanged(round_view(1, "failed"), "etag")
    assert is_over(over.view)
    runner = ProgramRunner(server([round_view(2, "collecting")]))
    assert isinstance(runner.run(follow_rounds(CALLS, "t_1", over)), RoundChanged)
    assert paths(runner) == ["", "/rounds/current?wait=20.0"], "the task is asked for before the next poll"
    for before, polled in ((over, [""]), (None, ["/rounds/current?wait=20.0", ""])):
        runner = ProgramRunner(server([None], "complete"))
        change: RoundChange = runner.run(follow_rounds(CALLS, "t_1", before))
        assert change == TaskEnded("complete") == runner.run(follow_rounds(CALLS, "t_1", change))
        assert paths(runner) == polled


def test_a_round_is_awaited_until_its_state_is_accepted_or_a_later_round_opens() -> None:
    runner = ProgramRunner(
        server([round_view(1, "collecting"), None, round_view(1, "folding"), round_view(1, "complete")])
    )
    found = runner.run(await_round(CALLS, "t_1", 1, lambda view: view.state == "complete"))
    assert found.view.state == "complete"
    runner = ProgramRunner(server([round_view(1, "collecting"), round_view(2, "collecting")]))
    assert runner.run(await_round(CALLS, "t_1", 1, lambda view: view.state == "complete")).view.number == 1
    assert paths(runner)[-1] == "/rounds/1"


@pytest.mark.parametrize("newest", [None, round_view(1, "complete")])
def test_a_round_that_a_restored_server_does_not_know_is_not_awaited(newest: RoundView | None) -> None:
    """The newest round is none, or one before; another replica may still know the awaited one."""

    def answer(request: Request) -> Response:
        if "/rounds/current" in request.url:
            return ask(request)
        return problem("not-found") if lost else Response(200, {}, round_view(2, "folding").model_dump_json().encode())

    for lost, state in ((True, "folding"), (False, "folding"), (False, "complete")):
        ask = server([newest, newest, round_view(2, "complete")])
        runner = ProgramRunner(answer)
        with pytest.raises(NotFound) if lost else nullcontext():
            found = runner.run(await_round(CALLS, "t_1", 2, lambda view, state=state: view.state == state))
            assert (found.view.number, found.view.state) == (2, state)
