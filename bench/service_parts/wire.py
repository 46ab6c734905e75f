"""A load generator that costs little: requests that were made beforehand, over a bounded number of kept connections.

HTTP/1.1 as far as it is needed against our own servers: every answer has a Content-Length (or none at all, as 204 and
304 have). What a client library would do for each request (dozens of objects) would measure the library.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, cast

import uvloop

__all__ = ["Answer", "Call", "Run", "at_rate", "closed_loop", "request_bytes"]

_END: Final = b"\r\n\r\n"
_NO_BODY: Final = (204, 304)
_PATIENCE: Final = 900.0


@dataclass(frozen=True)
class Call:
    """A request as it goes over the wire. `body` is apart, so that several requests may share one."""

    head: bytes
    body: bytes = b""


@dataclass(frozen=True)
class Answer:
    """What came back for request `index`; seconds from the moment it should have been sent."""

    index: int
    status: int
    headers: bytes
    body: bytes
    seconds: float


@dataclass
class Run:
    """What a load did: seconds on the wall from the first request to the last answer, and each answer's latency."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """Latency that `share` of the answers kept, seconds."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def expect(self, *statuses: int) -> Self:
        """Itself; the benchmark ends when anything else was answered."""
        if set(self.statuses) - set(statuses):
            raise SystemExit(f"the server answered {dict(self.statuses)}, expected {statuses}")
        return self


def request_bytes(method: str, target: str, headers: dict[str, str], body: bytes = b"") -> Call:
    """A request for a server on the loopback address."""
    lines = [f"{method} {target} HTTP/1.1", "host: 127.0.0.1", *(f"{name}: {text}" for name, text in headers.items())]
    if body or method in ("POST", "PUT"):
        lines.append(f"content-length: {len(body)}")
    return Call("\r\n".join(lines).encode() + _END, body)


class _Lane(asyncio.Protocol):
    """One connection: sends a call when it is told to, and tells of its answer."""

    def __init__(self, answered: Callable[[_Lane, Answer], None], broken: Callable[[str], None]) -> None:
        self._answered, self._broken = answered, broken
        self._taken = bytearray()
        self._index, self._due = -1, 0.0
        self.closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is none by its bases

    def send(self, index: int, call: Call, due: float) -> None:
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
        self.closing = True
        self._transport.close()


class _Load:
    """One run over its connections."""

    def __init__(self, calls: Iterator[Call], keep: Callable[[Answer], object] | None) -> None:
        self.run = Run()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._numbered, self._keep = enumerate(calls), keep
        self._sent = self._back = 0
        self._all_sent = False

    def start(self, lanes: Sequence[_Lane]) -> None:
        for lane in lanes:
            self._next(lane)

    def answered(self, lane: _Lane, answer: Answer) -> None:
        self._back += 1
        self.run.latencies.append(answer.seconds)
        self.run.statuses[answer.status] += 1
        if self._keep is not None:
            self._keep(answer)
        self._next(lane)

    def _next(self, lane: _Lane) -> None:
        if (found := next(self._numbered, None)) is not None:
            self._sent += 1
            lane.send(*found, time.perf_counter())
        elif self._back == self._sent and not self.done.done():
            self.done.set_result(None)

    def broken(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(why))


class _Paced(_Load):
    """Requests at fixed times, whatever the server does: a slow answer makes those behind it late, and that counts."""

    def __init__(self, calls: Sequence[Call], rate: float, keep: Callable[[Answer], object] | None) -> None:
        super().__init__(iter(calls), keep)
        self._calls, self._rate = calls, rate
        self._due: deque[tuple[int, float]] = deque()
        self._free: list[_Lane] = []

    def start(self, lanes: Sequence[_Lane]) -> None:
        self._free, self._origin = list(lanes), time.perf_counter()
        self._tick(0)

    def _tick(self, index: int) -> None:
        now = time.perf_counter()
        while index < len(self._calls) and self._origin + index / self._rate <= now:
            self._due.append((index, self._origin + index / self._rate))
            index += 1
        self._flush()
        if index < len(self._calls):
            wait = self._origin + index / self._rate - time.perf_counter()
            asyncio.get_running_loop().call_later(max(0.0, wait), self._tick, index)

    def _flush(self) -> None:
        while self._due and self._free:
            index, due = self._due.popleft()
            self._free.pop().send(index, self._calls[index], due)

    def _next(self, lane: _Lane) -> None:
        self._free.append(lane)
        self._flush()
        if self._back == len(self._calls):
            self.done.set_result(None)


async def _over(port: int, connections: int, load: _Load) -> Run:
    loop = asyncio.get_running_loop()
    opened = [
        await loop.create_connection(lambda: _Lane(load.answered, load.broken), "127.0.0.1", port)
        for _ in range(connections)
    ]
    lanes = [protocol for _, protocol in opened]
    try:
        started = time.perf_counter()
        load.start(lanes)
        async with asyncio.timeout(_PATIENCE):
            await load.done
        load.run.seconds = time.perf_counter() - started
    finally:
        for lane in lanes:
            lane.close()
    return load.run


def closed_loop(
    port: int, calls: Iterable[Call], connections: int, keep: Callable[[Answer], object] | None = None
) -> Run:
    """Every connection sends its next request as soon as it has an answer. `keep` is called with each answer."""

    async def run() -> Run:
        return await _over(port, connections, _Load(iter(calls), keep))

    return uvloop.run(run())


def at_rate(port: int, calls: Sequence[Call], connections: int, rate: float) -> Run:
    """`rate` requests a second at even intervals; latencies count from when a request was due."""

    async def run() -> Run:
        return await _over(port, connections, _Paced(calls, rate, None))

    return uvloop.run(run())
