"""Which requests are repeated, how long, and the error at the end; how programs outlive an outage; the poll loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.api.calls import ApiCalls, RoundChanged
from client_sdk.api.retry import (
    DEFAULT_ATTEMPTS,
    LONGEST_PAUSE,
    Outage,
    RetryPolicy,
    StoppedInOutage,
    retry_after,
    send,
)
from client_sdk.api.wire import Program, Request, Response, Traffic, through
from client_sdk.errors import (
    PROBLEM_ERRORS,
    ApiError,
    ClientFault,
    Conflict,
    ConnectionFailed,
    ContractBroken,
    ForeignAnswer,
    GaveUp,
    Gone,
    InternalError,
    NotFound,
    ServerFault,
    Unavailable,
)
from client_sdk.rounds.events import Event, ServerBack, ServerUnreachable, TaskEnded, report_outage
from client_sdk.rounds.polling import NothingNew, RoundChange, await_round, follow_rounds, is_over
from protocols.errors import ParameterError
from protocols.messages import RoundView
from protocols.messages.base import PROBLEM_TYPES
from protocols.pace import LONGEST_REST
from tests.support.programs import ProgramRunner, problem, round_view, task_view

URL = "https://aggregator.example"
FOUR = RetryPolicy(attempts=4, base_seconds=1.0, cap_seconds=3.0, jitter=lambda: 0.5)
ASK = Request("GET", URL + "/x", {"authorization": "Bearer secret-token"})


CALLS = ApiCalls("https://example.org", "token", RetryPolicy(jitter=lambda: 0.0))
OF_A_LATER_VERSION = b'{"type": "urn:hushrec:problem:teapot", "title": "Another fault", "status": 418}'


def answering(*steps: Response | ConnectionFailed) -> ProgramRunner:
    left = list(steps)

    def answer(_: Request) -> Response:
        step = left.pop(0)
        if isinstance(step, ConnectionFailed):
            raise step
        return step

    return ProgramRunner(answer)


def connection_failed(sent: bool = True) -> ConnectionFailed:
    return ConnectionFailed("GET", URL, "ReadError", sent)


def test_a_problem_is_raised_as_its_error_and_never_shows_the_token() -> None:
    assert len(set(PROBLEM_ERRORS.values())) == len(PROBLEM_TYPES)
    for slug, (status, _) in PROBLEM_TYPES.items():
        runner = ProgramRunner(lambda _, slug=slug: problem(slug, "because"))
        with pytest.raises((ApiError, GaveUp)) as caught:
            runner.run(send(ASK, RetryPolicy(attempts=1)))
        error = caught.value.last if isinstance(caught.value, GaveUp) else caught.value
        assert type(error) is PROBLEM_ERRORS[slug]
        assert isinstance(error, ServerFault if status >= 500 else ClientFault)
        assert (error.method, error.url, error.status) == ("GET", URL + "/x", status)
        assert error.problem.slug == slug
        assert "secret-token" not in repr(ASK) + str(error) + repr(error.__dict__)


def test_pauses_grow_with_jitter_up_to_the_cap_and_respect_retry_after() -> None:
    runner = answering(
        connection_failed(), problem("unavailable"), problem("too-many-requests", retry_after="7"), Response(200, {})
    )
    assert runner.run(send(ASK, FOUR)).status == 200
    assert runner.pauses == [0.5, 1.0, 7 + 1.5]


@pytest.mark.parametrize(
    ("answer", "error", "tries"),
    [
        (problem("unavailable"), Unavailable, 4),
        (problem("unavailable", retry_after="3600"), Unavailable, 1),  # which is too long to be waited for
        (problem("gone"), Gone, 1),
    ],
)
def test_it_gives_up_at_last_and_keeps_the_last_error(answer: Response, error: type[ApiError], tries: int) -> None:
    runner = ProgramRunner(lambda _: answer)
    with pytest.raises((GaveUp, Gone)) as caught:
        runner.run(send(ASK, FOUR))
    assert isinstance(getattr(caught.value, "last", caught.value), error)
    assert len(runner.requests) == tries == len(runner.pauses) + 1


def test_refusals_that_say_when_to_come_again_end_by_time_and_not_by_number() -> None:
    """Every other replica behind an address may refuse everything: ten refusals in a row say little."""
    policy = RetryPolicy(jitter=lambda: 0.0)
    runner = answering(*[problem("unavailable", retry_after="1")] * (DEFAULT_ATTEMPTS + 4), Response(200, {}))
    assert runner.run(send(Request("POST", URL), policy)).status == 200
    for refusal, tries in (
        (problem("unavailable", retry_after="50"), 4),
        (problem("too-many-requests", retry_after="50"), 4),
        (problem("unavailable", retry_after="0"), DEFAULT_ATTEMPTS),
        (problem("unavailable"), DEFAULT_ATTEMPTS),
    ):
        runner = ProgramRunner(lambda _, refusal=refusal: refusal)
        with pytest.raises(GaveUp) as caught:
            runner.run(send(ASK, policy))
        assert len(runner.requests) == caught.value.attempts == tries


def test_retry_after_as_a_date_counts_from_the_answers_own_clock() -> None:
    headers = {"date": "Wed, 21 Oct 2026 07:28:00 GMT", "retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}
    assert retry_after(headers) == 30.0
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([connection_failed()], ConnectionFailed),
        ([connection_failed(sent=False)] * 4, GaveUp),
        ([problem("internal-error")], ServerFault),
        ([problem("unavailable"), Response(201, {})], None),
    ],
)
def test_a_post_is_repeated_only_if_it_was_certainly_not_processed(
    steps: list[Response | ConnectionFailed], error: type[Exception] | None
) -> None:
    runner = answering(*steps)
    with pytest.raises(error) if error else nullcontext():
        runner.run(send(Request("POST", URL), FOUR))
    assert len(runner.requests) == len(steps)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Response(404, {"content-type": "application/problem+json"}), NotFound),  # to HEAD: there is no body
        (Response(409, {"content-type": "application/problem+json"}), Conflict),
        (Response(418, {"content-type": "application/problem+json"}, OF_A_LATER_VERSION), ClientFault),
        (Response(507, {"content-type": "application/problem+json"}, OF_A_LATER_VERSION), ServerFault),
        (Response(200, {"content-type": "application/json"}, b'{"unknown": 1}'), ContractBroken),
    ],
)
def test_an_answer_of_the_aggregator_is_raised_as_its_error(answer: Response, error: type[ApiError]) -> None:
    """Ids are quoted in the path."""
    runner = ProgramRunner(lambda _: answer)
    with pytest.raises(error) as caught:
        runner.run(ApiCalls(URL, "secret-token").task("../../admin?x=1"))
    assert type(caught.value) is error
    assert runner.requests[0].url == URL + "/v1/tasks/..%2F..%2Fadmin%3Fx%3D1"


# --- what something else than the aggregator answered: a proxy, a filter, a page to log in --------------------------

PAGES = {
    "text/html; charset=UTF-8": b"<html>blocked by policy</html>",
    "text/plain": b"Invalid HTTP request received.",
    "application/json": b'{"message": "Forbidden"}',
    "application/problem+json": b'{"type": "about:blank", "title": "Blocked", "status": 403}',
    "application/problem+json; charset=utf-8": b"{",
    "": b"",
}
ERRORS = (400, 401, 403, 404, 405, 407, 408, 409, 410, 411, 414, 415, 421, 422, 429, 431, 451, 500, 502, 503, 504, 511)


def page(status: int, media_type: str = "text/html", **headers: str) -> Response:
    fields = {"content-type": media_type} if media_type else {}
    return Response(status, {**fields, **headers}, PAGES.get(media_type, b"<html>Log in</html>"))


FOREIGN = [
    *(page(status, media_type) for status in ERRORS for media_type in PAGES),
    *(page(status, location="https://login.example/?to=1") for status in (300, 301, 302, 303, 307, 308)),
    *(page(status, "") for status in (300, 305)),
    *(page(status) for status in (200, 201, 203, 206)),
]


@pytest.mark.parametrize("answer", FOREIGN, ids=lambda answer: f"{answer.status} {answer.media_type}")
def test_a_foreign_answer_says_nothing_of_the_task_and_is_repeated(answer: Response) -> None:
    """It is no word of the aggregator's, so no title of a problem may stand in the error."""
    runner = ProgramRunner(lambda _: answer)
    with pytest.raises(GaveUp) as caught:
        runner.run(CALLS.task("t_1"))
    error = caught.value.last
    assert type(error) is ForeignAnswer and error.status == answer.status
    assert len(runner.requests) == DEFAULT_ATTEMPTS
    assert not any(title in str(caught.value) for _, title in PROBLEM_TYPES.values())
    if "location" in answer.headers:
        assert "redirected to https://login.example/?to=1" in str(error)
    else:
        assert "something else than the aggregator" in str(error) and (answer.media_type or "without") in str(error)


