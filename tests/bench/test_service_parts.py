"""The load generator of bench/service.py, and a small round whose sum is checked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from queue import Queue
from typing import ClassVar

import pytest

from bench.service_parts.round10k import one_round
from bench.service_parts.wire import Answer, Run, at_rate, closed_loop, request_bytes


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


def test_latencies_count_from_when_a_request_was_due(port: int) -> None:
    run = at_rate(port, [request_bytes("GET", "/", {})] * 40, 2, rate=200.0)
    assert len(run.latencies) == 40
    assert run.seconds >= 39 / 200.0


def test_an_unexpected_status_or_a_closed_connection_ends_the_benchmark(port: int) -> None:
    with pytest.raises(SystemExit, match="304"):
        closed_loop(port, [request_bytes("GET", "/same", {})], 1).expect(200)
    with pytest.raises(ConnectionError):
        closed_loop(port, [request_bytes("GET", "/bye", {})], 1)


def test_rate_and_percentiles() -> None:
    run = Run(seconds=2.0, latencies=[float(n) for n in range(100, 0, -1)])
    assert (run.rate, run.percentile(0.5), run.percentile(0.95), run.percentile(0.99)) == (50.0, 51.0, 96.0, 100.0)


def test_a_round_ends_with_the_right_sum() -> None:
    figures = one_round(12)
    assert figures["exact"] is True
    assert (figures["clients"], figures["survivors"]) == (12, 12)
