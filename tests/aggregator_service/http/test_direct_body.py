"""Direct bodies: every byte reaches the right request, and the connection serves the next request."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from starlette.requests import Request
from uvicorn.server import ServerState

from aggregator_service.http.bounded_protocol import BoundedHttp
from aggregator_service.problems import Problem
from aggregator_service.settings import Settings
from aggregator_service.uploads.body_reader import BodyReader, open_body
from tests.support.certificates import Authority

BODY = os.urandom(3 * 2**20 + 17)
Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest) -> Loop:
    return request.param  # type: ignore[no-any-return]


class Reader:
    """An application that reads bodies in buffers of `step` bytes, and stops after `most`."""

    def __init__(self, step: int = 2**20, most: int = 2**30, idle: float = 5.0) -> None:
        self._step, self._most = step, most
        self._settings = Settings(body_idle_seconds=idle)
        self.direct = list[bool]()
        self.problems = list[str]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        length = int(request.headers.get("content-length", 0))
        answer = b"none"
        if length:
            try:
                answer = await self._read(request, length)
            except Problem as problem:
                self.problems.append(problem.slug)
                while (await receive()).get("more_body"):  # as `BodyGuard` does
                    pass
                answer = problem.slug.encode()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]}
        )
        await send({"type": "http.response.body", "body": answer})

    async def _read(self, request: Request, length: int) -> bytes:
        state = hashlib.sha256()
        async with open_body(request, self._settings, length) as body:
            assert isinstance(body, BodyReader)
            self.direct.append(body._direct is not None)
            view = memoryview(bytearray(self._step))
            while body.received < length:
                if body.received >= self._most:
                    raise Problem("conflict", "enough of it")
                part = view[: length - body.received]
                await body.read_into(part)
                state.update(part)
        return state.hexdigest().encode()


@dataclass(frozen=True)
class Ends:
    """The TLS contexts of server and client; None without TLS."""

    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None


@pytest.fixture(params=["plain", "tls"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Ends:
    if request.param == "plain":
        return Ends()
    authority = Authority(tmp_path)
    pair = authority.sign("server", server=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(pair.certificate, pair.key)
    return Ends(server, ssl.create_default_context(cafile=str(authority.certificate)))


@asynccontextmanager
async def connected(
    app: Reader, ends: Ends | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Start a server and connect to it."""
    ends = ends or Ends()
    config = uvicorn.Config(app, http=BoundedHttp, log_config=None)  # type: ignore[arg-type]
    config.load()
    state, running = ServerState(), asyncio.get_running_loop()
    made = await running.create_server(
        lambda: BoundedHttp(config=config, server_state=state, app_state={}), "127.0.0.1", 0, ssl=ends.server
    )
    reader, writer = await asyncio.open_connection(*made.sockets[0].getsockname(), ssl=ends.client)
    try:
        yield reader, writer
    finally:
        writer.close()
        made.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0.01)


def put(body: bytes, *headers: str) -> bytes:
    head = ["PUT / HTTP/1.1", "Host: test", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


async def answered(reader: asyncio.StreamReader) -> str:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode().lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    return (await asyncio.wait_for(reader.readexactly(length), 10)).decode()


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def run(loop: Loop, work: Any) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work)


@pytest.mark.parametrize("step", [1000, 2**16, 2**22])
def test_two_requests_in_one_packet(loop: Loop, step: int, ends: Ends) -> None:
    """No byte of the second request is read as part of the first body."""
    app = Reader(step if step > 1000 else 99_991)

    async def talk() -> None:
        async with connected(app, ends) as (reader, writer):
            writer.write(put(BODY) + put(b"short") + put(BODY[:-9]) + b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
            expected = [digest(BODY), digest(b"short"), digest(BODY[:-9]), "none"]
            assert [await answered(reader) for _ in expected] == expected

    run(loop, talk())
    assert app.direct[0] and not app.direct[1]


def test_a_request_in_small_packets(loop: Loop) -> None:
    async def talk() -> None:
        async with connected(app) as (reader, writer):
            sent = put(BODY[:200_000])
            cuts = [0, 10, 60, 5000, 70_000, 70_001, len(sent)]
            for start, end in pairwise(cuts):
                writer.write(sent[start:end])
                await asyncio.sleep(0.02)
            assert await answered(reader) == digest(BODY[:200_000])

    app = Reader()
    run(loop, talk())
    assert app.direct == [True]


def test_a_sender_that_expects_100_continue(loop: Loop) -> None:
    async def talk() -> None:
        async with connected(app) as (reader, writer):
            head = put(BODY, "Expect: 100-continue")[: -len(BODY)]
            writer.write(head)
            assert b" 100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            writer.write(BODY)
            assert await answered(reader) == digest(BODY)

    app = Reader()
    run(loop, talk())
    assert app.direct == [False]


def test_an_unread_body_is_discarded_and_the_next_request_answered(loop: Loop, ends: Ends) -> None:
    async def talk() -> None:
        async with connected(app, ends) as (reader, writer):
            writer.write(put(BODY) + put(BODY[:100]))
            assert [await answered(reader), await answered(reader)] == ["conflict", digest(BODY[:100])]

    app = Reader(step=2**17, most=2**18)
    run(loop, talk())
    assert app.direct[0]


def test_a_connection_is_given_back_only_once(loop: Loop) -> None:
    """A second call after the end of the body must not affect the next request on the connection."""

    class LateAbandoningReader(Reader):
        async def _read(self, request: Request, length: int) -> bytes:
            async with open_body(request, self._settings, length) as body:
                await body.read_into(memoryview(bytearray(length)))
            writer_of_next.set()
            await asyncio.sleep(0.1)  # half of the next request's headers has arrived
            body.abandon()
            return b"taken"

    app = LateAbandoningReader()
    writer_of_next = asyncio.Event()

    async def talk() -> None:
        async with connected(app) as (reader, writer):
            writer.write(put(BODY))
            await writer_of_next.wait()
            writer.write(b"GET / HT")
            await asyncio.sleep(0.2)
            writer.write(b"TP/1.1\r\nHost: test\r\n\r\n")
            assert [await answered(reader), await answered(reader)] == ["taken", "none"]

    run(loop, talk())


def test_a_sender_that_closes_the_connection(loop: Loop) -> None:
    async def talk() -> None:
        async with connected(app) as (_, writer):
            writer.write(put(BODY)[: 2**20])
            await writer.drain()
            writer.close()
            await asyncio.sleep(0.2)

    app = Reader()
    run(loop, talk())
    assert app.problems == ["body-too-short"]


def test_a_silent_sender_times_out_and_a_slow_one_does_not(loop: Loop) -> None:
    app = Reader(idle=0.4)

    async def talk() -> None:
        async with connected(app) as (_, writer):
            writer.write(put(BODY)[: 2**20])
            await asyncio.sleep(1.0)
        assert app.problems == ["upload-timeout"]
        async with connected(app) as (reader, writer):
            sent = put(BODY[:400_000])
            for at in range(0, len(sent), 50_000):
                writer.write(sent[at : at + 50_000])
                await asyncio.sleep(0.15)
            assert await answered(reader) == digest(BODY[:400_000])

    run(loop, talk())
    assert app.direct == [True, True]
