"""Bad input is answered with a problem document and leaves the round intact: its sum is exact."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from protocols.messages.base import PROBLEM_TYPES, problem_uri
from tests.support.api import Api, TestMember, digest_field
from tests.support.proxies import Door, converse, responses_in
from tests.support.replicas import wait_until
from tests.support.server import AggregatorProcess
from tests.support.signing import raw_head

PRIMES = (101.0, 103.0, 107.0, 109.0)
SERVER = {"body_idle_seconds": 0.6}


@pytest.fixture(scope="module")
def members(server: AggregatorProcess) -> Iterator[list[TestMember]]:
    """The members of a task in round 1. After all tests, the round must complete with the exact sum."""
    with closing(Api.of(server)) as api:
        task, made = api.begin(len(PRIMES))
        yield made
        for member, prime in zip(made, PRIMES, strict=True):
            assert member.put(1, member.contribution(1, prime)).status_code in (200, 201)
        task.assert_sum(1, PRIMES)


def problem(answer: httpx.Response, slug: str) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert body["type"] == problem_uri(slug), body
    assert (answer.status_code, body["title"]) == PROBLEM_TYPES[slug]
    assert body["status"] == answer.status_code
    assert body["detail"]
    return body


def refused(server: AggregatorProcess, *chunks: bytes) -> tuple[int, str]:
    """Send bytes that are refused, after which the connection is closed; return status and problem type."""
    (response,) = converse(Door(server.port), *chunks).responses
    assert response.fields["connection"] == "close"
    return response.status, json.loads(response.body)["type"]


def announced(member: TestMember) -> tuple[bytes, bytes]:
    """The head of an upload, and its body."""
    body = member.contribution(1, 5.0)
    lines = f"Content-Length: {len(body)}", f"Content-Digest: {digest_field(body)}"
    return raw_head(str(member.task.api.http.base_url), "PUT", member.path(1), member.token, *lines), body


def test_a_bad_contribution_is_refused(members: list[TestMember]) -> None:
    member = members[0]
    good = member.contribution(1, 5.0)
    for body, slug in ((good[:-1], "body-too-short"), (good + bytes(1), "body-too-long"), (good * 99, "body-too-long")):
        assert problem(member.put(1, body), slug)["expected_bytes"] == len(good)
    problem(member.put(1, b""), "body-too-short")
    wrong = digest_field(b"something else")
    for digest in (wrong, "", "sha-256=short", "sha-512=:AAAA:", "md5=:1B2M2Y8AsgTpgAmY7PhCfg==:"):
        problem(member.put(1, good, {"Content-Digest": digest}), "bad-digest")
    problem(member.put(1, b"\xff" * len(good)), "bad-contribution")  # values that must not enter the sum
    problem(member.put(1, good, {"Content-Type": "text/plain"}), "unsupported-media-type")
    (outside,) = member.task.enrol(1)
    problem(outside.put(1, outside.contribution(1, 5.0)), "not-in-cohort")


def test_a_round_that_does_not_exist_or_has_another_address_is_refused(members: list[TestMember]) -> None:
    member = members[0]
    for number in (2, 999_999):
        problem(member.put(number, member.contribution(1, 5.0)), "not-found")
    for text in ("0", "-1", "one", "9" * 40, "01", "+1", "1.0", "1%20"):
        path = member.path(1).replace("/rounds/1/", f"/rounds/{text}/")
        answer = member.task.api.put(path, b"x", member.auth)
        assert text not in problem(answer, "invalid-parameters")["detail"]


def test_a_body_that_breaks_off_or_stops_halfway(server: AggregatorProcess, members: list[TestMember]) -> None:
    member = members[0]
    start, body = announced(member)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(start + body[:-1])
    assert refused(server, start + body[: len(body) // 2]) == (408, "urn:hushrec:problem:upload-timeout")
    assert member.offset() == 0
    json_start = b"POST /v1/enrolments HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n"
    assert refused(server, json_start, b"   ")[0] == 408
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(json_start)
    # a client that leaves before its body is complete is no fault of the server
    wait_until(lambda: '"route": "/v1/enrolments", "status": 400' in server.log(), "its request is logged")


def test_a_slow_body_times_out(server: AggregatorProcess, members: list[TestMember]) -> None:
    """The pauses are short, but the whole body takes too long."""
    start, body = announced(members[0])
    with Door(server.port).connection() as connection:
        connection.sendall(start)
        connection.settimeout(0.2)
        answer = b""
        for index in range(len(body)):
            try:
                answer = connection.recv(4096)
                break
            except TimeoutError:
                connection.sendall(body[index : index + 1])
        connection.settimeout(20)
        while more := connection.recv(4096):
            answer += more
    (response,) = responses_in(answer).responses
    assert response.status == 408
    assert b"urn:hushrec:problem:upload-timeout" in response.body


def test_fields_are_named_and_input_is_not_echoed(api: Api) -> None:
    secret = "my-hidden-invitation"
    body = {"invitation": secret, "identity_key": secret, "X-Strange <b>": 1}
    answer = api.http.post("/v1/enrolments", json=body)
    document = problem(answer, "invalid-parameters")
    assert {"body.identity_key", "body.sealing_key", "body.signature"} <= {e["field"] for e in document["errors"]}
    assert secret not in answer.text
    assert "<b>" not in answer.text


def test_wrong_tokens_are_refused(members: list[TestMember], api: Api) -> None:
    member, other = members[:2]
    body = member.contribution(1, 5.0)
    basic = member.put(1, body, {"Authorization": "Basic aGVsbG86d29ybGQ="})
    assert basic.headers["www-authenticate"].startswith("Bearer")
    problem(basic, "unauthenticated")
    for auth in (other.auth, api.operator):
        problem(member.put(1, body, auth), "forbidden")
    token = api.operator["Authorization"]
    for second in (token, "Bearer hro_another"):  # a proxy and the server could each use a different token
        twice = [("Authorization", token), ("Authorization", second)]
        problem(api.http.get(member.task.path, headers=twice), "unauthenticated")


def test_resuming_needs_the_right_offset_and_the_right_bytes(members: list[TestMember]) -> None:
    member = members[-1]
    body = member.contribution(1, PRIMES[-1])
    assert member.piece(0, body[:30]).status_code == 204
    mismatch = member.piece(31, body[31:40])
    assert problem(mismatch, "offset-mismatch")["expected-offset"] == 30
    assert mismatch.headers["upload-offset"] == "30"
    for piece, whole, changes, why in (
        (body[30:40], None, {"Content_Digest": digest_field(b"no")}, "bad-digest"),
        (body[30:40], body, {}, "body-too-short"),
        (b"x", None, {"Upload_Complete": "maybe"}, "bad-request"),
        (b"x", None, {"Upload_Offset": "-1"}, "bad-request"),
    ):
        problem(member.piece(30, piece, whole, **changes), why)
    assert member.offset() == 30
    # an upload with a wrong digest starts again from offset 0
    problem(member.piece(30, bytes(len(body) - 30), body), "bad-digest")
    assert member.offset() == 0
    assert member.piece(0, body[:30]).status_code == 204
    assert [member.piece(30, body[30:], body).status_code for _ in range(2)] == [201, 200]
    done = member.task.api.http.head(member.path(1), headers=member.auth)
    assert (done.headers["upload-offset"], done.headers["upload-complete"]) == (str(len(body)), "?1")
