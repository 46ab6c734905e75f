"""A cheap load generator: requests that were made beforehand, over a fixed number of persistent connections.

It implements the part of HTTP/1.1 that our own servers use: every answer has a Content-Length, or no body (204, 304). A
client library creates dozens of objects per request, so the measurement would include the library's cost.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, cast

import uvloop

__all__ = ["AUTHORITY", "Answer", "Call", "Run", "closed_loop", "request_bytes"]

AUTHORITY: Final = "127.0.0.1"
"""Host of every request, whatever the port; the server is told that it is its address."""
_END: Final = b"\r\n\r\n"
_NO_BODY: Final = (204, 304)
_TIMEOUT_SECONDS: Final = 900.0


@dataclass(frozen=True)
class Call:
    """The bytes of a request. `body` is separate, so that several requests can share it."""

    head: bytes
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """The answer to request `index`. seconds: time since the request was due."""

    index: int
    status: int
    headers: bytes
    body: bytes
    seconds: float


@dataclass
class Run:
    """The result of a load.

    seconds: wall time from the first request to the last answer. latencies: seconds of every answer. statuses: number
    of answers by status code.
    """

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """The latency in seconds that a share of `share` of the answers does not exceed."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def expect(self, *statuses: int) -> Self:
        """Return self; raise `SystemExit` if an answer had a status not in `statuses`."""
        if set(self.statuses) - set(statuses):
            raise SystemExit(f"the server answered {dict(self.statuses)}, expected {statuses}")
        return self


def request_bytes(method: str, target: str, headers: dict[str, str], body: bytes = b"") -> Call:
    """The bytes of a request to a server on the loopback address."""
    lines = [
        f"{method} {target} HTTP/1.1",
        f"host: {AUTHORITY}",
        *(f"{name}: {text}" for name, text in headers.items()),
    ]
    if body or method in ("POST", "PUT"):
        lines.append(f"content-length: {len(body)}")
    return Call("\r\n".join(lines).encode() + _END, body)


def _forward(call: Call) -> Call:
    """The same request as a proxy passes it on."""
    return Call(call.head.removesuffix(b"\r\n") + b"x-forwarded-for: 192.0.2.1" + _END, call.body)


class _Connection(asyncio.Protocol):
    """One connection with at most one open request. answered: called with every answer. broken: called on a failure."""

    def __init__(self, answered: Callable[[_Connection, Answer], None], broken: Callable[[str], None]) -> None:
        self._answered, self._broken = answered, broken
        self._taken = bytearray()
        self._index, self._due = -1, 0.0
        self.closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transport does not inherit from asyncio.Transport

    def send(self, index: int, call: Call, due: float) -> None:
        """Send request `index`; its latency counts from `due`."""
        self._index, self._due = index, due
        self._transport.write(call.head)
        if call.body:
            self._transport.write(call.body)

    def data_received(self, data: bytes) -> None:
        self._taken += data
        end = self._taken.find(_END)
        if end < 0:
            return
        status = int(self._taken[9:12])
        head = bytes(self._taken[:end]).lower()
        start = head.find(b"\r\ncontent-length:")
        length = 0
        if start >= 0 and status not in _NO_BODY:
            length = int(head[start + 17 :].split(b"\r\n", 1)[0])
        whole = end + len(_END) + length
        if len(self._taken) < whole:
            return
        body = bytes(self._taken[end + len(_END) : whole])
        self._taken.clear()
        self._answered(self, Answer(self._index, status, head, body, time.perf_counter() - self._due))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closing:
            self._broken(f"the server closed a connection ({exc})")

    def close(self) -> None:
        """Close the connection without reporting a failure."""
        self.closing = True
        self._transport.close()


class _Load:
    """A closed loop: every connection sends its next request when it has an answer."""

    def __init__(self, calls: Iterable[Call], keep: Callable[[Answer], object] | None) -> None:
        self.run = Run()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._numbered, self._keep = enumerate(calls), keep
        self._sent = self._back = 0
        self._all_sent = False

    def start(self, connections: Sequence[_Connection]) -> None:
        """Send the first request of every connection."""
        for connection in connections:
            self._next(connection)

    def answered(self, connection: _Connection, answer: Answer) -> None:
        """Record an answer and send the next request of its connection."""
        self._back += 1
        self.run.latencies.append(answer.seconds)
        self.run.statuses[answer.status] += 1
        if self._keep is not None:
            self._keep(answer)
        self._next(connection)

    def _next(self, connection: _Connection) -> None:
        if (found := next(self._numbered, None)) is not None:
            self._sent += 1
            connection.send(*found, time.perf_counter())
        elif self._back == self._sent and not self.done.done():
            self.done.set_result(None)

    def broken(self, why: str) -> None:
        """Fail the run with `ConnectionError`."""
        if not self.done.done():
            self.done.set_exception(ConnectionError(why))


async def _run(port: int, count: int, load: _Load) -> Run:
    loop = asyncio.get_running_loop()
    opened = [
        await loop.create_connection(lambda: _Connection(load.answered, load.broken), "127.0.0.1", port)
        for _ in range(count)
    ]
    connections = [protocol for _, protocol in opened]
    try:
        started = time.perf_counter()
        load.start(connections)
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await load.done
        load.run.seconds = time.perf_counter() - started
    finally:
        for connection in connections:
            connection.close()
    return load.run


def closed_loop(
    port: int,
    calls: Iterable[Call],
    connections: int,
    keep: Callable[[Answer], object] | None = None,
    forwarded: bool = False,
) -> Run:
    """Send `calls` over `connections` connections; each sends its next request as soon as it has an answer.

    keep: called with each answer. forwarded: add X-Forwarded-For to each request, as a proxy does. Raises
    `ConnectionError` if the server closes a connection, and `TimeoutError` after 900 s.
    """

    async def run() -> Run:
        return await _run(port, connections, _Load(map(_forward, calls) if forwarded else calls, keep))

    return uvloop.run(run())
