"""The SDK signs each attempt of a client's request anew, and corrects its clock by the server's time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import httpx
import pytest

from client_sdk import Identity
from client_sdk.api import http as drivers
from client_sdk.api.calls import ApiCalls
from client_sdk.api.http import SyncDriver
from client_sdk.api.retry import RetryPolicy
from client_sdk.api.wire import LARGEST_OFFSET, Request, Response, ServerTime, Signer
from client_sdk.errors import ClientSDKError, ClocksDiffer, ConnectionFailed, GaveUp, StaleSignature
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SignedRequest, verify_request
from protocols.messages import ProblemDocument
from protocols.messages.base import problem_uri
from tests.support.programs import ProgramRunner, problem

URL = "https://example.org/prefix"
NOW = 1790000000
KEY = Identity.generate().signing_key
PUBLIC = KEY.public_key().public_bytes_raw()
CLIENT = "c_9b1d3f5a7c2e4f6a8b0d"


def calls() -> ApiCalls:
    return ApiCalls(URL, None, RetryPolicy(base_seconds=0.0)).enrolled(CLIENT, "hrc_token", KEY)


def signed_at(request: httpx.Request) -> int:
    """Return the time of the signature, after verifying the signature as the server does."""
    path, _, query = request.url.raw_path.decode().partition("?")
    fields = {name: request.headers[name] for name in ("content-digest",) if name in request.headers}
    signed = SignedRequest(request.method, "example.org", path, query, fields)
    return verify_request(PUBLIC, CLIENT, signed, request.headers[SIGNATURE_INPUT], request.headers[SIGNATURE])


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def stale(server_time: int) -> httpx.Response:
    document = ProblemDocument.model_validate(
        {"type": problem_uri("stale-signature"), "title": "stale", "status": 401, "server_time": server_time}
    )
    return httpx.Response(401, content=document.model_dump_json(), headers={"content-type": "application/problem+json"})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock(float(NOW))
    monkeypatch.setattr(drivers, "time", SimpleNamespace(time=found, sleep=lambda seconds: None))
    return found


def test_every_kind_of_request_is_signed_as_sent(clock: Clock) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers["authorization"] == "Bearer hro_token":
            assert SIGNATURE not in request.headers, "it is not a client's"
            return httpx.Response(200, json={"tasks": []})
        seen.append(request)
        signed_at(request)
        return httpx.Response(404, headers={"content-type": "application/problem+json"})

    with SyncDriver(transport=httpx.MockTransport(answer)) as driver:
        with pytest.raises(Exception, match="404"):
            driver.run(calls().current_round("t_1", wait=20.0))
        driver.run(calls().envelope("t_1"))
        for program in (calls().put_envelope("t_1", CLIENT, b"sealed"), calls().contribute("t_1", 1, CLIENT, b"body")):
            with pytest.raises(Exception, match="404"):
                driver.run(program)
        driver.run(ApiCalls(URL, "hro_token").tasks())
    assert [request.url.path for request in seen][0] == "/prefix/v1/tasks/t_1/rounds/current"
    assert [request.method for request in seen] == ["GET", "GET", "PUT", "PUT"]
    assert '"@query"' in seen[0].headers[SIGNATURE_INPUT]
    assert '"content-digest"' in seen[3].headers[SIGNATURE_INPUT]


@pytest.mark.parametrize(
    ("answers", "times"),
    [
        ([httpx.ReadTimeout("no answer"), httpx.ReadTimeout("no answer"), httpx.Response(201)], 3),
        ([stale(NOW + LARGEST_OFFSET + 10)], 1),
        ([stale(NOW - LARGEST_OFFSET - 10)], 1),
        ([stale(NOW + 10 * 365 * 86_400)], 1),
    ],
)
def test_each_attempt_is_signed_anew(clock: Clock, answers: list[httpx.Response | Exception], times: int) -> None:
    """A server cannot move the time by days."""
    left, seen, own = list(answers), list[int](), calls()

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(signed_at(request))
        given = left.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    refused = isinstance(answers[-1], httpx.Response) and answers[-1].is_error
    outcome = pytest.raises(StaleSignature) if refused else nullcontext()
    with SyncDriver(transport=httpx.MockTransport(answer)) as driver, outcome:
        driver.run(own.put_envelope("t_1", CLIENT, b"sealed"))
    assert left == [] and len(seen) == times
    assert own.time.offset == 0
    if not refused:
        assert seen == [NOW + 1, NOW + 2, NOW + 3]


def test_a_stale_signature_after_the_correction_is_the_servers_fault(clock: Clock) -> None:
    """One of two servers behind an address has a clock that is wrong: the request reaches the right one in the end."""
    wrong = iter([True, False, False, True, False])
    seen = list[int]()

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(signed_at(request))
        now = clock.now + (500 if next(wrong) else 0)
        return stale(round(now)) if abs(seen[-1] - now) > 60 else httpx.Response(201)

    own = calls()
    with SyncDriver(transport=httpx.MockTransport(answer)) as driver:
        driver.run(own.put_envelope("t_1", CLIENT, b"sealed"))
    assert len(seen) == 5 and abs(own.time.offset) < 5

    def never(request: httpx.Request) -> httpx.Response:
        """Two servers that take turns, each of which refuses the other's time."""
        return stale(signed_at(request) + 500)

    with SyncDriver(transport=httpx.MockTransport(never)) as driver, pytest.raises(GaveUp, match="6 attempts") as gave:
        driver.run(calls().put_envelope("t_1", CLIENT, b"sealed"))
    assert isinstance(gave.value.last, ClocksDiffer) and gave.value.last.problem.slug == "stale-signature"


def test_a_chunk_is_signed_anew_with_the_servers_time(clock: Clock) -> None:
    clock.now += 7200.0
    statuses: list[int] = []

    def answer(request: Request) -> Response:
        statuses.append(204 if abs(request.signer.time.at(clock()) - NOW) < 60 else 401)
        if statuses[-1] == 401:
            return problem("stale-signature", date="Mon, 21 Sep 2026 14:13:20 GMT")  # NOW; no server_time in it
        if request.method == "HEAD":
            return Response(200, {"upload-offset": "0", "upload-complete": "?0"})
        return problem("round-closed")

    program = (
        ApiCalls(URL, None, chunk_bytes=2).enrolled(CLIENT, "hrc_token", KEY).contribute("t_1", 1, CLIENT, b"body")
    )
    with pytest.raises(Exception, match="409"):
        ProgramRunner(answer).run(program)
    assert statuses == [401, 204, 204]


def test_what_says_nothing_of_the_time_does_not_change_it(clock: Clock) -> None:
    def unreachable(_: Request) -> Response:
        raise ConnectionFailed("PUT", URL, "refused", sent=False)

    answers: list[tuple[Callable[[Request], Response], str]] = [
        (lambda _: problem("bad-signature", date="Mon, 21 Sep 2026 14:13:20 GMT"), "401 The request signature"),
        (lambda _: problem("stale-signature", date="yesterday"), "401 "),
        (unreachable, "no answer from https://.* after 6 attempts: refused"),
    ]
    own = calls()
    for answer, text in answers:
        with pytest.raises(ClientSDKError, match=text):
            ProgramRunner(answer).run(own.put_envelope("t_1", CLIENT, b"sealed"))
        assert own.time.offset == 0


def test_the_repr_of_a_signer_omits_the_key() -> None:
    signer = Signer(CLIENT, KEY, ServerTime())
    assert repr(signer) == f"<Signer {CLIENT}>"
    assert KEY.private_bytes_raw().hex() not in repr(vars(signer)) + repr(calls())
