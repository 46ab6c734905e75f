"""Programs outlive a server that is away: what is repeated, what is reported, and what ends the waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from client_sdk import ConnectionFailed, GaveUp
from client_sdk.api.effects import Pause, Program, Request, Response
from client_sdk.api.retry import RetryPolicy
from client_sdk.participation.events import Event, ServerBack, ServerUnreachable
from client_sdk.participation.outages import Outages, StoppedInOutage, through_outages
from protocols.errors import ParameterError
from tests.support.programs import ProgramRunner

URL = "https://aggregator.example"
GET = Request("GET", f"{URL}/v1/tasks/t/rounds/current")


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

    def outages(self, **options: Any) -> Outages:
        pauses = RetryPolicy(base_seconds=1.0, cap_seconds=8.0, jitter=lambda: 1.0)
        return Outages(**{"clock": self.clock, "pauses": pauses, **options})


def requesting(request: Request) -> Program[bytes]:
    response = yield request
    return bytes(response.body)


def status(code: int, **headers: str) -> Callable[[Request], Response]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: Response(code, fields)


def test_a_request_is_repeated_until_the_server_answers() -> None:
    server = Server(failures=200)
    assert server.runner.run(through_outages(requesting(GET), server.outages())) == b"here"
    assert len(server.runner.requests) == 201
    assert server.runner.pauses[:5] == [1.0, 2.0, 4.0, 8.0, 8.0]
    with pytest.raises(ConnectionFailed):  # alone, the program fails at the first attempt
        Server(failures=200).runner.run(requesting(GET))


@pytest.mark.parametrize("code", [502, 503, 504])
def test_a_proxy_without_a_server_is_an_outage(code: int) -> None:
    server = Server(3, status(code))
    assert server.runner.run(through_outages(requesting(GET), server.outages())) == b"here"


def test_retry_after_is_the_minimum_of_a_pause() -> None:
    server = Server(1, status(503, retry_after="5"))
    server.runner.run(through_outages(requesting(GET), server.outages()))
    assert server.runner.pauses == [6.0]


def test_other_answers_are_given_to_the_program() -> None:
    server = Server(1, status(500))
    assert server.runner.run(through_outages(requesting(GET), server.outages())) == b""
    assert server.runner.pauses == []


def test_a_request_that_may_have_been_processed_is_not_repeated() -> None:
    def lost(request: Request) -> Response:
        raise ConnectionFailed(request.method, request.url, "connection reset", sent=True)

    server = Server(1, lost)
    with pytest.raises(ConnectionFailed):
        server.runner.run(through_outages(requesting(replace(GET, method="POST")), server.outages()))
    again = Server(1, lost)
    assert again.runner.run(through_outages(requesting(replace(GET, method="PUT")), again.outages())) == b"here"


def test_an_outage_is_reported_at_growing_intervals() -> None:
    server, told = Server(failures=40), list[Event]()
    server.runner.run(through_outages(requesting(GET), server.outages(progress=told.append)))
    assert [round(event.seconds) for event in told if isinstance(event, ServerUnreachable)] == [3, 31, 63, 127, 255]
    assert isinstance(told[0], ServerUnreachable)
    assert told[0].reason == f"GET {GET.url}: connection refused"
    assert told[-1] == ServerBack(server.clock())


def test_a_short_interruption_is_not_reported() -> None:
    server, told = Server(failures=1), list[Event]()
    server.runner.run(through_outages(requesting(GET), server.outages(progress=told.append)))
    assert told == []


def test_patience_ends_an_outage_and_starts_anew_with_the_next() -> None:
    server = Server(failures=10**6)
    with pytest.raises(GaveUp, match="connection refused") as raised:
        server.runner.run(through_outages(requesting(GET), server.outages(patience=20.0)))
    assert server.clock() == 20.0
    assert raised.value.attempts == len(server.runner.requests)

    def twice() -> Program[None]:
        for _ in range(2):
            server.runner.requests.clear()
            yield GET

    server = Server(failures=4)
    server.runner.run(through_outages(twice(), server.outages(patience=20.0)))
    assert server.clock() == 30.0


def test_stop_ends_an_outage_and_closes_the_program() -> None:
    closed = []

    def program() -> Program[None]:
        try:
            yield GET
        finally:
            closed.append(True)

    server = Server(failures=10**6)
    with pytest.raises(StoppedInOutage):
        server.runner.run(through_outages(program(), server.outages(stop=lambda: server.clock() > 30.0)))
    assert closed == [True]


def test_other_effects_and_errors_pass_through() -> None:
    def program() -> Program[str]:
        yield Pause(3.0)
        raise ValueError("of the program")

    server = Server(failures=0)
    with pytest.raises(ValueError, match="of the program"):
        server.runner.run(through_outages(program(), server.outages()))
    assert server.runner.pauses == [3.0]


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_patience_must_be_a_length_of_time(seconds: float) -> None:
    with pytest.raises(ParameterError, match="patience"):
        Outages(patience=seconds)