@pytest.mark.parametrize("answer", FOREIGN, ids=lambda answer: f"{answer.status} {answer.media_type}")
def test_a_foreign_answer_is_waited_out_as_an_outage(answer: Response) -> None:
    server, told = Server(20, lambda _: answer), list[Event]()
    assert server.run(requesting(GET), report=report_outage(told.append)) == b"here"
    first, *_, last = told
    assert isinstance(first, ServerUnreachable) and isinstance(last, ServerBack)
    assert first.reason.startswith(f"GET {GET.url}: {answer.status}")


@pytest.mark.parametrize("status", [301, 302, 403, 409, 413, 500, 502])
def test_a_post_that_is_answered_by_something_else_is_not_repeated(status: int) -> None:
    """A filter of answers may have let the request through."""
    runner = ProgramRunner(lambda _: page(status))
    with pytest.raises(ForeignAnswer):
        runner.run(send(Request("POST", URL), FOUR))
    assert len(runner.requests) == 1


def test_a_body_that_a_proxy_finds_too_long_is_not_sent_again() -> None:
    server = Server(10**6, lambda _: page(413))
    with pytest.raises(ForeignAnswer, match="client_max_body_size") as caught:
        server.run(requesting(replace(GET, method="PUT", body=b"12345")))
    assert len(server.runner.requests) == 1
    assert "client_max_body_size" in str(caught.value.remedy)


