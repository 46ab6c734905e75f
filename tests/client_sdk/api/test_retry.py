"""What is sent again, after how long, and what is raised in the end."""

from __future__ import annotations

import pytest

from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Request, Response
from client_sdk.api.retry import RetryPolicy, retry_after, send
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
from protocols.errors import ParameterError
from protocols.messages import TaskRequest
from protocols.messages.problem import PROBLEM_TYPES
from tests.support.programs import Stage, problem

URL = "https://example.org"
POLICY = RetryPolicy(attempts=4, base_seconds=1.0, cap_seconds=3.0, jitter=lambda: 0.5)
GET = Request("GET", URL + "/x", {"authorization": "Bearer secret-token"})


def script(*steps: Response | ConnectionFailed) -> Stage:
    left = list(steps)

    def answer(_: Request) -> Response:
        step = left.pop(0)
        if isinstance(step, ConnectionFailed):
            raise step
        return step

    return Stage(answer)


def cut(sent: bool = True) -> ConnectionFailed:
    return ConnectionFailed("GET", URL, "ReadError", sent)


def test_every_problem_type_has_an_error_of_its_own_and_the_right_fault() -> None:
    assert set(PROBLEM_ERRORS) == set(PROBLEM_TYPES)
    assert len(set(PROBLEM_ERRORS.values())) == len(PROBLEM_TYPES)
    for slug, (status, _) in PROBLEM_TYPES.items():
        assert issubclass(PROBLEM_ERRORS[slug], ServerFault if status >= 500 else ClientFault)


@pytest.mark.parametrize("slug", sorted(PROBLEM_TYPES))
def test_a_problem_is_raised_as_its_error_and_never_shows_the_token(slug: str) -> None:
    stage = Stage(lambda _: problem(slug, "because"))
    with pytest.raises((ApiError, GaveUp)) as caught:
        stage.run(send(GET, RetryPolicy(attempts=1)))
    error = caught.value.last if isinstance(caught.value, GaveUp) else caught.value
    assert type(error) is PROBLEM_ERRORS[slug]
    assert (error.method, error.url, error.status) == ("GET", URL + "/x", PROBLEM_TYPES[slug][0])
    assert error.problem.slug == slug
    assert "secret-token" not in repr(GET) + str(error) + repr(error.__dict__)


def test_pauses_grow_with_jitter_up_to_the_cap_and_respect_retry_after() -> None:
    stage = script(cut(), problem("unavailable"), problem("too-many-requests", retry_after="7"), Response(200, {}))
    assert stage.run(send(GET, POLICY)).status == 200
    assert stage.pauses == [0.5, 1.0, 7 + 1.5]


def test_it_gives_up_after_the_last_attempt_and_says_what_it_met() -> None:
    stage = Stage(lambda _: problem("unavailable"))
    with pytest.raises(GaveUp) as caught:
        stage.run(send(GET, POLICY))
    assert caught.value.attempts == len(stage.requests) == 4
    assert isinstance(caught.value.last, Unavailable)


def test_a_retry_after_that_is_too_long_is_not_waited_for() -> None:
    stage = Stage(lambda _: problem("unavailable", retry_after="3600"))
    with pytest.raises(GaveUp):
        stage.run(send(GET, POLICY))
    assert stage.pauses == []


def test_client_faults_are_raised_at_once() -> None:
    stage = Stage(lambda _: problem("gone"))
    with pytest.raises(Gone):
        stage.run(send(GET, POLICY))
    assert len(stage.requests) == 1


@pytest.mark.parametrize(("sent", "tries"), [(True, 1), (False, 4)])
def test_a_post_is_repeated_only_when_it_certainly_never_left(sent: bool, tries: int) -> None:
    stage = script(*[cut(sent)] * 4)
    with pytest.raises((ConnectionFailed, GaveUp)):
        stage.run(send(Request("POST", URL), POLICY))
    assert len(stage.requests) == tries


def test_a_post_that_the_server_did_not_take_is_repeated() -> None:
    stage = script(problem("unavailable"), Response(201, {}))
    assert stage.run(send(Request("POST", URL), POLICY)).status == 201
    stage = script(problem("internal-error"))
    with pytest.raises(ServerFault):
        stage.run(send(Request("POST", URL), POLICY))


def test_retry_after_as_a_date_counts_from_the_answers_own_clock() -> None:
    headers = {"date": "Wed, 21 Oct 2026 07:28:00 GMT", "retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}
    assert retry_after(headers) == 30.0
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


def test_a_proxys_error_page_is_raised_by_its_status() -> None:
    stage = Stage(lambda _: Response(404, {"content-type": "text/html"}, b"<html>"))
    with pytest.raises(NotFound):
        stage.run(send(GET, POLICY))
    stage = Stage(lambda _: Response(400, {"content-type": "application/problem+json"}, b"not json"))
    with pytest.raises(ClientFault):
        stage.run(send(GET, POLICY))


def test_an_answer_of_another_shape_breaks_the_contract() -> None:
    stage = Stage(lambda _: Response(200, {"content-type": "application/json"}, b'{"unknown": 1}'))
    with pytest.raises(ContractBroken, match="not a valid TaskView"):
        stage.run(ApiCalls(URL, "secret-token").task("t_1"))


def test_create_task_is_not_repeated_after_an_unclear_failure() -> None:
    request = TaskRequest.model_validate({"name": "t", "recipe": {"name": "colr"}, "mechanism": {"name": "ckks"}})
    stage = script(cut(sent=True))
    with pytest.raises(ConnectionFailed):
        stage.run(ApiCalls(URL, "secret-token", POLICY).create_task(request))


@pytest.mark.parametrize(
    "url", ["ftp://example.org", "example.org", "https://user:pw@example.org", "https://example.org/?a=1"]
)
def test_addresses_that_cannot_work_or_hold_credentials_are_refused(url: str) -> None:
    with pytest.raises(ParameterError):
        ApiCalls(url)


def test_ids_cannot_escape_their_place_in_the_path() -> None:
    stage = Stage(lambda _: problem("not-found"))
    with pytest.raises(NotFound):
        stage.run(ApiCalls(URL).task("../../admin?x=1"))
    assert stage.requests[0].url == URL + "/v1/tasks/..%2F..%2Fadmin%3Fx%3D1"
