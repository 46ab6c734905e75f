"""Requests that mean the same get the same answer, in whatever form a client of another author writes them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.api import Api, TestMember, contribute
from tests.support.raw_http import Door, Response, converse
from tests.support.server import AggregatorProcess
from tests.support.signing import raw_head

ORIGIN = "https://app.example.org"


SERVER = {"cors_origins": ORIGIN}


@pytest.fixture(scope="module")
def members(server: AggregatorProcess) -> Iterator[list[TestMember]]:
    """Two members of three of a task: round 1 is complete, and round 2 is collecting, until they contribute."""
    with closing(Api(server.url, server.operator_token)) as api:
        task = api.create_task("equal", cohort=3, rounds=50)
        found = task.begin(3)
        contribute(found, 1, 1.0)
        task.wait_round(2, "collecting")
        yield found


@pytest.fixture(scope="module")
def door(server: AggregatorProcess) -> Door:
    return Door(int(server.url.rsplit(":", 1)[1]))


def answer(door: Door, member: TestMember, path: str, *lines: str, method: str = "GET", body: bytes = b"") -> Response:
    """Return the answer to a signed request with these further lines of headers."""
    head = raw_head(door.url, method, path, member.token, *lines, "Connection: close")
    (found,) = converse(door, head + body).responses
    return found


def places(member: TestMember) -> list[str]:
    rounds = f"{member.task.path}/rounds"
    return [
        member.task.path, f"{rounds}/current", rounds, f"{rounds}/1", f"{rounds}/1/aggregate", f"{rounds}/1/cohort",
        f"{rounds}/2/roster", f"{rounds}/2/inbox", f"{member.task.path}/snapshots/latest",
        f"{member.task.path}/snapshots/1",
    ]  # fmt: skip


def told(response: Response) -> tuple[int, str | None, bytes]:
    """Return what must be equal: a problem has the request's id, and a round the seconds that are left."""
    body = b"" if response.fields.get("content-type") == "application/problem+json" else response.body
    return response.status, response.fields.get("etag"), re.sub(rb'"seconds_left":[0-9.]+', b"", body)


def test_every_answer_of_the_api_varies_by_origin(door: Door, members: list[TestMember]) -> None:
    member = members[0]
    for path in places(member):
        plain, crossed = answer(door, member, path), answer(door, member, path, f"Origin: {ORIGIN}")
        assert told(plain) == told(crossed), path
        assert "origin" in plain.fields["vary"].lower(), path
        assert crossed.fields["access-control-allow-origin"] == ORIGIN
        assert "origin" in crossed.fields["vary"].lower(), path
        etag = plain.fields.get("etag")
        if etag is not None:
            same = answer(door, member, path, f"If-None-Match: {etag}")
            assert (same.status, same.body) == (304, b"")
            assert "origin" in same.fields["vary"].lower(), path
    body = member.contribution(2, 1.0)
    refused = answer(door, member, f"{member.path(1)}", f"Content-Length: {len(body)}", method="PUT", body=body)
    assert refused.status == 400
    assert "origin" in refused.fields["vary"].lower()


@pytest.mark.parametrize("index", [1, 2])
def test_if_none_match_on_two_lines_is_one_list(door: Door, members: list[TestMember], index: int) -> None:
    path = f"{members[0].task.path}/rounds/current"
    etag = answer(door, members[0], path).fields["etag"]
    for lines in ([f'If-None-Match: "other", {etag}'], ['If-None-Match: "other"', f"If-None-Match: {etag}"]):
        ordered = lines if index == 1 else lines[::-1]
        started = time.monotonic()
        assert answer(door, members[0], f"{path}?wait=1", *ordered).status == 304, ordered
        assert time.monotonic() - started >= 0.9, "it is a long poll in both forms"


@pytest.mark.parametrize("line", [[], ["Content-Length: 0"], ["Content-Length: 00"]])
def test_an_empty_body_is_none(door: Door, members: list[TestMember], line: list[str]) -> None:
    member = members[0]
    for path in places(member):
        assert told(answer(door, member, path, *line)) == told(answer(door, member, path)), (path, line)


def test_a_chunked_body_is_refused_whatever_the_method_and_the_path(door: Door, members: list[TestMember]) -> None:
    """Also an empty one: a client that chunks is told so at its first request, not at its first upload."""
    member = members[0]
    for path in places(member):
        found = answer(door, member, path, "Transfer-Encoding: chunked", body=b"0\r\n\r\n")
        assert found.status == 400, path
        assert b"Transfer-Encoding is not accepted" in found.body


def test_one_host_is_needed(door: Door, members: list[TestMember]) -> None:
    member = members[0]
    path, port = f"{member.task.path}/rounds/current", door.port
    head = raw_head(door.url, "GET", path, member.token, "Connection: close")
    host = f"Host: 127.0.0.1:{port}\r\n".encode()
    assert head.count(host) == 1
    forms = {"none": b"", "two": host + host, "two others": host + b"Host: elsewhere\r\n"}
    for name, lines in forms.items():
        for whole in (head, b"GET /healthz HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n"):
            (found,) = converse(door, whole.replace(host, lines)).responses
            assert found.status == 400, (name, whole[:20], found.body)


def test_a_request_to_upgrade_is_an_ordinary_request(door: Door, members: list[TestMember]) -> None:
    """Some HTTP clients offer HTTP/2 on every connection (RFC 9110, 7.8): the offer is not taken."""
    member = members[0]
    body = b'{"reason": "nonsense"}'
    for offer in ("h2c", "websocket", "TLS/1.0"):
        lines = [f"Upgrade: {offer}", "Connection: Upgrade"]
        path = f"{member.task.path}/rounds/current"
        head = raw_head(door.url, "GET", path, member.token, *lines).replace(b": Upgrade\r\n", b": Upgrade, close\r\n")
        (found,) = converse(door, head).responses
        assert found.status == 200, offer
        post = (
            b"POST /v1/enrolments HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: Upgrade, close"
        )
        post += f"\r\nUpgrade: {offer}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        for pieces in ((post + body,), (post, body)):
            (found,) = converse(door, *pieces).responses
            assert found.status == 422, (offer, found.body)
            assert b"reason" in found.body, "the body was read"


def test_a_round_has_one_address(door: Door, members: list[TestMember]) -> None:
    member = members[0]
    rounds = f"{member.task.path}/rounds"
    right = told(answer(door, member, f"{rounds}/1"))
    assert right[0] == 200
    for alias in ("01", "+1", "1.0", "1%20"):
        assert answer(door, member, f"{rounds}/{alias}").status in (404, 422), alias


def test_a_poll_is_woken_by_the_clients_own_contribution(door: Door, members: list[TestMember]) -> None:
    member = members[1]
    path = f"{member.task.path}/rounds/current"
    etag = answer(door, member, path).fields["etag"]
    took: list[tuple[float, Response]] = []

    def poll() -> None:
        started = time.monotonic()
        found = answer(door, member, f"{path}?wait=20", f"If-None-Match: {etag}")
        took.append((time.monotonic() - started, found))

    waiting = threading.Thread(target=poll)
    waiting.start()
    time.sleep(0.5)
    assert member.put(2, member.contribution(2, 1.0)).status_code == 201
    waiting.join(timeout=30)
    ((seconds, found),) = took
    assert found.status == 200
    assert b'"contributed":true' in found.body
    assert seconds < 5.0
