"""Which requests are repeated, after how long, and which error is raised at the end."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from client_sdk.api.calls import ApiCalls
from client_sdk.api.retry import RetryPolicy, retry_after, send
from client_sdk.api.wire import Request, Response
from client_sdk.errors import (
    PROBLEM_ERRORS,
    ApiError,
    ClientFault,
    ConnectionFailed,
    ContractBroken,
    GaveUp,
    Gone,
    NotFound,
    ServerFault,
    Unavailable,
)
from protocols.messages.problem import PROBLEM_TYPES
from tests.support.programs import ProgramRunner, problem

URL = "https://example.org"
POLICY = RetryPolicy(attempts=4, base_seconds=1.0, cap_seconds=3.0, jitter=lambda: 0.5)
GET = Request("GET", URL + "/x", {"authorization": "Bearer secret-token"})


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


def test_every_problem_type_has_an_error_of_its_own_and_the_right_fault() -> None:
    assert set(PROBLEM_ERRORS) == set(PROBLEM_TYPES)
    assert len(set(PROBLEM_ERRORS.values())) == len(PROBLEM_TYPES)
    for slug, (status, _) in PROBLEM_TYPES.items():
        assert issubclass(PROBLEM_ERRORS[slug], ServerFault if status >= 500 else ClientFault)


def test_a_problem_is_raised_as_its_error_and_never_shows_the_token() -> None:
    for slug, (status, _) in PROBLEM_TYPES.items():
        runner = ProgramRunner(lambda _, slug=slug: problem(slug, "because"))
        with pytest.raises((ApiError, GaveUp)) as caught:
            runner.run(send(GET, RetryPolicy(attempts=1)))
        error = caught.value.last if isinstance(caught.value, GaveUp) else caught.value
        assert type(error) is PROBLEM_ERRORS[slug]
        assert (error.method, error.url, error.status) == ("GET", URL + "/x", status)
        assert error.problem.slug == slug
        assert "secret-token" not in repr(GET) + str(error) + repr(error.__dict__)


def test_pauses_grow_with_jitter_up_to_the_cap_and_respect_retry_after() -> None:
    runner = answering(
        connection_failed(), problem("unavailable"), problem("too-many-requests", retry_after="7"), Response(200, {})
    )
    assert runner.run(send(GET, POLICY)).status == 200
    assert runner.pauses == [0.5, 1.0, 7 + 1.5]


@pytest.mark.parametrize(
    ("answer", "error", "tries"),
    [
        (problem("unavailable"), Unavailable, 4),
        (problem("unavailable", retry_after="3600"), Unavailable, 1),  # which is too long to be waited for
        (problem("gone"), Gone, 1),
    ],
)
def test_it_gives_up_after_the_last_attempt_and_keeps_the_last_error(
    answer: Response, error: type[ApiError], tries: int
) -> None:
    runner = ProgramRunner(lambda _: answer)
    with pytest.raises((GaveUp, Gone)) as caught:
        runner.run(send(GET, POLICY))
    assert isinstance(getattr(caught.value, "last", caught.value), error)
    assert len(runner.requests) == tries == len(runner.pauses) + 1


def test_retry_after_as_a_date_counts_from_the_answers_own_clock() -> None:
    headers = {"date": "Wed, 21 Oct 2026 07:28:00 GMT", "retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}
    assert retry_after(headers) == 30.0
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([connection_failed(sent=True)], ConnectionFailed),
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
        runner.run(send(Request("POST", URL), POLICY))
    assert len(runner.requests) == len(steps)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Response(404, {"content-type": "text/html"}, b"<html>"), NotFound),
        (Response(400, {"content-type": "application/problem+json"}, b"not json"), ClientFault),
        (Response(200, {"content-type": "application/json"}, b'{"unknown": 1}'), ContractBroken),
    ],
)
def test_an_answer_without_a_problem_or_the_message_is_raised_by_its_status(
    answer: Response, error: type[Exception]
) -> None:
    """Ids are quoted in the path."""
    runner = ProgramRunner(lambda _: answer)
    with pytest.raises(error):
        runner.run(ApiCalls(URL, "secret-token").task("../../admin?x=1"))
    assert runner.requests[0].url == URL + "/v1/tasks/..%2F..%2Fadmin%3Fx%3D1"
