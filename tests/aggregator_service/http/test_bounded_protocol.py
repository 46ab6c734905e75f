"""Limits on request headers: oversized and slow headers close the connection, and memory stays bounded."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from aggregator_service.http.bounded_protocol import BoundedHttp
from tests.support.cluster import wait_until
from tests.support.connections import close_both_ends
from tests.support.server import running_aggregator

REQUEST = b"GET / HTTP/1.1\r\nHost: test\r\n"


class Impatient(BoundedHttp):
    head_bytes = 4096
    head_seconds = 0.3


async def answer(_scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def talk(*chunks: bytes, pause: float = 0.0, until: bytes = b"ok") -> bytes:
    """Send chunks to a new server; return all that it sends until it closes the connection or stays silent."""
    config = uvicorn.Config(answer, http=Impatient, log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    made = await loop.create_server(lambda: Impatient(config=config, server_state=state, app_state={}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*made.sockets[0].getsockname())
    try:
        for chunk in chunks:
            writer.write(chunk)
            await asyncio.sleep(pause)
        received = b""
        while piece := await asyncio.wait_for(reader.read(4096), 10):
            received += piece
            if received.endswith(until):
                return received
        return received
    except ConnectionError:
        return b"reset"
    finally:
        await close_both_ends(writer, made, state)


@pytest.mark.parametrize("endless", [b"X-Long: " + b"a" * 8000, b"X-Many: a\r\n" * 800])
def test_endless_headers_close_the_connection(endless: bytes) -> None:
    received = asyncio.run(talk(REQUEST, endless))
    assert received.startswith(b"HTTP/1.1 400") or received == b"reset"


@pytest.mark.parametrize("chunks", [(), (REQUEST,), (b"G",)])
def test_a_connection_without_a_complete_request_is_closed(chunks: tuple[bytes, ...]) -> None:
    assert asyncio.run(talk(*chunks)) == b""


def test_long_headers_in_one_packet_are_refused() -> None:
    received = asyncio.run(talk(REQUEST + b"X-Long: " + b"a" * 8000 + b"\r\n\r\n"))
    assert received.startswith(b"HTTP/1.1 400")
    assert b"the request headers are too long" in received


def test_malformed_http_gets_a_problem_document() -> None:
    received = asyncio.run(talk(b"GET / HTTP/1.1\r\nHost : test\r\n\r\n", b"a" * 4000))
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"content-type: application/problem+json" in head
    assert b"x-content-type-options: nosniff" in head
    assert json.loads(body)["type"] == "urn:hushrec:problem:bad-request"


def test_a_request_to_upgrade_and_the_next_request_are_answered_in_http_1_1() -> None:
    upgrade = REQUEST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    received = asyncio.run(talk(upgrade + REQUEST + b"Connection: close\r\n\r\n", until=b"nothing"))
    assert received.count(b"HTTP/1.1 200") == 2


def test_a_slow_body_is_not_limited_by_the_time_for_headers() -> None:
    head = REQUEST + b"Content-Length: 9000\r\n\r\n"
    received = asyncio.run(talk(head, b"a" * 4500, b"a" * 4500, pause=0.2))
    assert received.startswith(b"HTTP/1.1 200")


def test_the_server_limits_request_headers(tmp_path: Path) -> None:
    with (
        running_aggregator(tmp_path / "data") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection,
        suppress(ConnectionError),
    ):  # the server closes the connection while the client is sending
        connection.sendall(REQUEST + b"X-Long: " + b"a" * 1_000_000)
        assert connection.recv(4096).startswith(b"HTTP/1.1 400")


def test_malformed_bytes_after_a_request_end_the_connection(tmp_path: Path) -> None:
    """In one packet: the 400 ends the connection, and no other response follows it."""
    with running_aggregator(tmp_path / "data") as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n" * 2 + b"\0no HTTP\r\n\r\n")
            received = b""
            while piece := connection.recv(4096):
                received += piece
        assert received.startswith(b"HTTP/1.1 400")
        assert b"HTTP/1.1 200" not in received
        server.stop()
        assert "Traceback" not in server.log()


@contextmanager
def flood(url: str, count: int) -> Iterator[list[bytes]]:
    """Open connections and send one request over each; yield the answers while the connections are open."""
    host, _, port = url.removeprefix("http://").partition(":")
    with ExitStack() as stack:
        answers = []
        for _ in range(count):
            answers.append(status_of(stack.enter_context(socket.create_connection((host, int(port)), 30))))
        yield answers


def status_of(connection: socket.socket) -> bytes:
    """Send a request; return the status and the headers of the answer, or nothing when the connection was reset."""
    received = b""
    with suppress(ConnectionError):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n")
        while not (received.partition(b"\r\n\r\n")[2].endswith(b"}")) and (piece := connection.recv(4096)):
            received += piece
    return received.partition(b"\r\n\r\n")[0].lower()


@pytest.mark.parametrize("setting", ["max_connections", "max_connections_per_address"])
def test_attack_more_sockets_than_the_server_allows(setting: str, tmp_path: Path) -> None:
    """Those who are connected are served, the others get 503 or a reset; without a limit all are served."""
    limit, more = 20, 100
    with running_aggregator(tmp_path / "limited", **{setting: limit}) as server:
        place = server.url.removeprefix("http://").rpartition(":")
        with socket.create_connection((place[0], int(place[2])), 30) as connected:
            assert status_of(connected).startswith(b"http/1.1 200")
            with flood(server.url, limit + more) as answers:
                refused = [found for found in answers if found.startswith(b"http/1.1 503")]
                # the process that started the server may still have a connection of its own
                assert limit - 4 <= sum(found.startswith(b"http/1.1 200") for found in answers) <= limit - 1
                assert refused
                assert all(b"retry-after: 5" in found and b"application/problem+json" in found for found in refused)
                assert status_of(connected).startswith(b"http/1.1 200")

        def free() -> bool:
            with flood(server.url, 1) as (answer,):
                return answer.startswith(b"http/1.1 200")

        wait_until("connections are free again", free, 30)
    with running_aggregator(tmp_path / "open", **{setting: 0}) as server, flood(server.url, limit + more) as answers:
        assert all(found.startswith(b"http/1.1 200") for found in answers)