# --- programs outlive a server that is away: what is repeated, reported, and what ends the waiting ------------------

GET = Request("GET", f"{URL}/v1/tasks/t/rounds/current")
POLICY = RetryPolicy(base_seconds=1.0, cap_seconds=8.0, jitter=lambda: 1.0)


class Server:
    """Answers 200 after `failures` attempts without an answer. The clock advances by the pauses."""

    def __init__(self, failures: int, failure: Callable[[Request], Response] | None = None) -> None:
        self.failures, self.failure = failures, failure or self._refuse
        self.runner = ProgramRunner(self._answer)

    @staticmethod
    def _refuse(request: Request) -> Response:
        raise ConnectionFailed(request.method, request.url, "connection refused", sent=False)

    def _answer(self, request: Request) -> Response:
        if len(self.runner.requests) <= self.failures:
            return self.failure(request)
        return Response(200, {}, b"here")

    def clock(self) -> float:
        return sum(self.runner.pauses)

    def run(self, program: Program[Any], **options: Any) -> Any:
        """Run `program` through an outage with the `options`."""
        return self.runner.run(through(program, Outage(clock=self.clock, **options)))


def requesting(request: Request, policy: RetryPolicy = POLICY) -> Program[bytes]:
    response = yield from send(request, policy)
    return response.body


def status(code: int, **headers: str) -> Callable[[Request], Response]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: Response(code, fields)


def lost(request: Request) -> Response:
    raise ConnectionFailed(request.method, request.url, "connection reset", sent=True)


def test_a_request_is_repeated_until_the_server_answers() -> None:
    server = Server(failures=2000)
    assert server.run(requesting(GET)) == b"here"
    assert len(server.runner.requests) == 2001
    assert server.runner.pauses[:5] == [1.0, 2.0, 4.0, 8.0, 8.0]
    for code in (502, 503, 504):  # of a proxy without a server
        assert Server(20, status(code)).run(requesting(GET)) == b"here"
    assert Server(1, lost).run(requesting(replace(GET, method="PUT"))) == b"here"
    with pytest.raises(ConnectionFailed):  # it may have been processed
        Server(1, lost).run(requesting(replace(GET, method="POST")))
    alone, few = Server(failures=2000), Server(failures=2000)
    with pytest.raises(GaveUp):
        alone.runner.run(requesting(GET))
    with pytest.raises(GaveUp) as caught:
        few.run(requesting(GET, replace(POLICY, attempts=2)))
    assert caught.value.attempts == len(few.runner.requests) == 2
    assert len(alone.runner.requests) == DEFAULT_ATTEMPTS


@pytest.mark.parametrize(("seconds", "method"), [(5.0, "GET"), (3600.0, "PUT")])
def test_retry_after_is_the_minimum_of_a_pause(seconds: float, method: str) -> None:
    server = Server(1, status(503, retry_after=f"{seconds:.0f}"))
    server.run(requesting(replace(GET, method=method, body=b"" if method == "GET" else b"12345")))
    assert server.runner.requests[0] == server.runner.requests[1]
    assert server.clock() == seconds + 1.0
    assert max(server.runner.pauses) <= LONGEST_PAUSE


def test_a_server_that_answers_with_errors_is_not_waited_for() -> None:
    def failing(request: Request) -> Response:
        return problem("internal-error") if len(server.runner.requests) > 10 else Server._refuse(request)

    server = Server(10**6, failing)
    with pytest.raises(GaveUp) as caught:
        server.run(requesting(GET))
    assert isinstance(caught.value.last, InternalError)
    assert len(server.runner.requests) == 10 + DEFAULT_ATTEMPTS


