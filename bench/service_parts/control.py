"""Measure clients' small control requests, compared with a bare FastAPI route on the same uvicorn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench._report import Figure
from bench.service_parts.bare import Bare
from bench.service_parts.federation import CONNECTIONS, Federation
from bench.service_parts.wire import Answer, Call, Run, at_rate, closed_loop, request_bytes

__all__ = ["measure_control"]

MEMBERS = 200
CALLS, REPETITIONS = 1500, 9
RATE, SECONDS = 200.0, 10.0
_PERCENTILES = ((50, 0.5), (95, 0.95), (99, 0.99))


@dataclass
class _Kind:
    """A kind of request: how to make it, the expected status, and the measurements of all repetitions."""

    name: str
    status: int
    port: int
    cpu: Callable[[], float]
    make: Callable[[int], Call]
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0

    def calls(self, count: int) -> list[Call]:
        """`count` requests of this kind."""
        return [self.make(index) for index in range(count)]

    def play(self, count: int, counts: bool) -> None:
        """Send `count` requests in a closed loop; record the measurements if `counts`."""
        calls, before = self.calls(count), self.cpu()
        run = closed_loop(self.port, calls, CONNECTIONS).expect(self.status)
        if counts:
            self.rates.append(run.rate)
            self.latencies += run.latencies
            self.cpu_seconds += self.cpu() - before

    def figures(self) -> dict[str, Figure]:
        """Rate, processor time and latencies under full load."""
        return {
            f"control.{self.name}_per_s": median(self.rates),
            f"control.{self.name}_server_cpu_us": 1e6 * self.cpu_seconds / len(self.latencies),
            **_latencies(f"control.{self.name}_full", Run(latencies=self.latencies)),
        }


def _latencies(name: str, run: Run) -> dict[str, Figure]:
    return {f"{name}_p{number}_ms": 1e3 * run.percentile(share) for number, share in _PERCENTILES}


def _kinds(federation: Federation) -> list[_Kind]:
    """The requests of a member between rounds; successive requests come from different members."""
    current, port, cpu = f"{federation.path}/rounds/current", federation.port, federation.cpu
    etags: dict[int, str] = {}

    def keep(answer: Answer) -> None:
        etags[answer.index] = answer.headers.split(b"\r\netag:", 1)[1].split(b"\r\n", 1)[0].strip().decode()

    members = federation.members
    federation.load([member.call("GET", current) for member in members], 200, keep=keep)

    def get(target: str) -> Callable[[int], Call]:
        return lambda index: members[index % len(members)].call("GET", target)

    def unchanged(index: int) -> Call:
        place = index % len(members)
        return members[place].call("GET", current, {"if-none-match": etags[place].replace('w/"', 'W/"')})

    return [
        _Kind("poll", 304, port, cpu, unchanged),
        _Kind("round", 200, port, cpu, get(current)),
        _Kind("task", 200, port, cpu, get(federation.path)),
        _Kind("ledger", 200, port, cpu, get(f"{federation.path}/members/me/ledger")),
    ]


def measure_control(quick: bool, tick: Callable[[], object] = lambda: None) -> dict[str, Figure]:
    """Figures of every kind of request, in turn with the bare route, over a few persistent connections.

    `control_fraction` is the fraction of a poll whose round has not changed, the most frequent request of a client.
    `control.floor_fraction` is the fraction of the bare server's route that verifies one signature and does no more.
    """
    count, repetitions = (300, 3) if quick else (CALLS, REPETITIONS)
    with (
        TemporaryDirectory() as root,
        Federation(Path(root), items=200, dim=8, cohort=MEMBERS) as federation,
        Bare() as bare,
    ):
        federation.enrol(MEMBERS)
        federation.upload_envelopes()
        federation.wait_round("collecting")
        kinds = _kinds(federation)
        peer = _Kind("bare", 200, bare.port, bare.cpu, lambda _: request_bytes("GET", "/bare", {}))
        floor = _Kind("floor", 200, bare.port, bare.cpu, lambda _: request_bytes("GET", "/checked", {}))
        for repetition in range(repetitions + 1):  # the first is a warm-up
            for kind in (peer, *kinds, floor):
                kind.play(count, counts=repetition > 0)
            tick()
        figures: dict[str, Figure] = {}
        for kind in (*kinds, floor):
            fraction = median(a / b for a, b in zip(kind.rates, peer.rates, strict=True))
            figures[f"control.{kind.name}_fraction"] = fraction
        for kind in (peer, *kinds):
            figures |= kind.figures()
        seconds = 2.0 if quick else SECONDS
        for kind in (peer, kinds[0], kinds[1]):
            run = at_rate(kind.port, kind.calls(int(RATE * seconds)), CONNECTIONS, RATE).expect(kind.status)
            figures |= _latencies(f"latency.{kind.name}", run)
    return {"control_fraction": figures["control.poll_fraction"], **figures, "latency.rate_per_s": RATE}
