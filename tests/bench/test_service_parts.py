"""The load generator of bench/service.py, its bare server, and a small round whose sum is checked."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator
from queue import Queue
from typing import ClassVar

import pytest

from bench.bare_application import bare_server
from bench.service import one_round
from bench.service_load import Answer, Run, closed_loop, request_bytes


class _Echo(asyncio.Protocol):
    """Answer each request with its path in two parts; answer /same with 304, and close the connection on /bye."""

    open: ClassVar[set[asyncio.BaseTransport]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.open.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        assert isinstance(self._transport, asyncio.Transport)
        path = data.split(b" ", 2)[1]
        if path == b"/bye":
            self._transport.close()
        elif path == b"/same":
            self._transport.write(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n")
        else:
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(path)
            self._transport.write(head + path[:1])
            self._transport.write(path[1:])


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server in a thread of its own."""
    ports: Queue[int] = Queue()
    stop = threading.Event()

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0)
        async with server:
            ports.put(server.sockets[0].getsockname()[1])
            await asyncio.to_thread(stop.wait)
            while _Echo.open:  # wait until every connection is closed
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    yield ports.get(timeout=30)
    stop.set()
    thread.join()


def test_each_request_is_sent_once_and_its_answer_reported(port: int) -> None:
    answers: list[Answer] = []
    calls = [request_bytes("GET", f"/{index}", {}) for index in range(50)]
    run = closed_loop(port, calls, 3, keep=answers.append).expect(200)
    assert sorted((answer.index, answer.body.decode()) for answer in answers) == [(n, f"/{n}") for n in range(50)]
    assert len(run.latencies) == run.statuses[200] == 50
    assert closed_loop(port, [], 3).latencies == []


def test_a_304_answer_may_have_a_content_length(port: int) -> None:
    assert closed_loop(port, [request_bytes("GET", "/same", {})] * 4, 2).statuses == {304: 4}


def test_an_unexpected_status_or_a_closed_connection_ends_the_benchmark(port: int) -> None:
    with pytest.raises(SystemExit, match="304"):
        closed_loop(port, [request_bytes("GET", "/same", {})], 1).expect(200)
    with pytest.raises(ConnectionError):
        closed_loop(port, [request_bytes("GET", "/bye", {})], 1)


def test_a_proxys_field_is_added_to_each_request() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(3)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(head + body), head + body))
        await reader.read()  # the end of the connection
        writer.close()
        await writer.wait_closed()

    answers: list[Answer] = []

    async def serve() -> None:
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            call = request_bytes("PUT", "/", {}, b"abc")
            await asyncio.to_thread(closed_loop, port, [call], 1, answers.append, forwarded=True)

    asyncio.run(serve())
    (answer,) = answers
    assert answer.body.startswith(b"PUT / HTTP/1.1\r\n")
    assert answer.body.endswith(b"content-length: 3\r\nx-forwarded-for: 192.0.2.1\r\n\r\nabc")


def test_the_bare_server_stores_or_discards_bodies() -> None:
    bodies = [bytes([number]) * 300_000 for number in range(3)]
    answers: list[Answer] = []
    with bare_server() as port:
        for target in ("/discarded", "/stored"):
            calls = [request_bytes("PUT", target, {}, body) for body in bodies]
            closed_loop(port, calls, 2, keep=answers.append).expect(201)
    found = [json.loads(answer.body) for answer in answers]
    assert found[:3] == [300_000] * 3
    assert set(found[3:]) == {hashlib.sha256(body).hexdigest() for body in bodies}


def test_rate_and_percentiles() -> None:
    run = Run(seconds=2.0, latencies=[float(n) for n in range(100, 0, -1)])
    assert (run.rate, run.percentile(0.5), run.percentile(0.95), run.percentile(0.99)) == (50.0, 51.0, 96.0, 100.0)


@pytest.mark.parametrize("forwarded", [False, True])
def test_a_round_ends_with_the_right_sum(forwarded: bool) -> None:
    figures = one_round(12, forwarded)
    assert figures["exact"] is True
    assert (figures["clients"], figures["survivors"]) == (12, 12)