def test_an_outage_is_reported_at_growing_intervals_and_a_short_one_is_not() -> None:
    server, told = Server(failures=40), list[Event]()
    server.run(requesting(GET), report=report_outage(told.append))
    assert [round(event.seconds) for event in told if isinstance(event, ServerUnreachable)] == [3, 31, 63, 127, 255]
    assert isinstance(told[0], ServerUnreachable)
    assert told[0].reason == f"GET {GET.url}: connection refused"
    assert told[-1] == ServerBack(server.clock())
    told.clear()
    Server(failures=1).run(requesting(GET), report=report_outage(told.append))
    assert told == []
    Server(1, status(503, retry_after="100")).run(requesting(GET), report=report_outage(told.append))
    assert [type(event) for event in told] == [ServerUnreachable, ServerUnreachable, ServerUnreachable, ServerBack]


def test_one_outage_of_several_requests_is_reported_as_one() -> None:
    """Also where it begins in an upload, of which nothing is asked for meanwhile but how far it came."""

    def program() -> Program[None]:
        with pytest.raises(GaveUp):
            yield from send(GET, replace(POLICY, attempts=4))
        with pytest.raises(ContractBroken, match="Upload-Offset"):  # the server says nothing of an upload
            yield from ApiCalls(URL, "token", POLICY).contribute("t", 1, "c", b"body")

    server, told = Server(failures=8, failure=lost), list[Event]()
    server.run(program(), report=report_outage(told.append))
    assert [type(event) for event in told] == [ServerUnreachable, ServerBack]
    assert [request.method for request in server.runner.requests[4:]] == ["PUT", *["HEAD"] * 4]


def test_patience_ends_an_outage_and_starts_anew_with_the_next() -> None:
    server = Server(failures=10**6)
    with pytest.raises(GaveUp, match="connection refused") as raised:
        server.run(requesting(GET), patience=20.0)
    assert server.clock() == 20.0
    assert raised.value.attempts == len(server.runner.requests)

    def twice() -> Program[None]:
        for _ in range(2):
            server.runner.requests.clear()
            yield from send(GET, POLICY)

    server = Server(failures=4)
    server.run(twice(), patience=20.0)
    assert server.clock() == 30.0
    server = Server(1, status(503, retry_after="60"))  # more than it has
    with pytest.raises(GaveUp):
        server.run(requesting(GET), patience=59.0)
    assert server.clock() == 0.0
    for seconds in (-1.0, float("nan")):
        with pytest.raises(ParameterError, match="patience"):
            Outage(patience=seconds)


def test_pauses_are_short_enough_for_the_stage_that_begins_after_an_outage() -> None:
    server = Server(failures=40)
    jitter = iter(np.random.default_rng(3).random(40))
    policy = RetryPolicy(base_seconds=1.0, cap_seconds=20.0, jitter=lambda: float(next(jitter)))
    assert server.run(requesting(GET, policy), longest_pause=2.5) == b"here"
    pauses = server.runner.pauses
    assert len(pauses) == 40
    assert max(pauses) <= 2.5
    assert len({round(pause, 1) for pause in pauses[10:]}) > 10, "clients stay spread over the time"
    server = Server(4, status(503, retry_after="7"))
    server.run(requesting(GET, POLICY), longest_pause=2.5)
    assert server.runner.pauses == [8.0, 9.0, 7.0 + 4.0 % 2.5, 7.0 + 8.0 % 2.5]


@pytest.mark.parametrize(("options", "error"), [({"stop": lambda: True}, StoppedInOutage), ({"patience": 3.0}, GaveUp)])
def test_the_end_of_an_outage_closes_the_program(options: dict[str, Any], error: type[Exception]) -> None:
    """It could take the error for that of a round, and go on with the next one."""
    ended = []

    def program() -> Program[None]:
        try:
            yield from send(GET, POLICY)
        except Exception:
            ended.append("error")
        finally:
            ended.append("closed")

    with pytest.raises(error):
        Server(failures=10**6).run(program(), **options)
    assert ended == ["closed"]
    Server(failures=0).run(program(), **options)
    assert ended == ["closed"] * 2


def test_the_traffic_of_a_part_of_a_program_includes_its_repetitions() -> None:
    traffic = Traffic()
    put = replace(GET, method="PUT", body=b"12345")
    Server(3, lost).run(through(requesting(put), traffic))
    assert (traffic.up, traffic.down) == (20, 4)


# --- the one poll loop: what it returns for a changed round, for no change and for a task that has ended --------------

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
