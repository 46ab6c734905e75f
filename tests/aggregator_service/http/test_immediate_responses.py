"""Responses that the HTTP protocol writes without the application: the same bytes, in order, counted and logged."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from aggregator_service.http.fast_responses import ImmediateResponses
from aggregator_service.http.short_protocol import ShortHttp
from tests.support.api import Api, TestMember
from tests.support.connections import close_both_ends
from tests.support.server import AggregatorProcess, running_aggregator

CHANGING = {"date", "x-request-id"}
READY = b"GET /ready HTTP/1.1\r\nHost: test\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nHost: test\r\n\r\n"


class Ready:
    """Has a response to /ready and to no other path."""

    def response(self, scope: Any, server_headers: Any) -> bytes | None:
        assert (scope["method"], scope["query_string"], scope["raw_path"]) == ("GET", b"", scope["path"].encode())
        assert all(isinstance(name, bytes) for name, _ in server_headers)
        return b"HTTP/1.1 304 Not Modified\r\n\r\n" if scope["path"] == "/ready" else None


class Quick(ShortHttp):
    immediate = cast(ImmediateResponses, Ready())
    head_seconds = 0.3


async def by_application(scope: Any, _receive: Any, send: Any) -> None:
    if scope["path"] == "/slow":
        await asyncio.sleep(0.05)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def statuses(*chunks: bytes, wanted: int) -> list[bytes]:
    """The statuses of the first `wanted` responses on one connection to a new server."""
    config = uvicorn.Config(by_application, http=Quick, log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    made = await loop.create_server(lambda: Quick(config=config, server_state=state, app_state={}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*made.sockets[0].getsockname())
    received = b""
    try:
        for chunk in chunks:
            writer.write(chunk)
            await asyncio.sleep(0.01)
        while len(found := re.findall(rb"HTTP/1\.1 (\d+)", received)) < wanted:
            piece = await asyncio.wait_for(reader.read(4096), 10)
            if not piece:
                return found
            received += piece
        return found
    finally:
        await close_both_ends(writer, made, state)


def test_a_ready_response_needs_no_application() -> None:
    assert asyncio.run(statuses(READY, READY, wanted=2)) == [b"304", b"304"]


def test_both_ways_alternate_on_one_connection() -> None:
    assert asyncio.run(statuses(READY, SLOW, *[b""] * 15, READY, wanted=3)) == [b"304", b"200", b"304"]


def test_a_ready_response_does_not_overtake_an_earlier_request() -> None:
    assert asyncio.run(statuses(SLOW + READY, wanted=2)) == [b"200", b"200"]
    assert asyncio.run(statuses(READY + SLOW + READY + READY, wanted=4)) == [b"304", b"200", b"200", b"200"]


@pytest.mark.parametrize(
    "request_",
    [
        READY.replace(b"GET", b"HEAD"),
        READY.replace(b"GET", b"DELETE"),
        READY.replace(b"HTTP/1.1", b"HTTP/1.0"),
        READY.replace(b"Host: test", b"Host: test\r\nConnection: close"),
    ],
)
def test_other_requests_go_to_the_application(request_: bytes) -> None:
    assert asyncio.run(statuses(request_, wanted=1)) == [b"200"]


def test_a_request_that_comes_in_pieces_is_answered_within_its_time() -> None:
    assert asyncio.run(statuses(READY[:9], READY[9:30], READY[30:], wanted=1)) == [b"304"]
    assert asyncio.run(statuses(READY, READY[:9], wanted=2)) == [b"304"], "closed after head_seconds"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("immediate") / "data", hsts_seconds=60) as process:
        yield process


@pytest.fixture
def member(api: Api) -> TestMember:
    members = api.create_task(name=f"task-{uuid4()}", cohort=2, min_clients=2).enrol(2)
    members[0].task.wait_round(1, "collecting")
    return members[0]


def get(member: TestMember, path: str, **headers: str) -> httpx.Response:
    return member.task.api.http.get(f"{member.task.path}{path}", headers={**member.auth, **headers})


@pytest.mark.parametrize("path", ["", "/members/me/ledger", "/rounds/current"])
@pytest.mark.parametrize("tagged", [False, True])
def test_the_response_is_that_of_the_application(member: TestMember, path: str, tagged: bool) -> None:
    headers = {"If-None-Match": get(member, path).headers["etag"]} if tagged else {}
    answers = [get(member, path, **headers) for _ in range(5)]
    by_route = get(member, path, Origin="https://app.example", **headers)  # passed on to the application
    assert by_route.status_code == (304 if tagged else 200)
    for answer in answers:
        assert answer.status_code == by_route.status_code
        assert answer.headers.keys() == by_route.headers.keys()
        changing = {*CHANGING, "content-length"} if path == "/rounds/current" else CHANGING  # `seconds_left` passes
        same = answer.headers.keys() - changing
        assert {name: answer.headers[name] for name in same} == {name: by_route.headers[name] for name in same}
        assert path == "/rounds/current" or answer.content == by_route.content
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)
    assert by_route.headers["strict-transport-security"] == "max-age=60"


def test_a_request_id_is_repeated_and_logged_and_the_request_counted(
    server: AggregatorProcess, member: TestMember
) -> None:
    def counted() -> float:
        text = member.task.api.http.get("/metrics", headers=member.task.api.operator).text
        found = re.search(r'hushrec_requests_total\{method="GET",route="/v1/tasks/\{task\}",status="200"\} (\S+)', text)
        return 0.0 if found is None else float(found[1])

    get(member, "")
    before = counted()
    for number in range(10):
        assert get(member, "", **{"X-Request-Id": f"mine-{number}"}).headers["x-request-id"] == f"mine-{number}"
    assert counted() == before + 10
    end = time.monotonic() + 10
    while '"request": "mine-9"' not in server.log_path.read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
