"""Raw requests over a socket: any bytes, and every answer to them."""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tests.fuzz.world import World

__all__ = ["answers_to", "head", "read_answers"]

_SECONDS: Final = 20.0


def head(method: str, target: str, *lines: str, version: str = "HTTP/1.1") -> bytes:
    """Return a request line and headers as bytes, unchecked."""
    return "\r\n".join([f"{method} {target} {version}", "Host: test", *lines, "", ""]).encode("latin-1")


_LAST: Final = head("GET", "/healthz", "Connection: close")
"""Sent last: its answer is the last one, or there is no answer any more."""


def exchange(world: World, *chunks: bytes) -> bytes:
    """Send chunks over a connection of their own; everything that comes back until the server hangs up.

    They are sent at once: bytes that arrive after the server has closed the connection would discard its answer."""
    received = b""
    place = "127.0.0.1", world.server.port
    with socket.create_connection(place, timeout=_SECONDS) as connection, suppress(ConnectionError):
        connection.sendall(b"".join((*chunks, _LAST)))
        while piece := connection.recv(65536):
            received += piece
    return received


def read_answers(received: bytes, methods: list[str]) -> Iterator[tuple[int, dict[str, str], bytes]]:
    """Yield status, headers and body of each answer in order; `AssertionError` for anything else between them."""
    stream = io.BytesIO(received)
    for method in methods:
        if stream.tell() == len(received):
            return
        answer = http.client.HTTPResponse(_Kept(stream), method=method)  # type: ignore[arg-type]
        answer.begin()
        # A request that is refused below the application may have had any method.
        refused = answer.status == 400 and answer.getheader("connection") == "close"
        body = stream.read() if refused and method == "HEAD" else answer.read()
        yield answer.status, {name.lower(): value for name, value in answer.getheaders()}, body
    assert stream.tell() == len(received), f"more than was asked for: {received[stream.tell() :][:200]!r}"


class _Kept:
    """A stream that stays open at its position after an answer was read."""

    def __init__(self, stream: io.BytesIO) -> None:
        self._stream = stream

    def makefile(self, _mode: str) -> _Kept:
        return self

    def readline(self, limit: int = -1) -> bytes:
        return self._stream.readline(limit)

    def read(self, amount: int | None = None) -> bytes:
        return self._stream.read(amount)

    def readinto(self, buffer: bytearray) -> int:
        return self._stream.readinto(buffer)

    def flush(self) -> None:
        return

    def close(self) -> None:
        return


def answers_to(world: World, method: str, target: str, *chunks: bytes) -> list[int]:
    """Send requests, check all answers and return their statuses; no answer at all is a failure."""
    world.before()
    statuses = []
    for status, headers, body in read_answers(exchange(world, *chunks), [method] * 8):
        if status == 400 and body == b"Invalid HTTP request received.":  # by uvicorn, below the application
            statuses.append(status)
            continue
        last = status == 200 and body == b'{"status":"ok"}'
        asked = ("GET", "/healthz") if last else (method if method != "HEAD" or not body else "GET", target)
        answer = world.answer_of(asked[0], f"http://test{asked[1]}", {}, b"", status, headers, body)
        answer.who = None
        world.after(answer)
        if not last or target.startswith("/healthz"):
            statuses.append(status)
    return statuses
