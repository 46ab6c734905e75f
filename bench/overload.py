"""A server that more clients use at once than it can serve: how long they wait, and that nothing is lost.

    .venv/bin/python -m bench.overload [--quick] [--only idle busy] [--json FILE]

`idle`: 500 members wait for a round in long polls. Figures are what each costs the server in memory, and in processor
time a second, and how long a health check takes beside them.

`busy`: contributions of 4 MiB over 8 connections, and of members' polls over 20; then over eight times as many
connections for contributions, and 100 for polls. Every acknowledged contribution must be in the sum, and every answer
one that a client expects: done, or try again later. The rates are those of this machine, whose cores the clients share.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Final

import psutil
import uvloop

from bench._report import MIB, Figure, Watch, arguments, processor_seconds, say
from bench.figures import run
from bench.rounds import named
from bench.service import LARGE, SMALL
from bench.service_load import Call, Federation

_END: Final = b"\r\n\r\n"


@dataclass
class Answers:
    """What came back: how many of each status, and the seconds of each request."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def percentile(self, percent: int) -> float:
        """Milliseconds within which so many percent of the requests were answered."""
        return 1e3 * quantiles(self.seconds, n=100, method="inclusive")[percent - 1]


async def _answer(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], call: Call, answers: Answers) -> None:
    reader, writer = connection
    started = time.perf_counter()
    writer.write(call.head)
    if call.body:
        writer.write(call.body)
    await writer.drain()
    head = (await reader.readuntil(_END)).lower()
    _, _, length = head.partition(b"\r\ncontent-length:")
    await reader.readexactly(int(length.split(b"\r\n", 1)[0] or 0))
    answers.statuses[int(head[9:12])] += 1
    answers.seconds.append(time.perf_counter() - started)


async def _loop(port: int, calls: Iterator[Call], answers: Answers) -> None:
    """Send requests over one connection, each when the one before has its answer, until there are no more."""
    connection = await asyncio.open_connection("127.0.0.1", port)
    try:
        for call in calls:
            await _answer(connection, call, answers)
    finally:
        connection[1].close()


_HEALTH: Final = Call(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")

# --- Members that wait

_POLL_SECONDS: Final = 25


def idle(quick: bool) -> dict[str, Figure]:
    """Figures of members that wait for a round that does not come, one long poll each."""
    members, seconds = (4, 1.0) if quick else (500, 15.0)
    with TemporaryDirectory() as root, Federation(Path(root), **SMALL, cohort=members + 1) as federation:
        federation.enrol(members)  # one too few for a cohort: no round opens
        target = f"{federation.path}/rounds/current?wait={_POLL_SECONDS}"
        calls, server = [each.call("GET", target) for each in federation.members], psutil.Process(federation.server.pid)
        health, before = Answers(), server.memory_info().rss

        async def wait() -> tuple[float, int]:
            polls = [asyncio.create_task(_loop(federation.port, iter([call]), Answers())) for call in calls]
            await asyncio.sleep(seconds / 3)  # until all wait
            spent, held = -processor_seconds(server.pid), server.memory_info().rss
            until = time.perf_counter() + seconds
            connection = await asyncio.open_connection("127.0.0.1", federation.port)
            spent_on_health = 0
            while time.perf_counter() < until:
                await _answer(connection, _HEALTH, health)
                spent_on_health += 1
                await asyncio.sleep(0.25)
            connection[1].close()
            spent += processor_seconds(server.pid)
            if any(poll.done() for poll in polls):
                raise SystemExit("a poll was answered: it did not wait")
            for poll in polls:
                poll.cancel()
            return spent, held

        spent, held = uvloop.run(wait())
    return {
        "polls": members,
        "kib_per_poll": (held - before) / 1024 / members,
        "server_cpu_ms_per_s": 1e3 * spent / seconds,
        "health_p99_ms": health.percentile(99),
    }


# --- More than a server can take


def busy(quick: bool) -> dict[str, Figure]:
    """Figures of contributions of 4 MiB with polls beside them: usual, and eight times as many."""
    figures: dict[str, Figure] = {}
    for name, uploaders, pollers in (("usual", 8, 20), ("overload", 64, 100)):
        if quick:
            uploaders, pollers = uploaders // 8, pollers // 10
        found = _load(uploaders, pollers, (2 if quick else 320) + uploaders)
        figures |= named(name, found)
    return figures


def _load(uploaders: int, pollers: int, uploads: int) -> dict[str, Figure]:
    with TemporaryDirectory() as root, Federation(Path(root), **LARGE, cohort=uploads) as federation:
        federation.enrol(uploads)
        federation.upload_envelopes()
        bodies, _ = federation.sealed(4)
        federation.wait_round("collecting")
        sent, pollers_of = federation.uploads(federation.members, bodies), cycle(federation.members)
        current, uploaded, polled = f"{federation.path}/rounds/current", Answers(), Answers()

        async def load() -> None:
            done = asyncio.Event()

            def until_done() -> Iterator[Call]:
                while not done.is_set():
                    yield next(pollers_of).call("GET", current)

            beside = [asyncio.create_task(_loop(federation.port, until_done(), polled)) for _ in range(pollers)]
            await asyncio.gather(*(_loop(federation.port, sent, uploaded) for _ in range(uploaders)))
            done.set()
            await asyncio.gather(*beside)

        with Watch(federation.server.pid) as watch:
            started = time.perf_counter()
            uvloop.run(load())
            seconds = time.perf_counter() - started
        view = federation.wait_round("complete", "failed")
    acknowledged, answered = uploaded.statuses[201], uploaded.statuses + polled.statuses
    return {
        "uploads_per_s": acknowledged / seconds,
        "upload_p50_ms": uploaded.percentile(50),
        "upload_p99_ms": uploaded.percentile(99),
        "poll_p50_ms": polled.percentile(50),
        "poll_p99_ms": polled.percentile(99),
        "server_cpu_ms_per_upload": 1e3 * watch.cpu_seconds / uploads,
        "peak_mib": watch.total / MIB,
        "refused": sum(uploaded.statuses.values()) - acknowledged,
        "lost": acknowledged - (view.survivors or 0),
        "errors": sum(count for status, count in answered.items() if status not in _EXPECTED),
    }


_EXPECTED: Final = (200, 201, 204, 429, 503)
"""What clients expect: done, or try again later."""


PARTS: Final = {"idle": idle, "busy": busy}


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    """Measure the chosen parts one after the other."""
    figures: dict[str, Figure] = {}
    for name in options.only:
        say(name)
        figures |= named(name, PARTS[name](options.quick)) if name == "idle" else PARTS[name](options.quick)
    return figures


if __name__ == "__main__":
    run("overload", arguments(__doc__, parts=tuple(PARTS)), measure)
