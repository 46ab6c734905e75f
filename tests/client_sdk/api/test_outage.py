"""What something else than the aggregator answers, and a server that is away: what is repeated, reported, awaited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from client_sdk.api.calls import ApiCalls
from client_sdk.api.retry import (
    DEFAULT_ATTEMPTS,
    LONGEST_PAUSE,
    Outage,
    RetryPolicy,
    StoppedInOutage,
    send,
)
from client_sdk.api.wire import Program, Request, Response, Traffic, through
from client_sdk.errors import (
    ConnectionFailed,
    ContractBroken,
    ForeignAnswer,
    GaveUp,
    InternalError,
)
from client_sdk.rounds.events import Event, ServerBack, ServerUnreachable, report_outage
from protocols.errors import ParameterError
from protocols.messages.base import PROBLEM_TYPES
from tests.support.programs import ProgramRunner, problem

URL = "https://aggregator.example"
FOUR = RetryPolicy(attempts=4, base_seconds=1.0, cap_seconds=3.0, jitter=lambda: 0.5)
CALLS = ApiCalls("https://example.org", "token", RetryPolicy(jitter=lambda: 0.0))
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


# --- a server that is away -------------------------------------------------------------------------------------------

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
