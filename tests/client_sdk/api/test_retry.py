"""Which requests are repeated, how long, and the error at the end."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from client_sdk.api.calls import ApiCalls
from client_sdk.api.retry import (
    DEFAULT_ATTEMPTS,
    RetryPolicy,
    retry_after,
    send,
)
from client_sdk.api.wire import Request, Response
from client_sdk.errors import (
    PROBLEM_ERRORS,
    ApiError,
    ClientFault,
    Conflict,
    ConnectionFailed,
    ContractBroken,
    GaveUp,
    Gone,
    NotFound,
    ServerFault,
    Unavailable,
)
from protocols.messages.base import PROBLEM_TYPES
from tests.support.programs import ProgramRunner, problem

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
