"""Measure short requests that store something: enrolments, and contributions of 10 KB, in turn with a bare server.

Contributions are measured twice: over 4 connections as everything else, and over 32, as when a small cohort sends at
the same time. Contributions that arrive together share one sync of the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench._report import Figure
from bench.service_parts.bare import Bare
from bench.service_parts.federation import CONNECTIONS, Federation, digest_of
from bench.service_parts.ingest import sealed
from bench.service_parts.wire import Call, Run, closed_loop, request_bytes

__all__ = ["measure_small"]

ITEMS, DIM = 200, 8
"""A seeded FedMF contribution of this size in CKKS `standard` has 10 KB."""
BATCH, REPETITIONS = 200, 9
MANY_CONNECTIONS = 32
_BODIES = 4
_FIRST = 2
"""Clients that enrol before the measurement: the key holder and a member."""
_ENROLMENT_BYTES = 420


class _Peer:
    """A route of the bare server that gets bodies of one size."""

    def __init__(self, bare: Bare, route: str, body: bytes, batch: int, connections: int = CONNECTIONS) -> None:
        self._port, self._connections = bare.port, connections
        self._calls: list[Call] = [
            request_bytes("PUT", route, {"content-digest": digest_of(body)}, body) for _ in range(batch)
        ]

    def rate(self) -> float:
        """Bodies a second of one batch."""
        return closed_loop(self._port, self._calls, self._connections).expect(201).rate


def measure_small(quick: bool, tick: Callable[[], object] = lambda: None) -> dict[str, Figure]:
    """Rates of enrolments and of short contributions, as fractions of a bare server's that discards such bodies.

    Both servers get a batch in turn; the bare server gets a second one of contributions, which it stores durably
    (`small.floor_fraction`). The server folds after all contributions have arrived, as for `ingest_fraction`, which
    takes a `HUSHREC_FOLD_BATCH` of more than eight times the cohort; `round10k` measures both together.
    """
    batch, repetitions = (50, 3) if quick else (BATCH, REPETITIONS)
    each = batch * (repetitions + 1)
    cohort = 2 * each + _FIRST
    with (
        TemporaryDirectory() as root,
        Federation(Path(root), items=ITEMS, dim=DIM, cohort=cohort, HUSHREC_FOLD_BATCH="100000") as federation,
        Bare() as bare,
    ):
        federation.enrol(_FIRST)
        enrolled = _in_turn(
            lambda _: federation.enrol_members(batch),
            _Peer(bare, "/discard", bytes(_ENROLMENT_BYTES), batch),
            repetitions,
            tick,
        )
        federation.enrol_members(each)
        federation.upload_envelopes()
        bodies, _ = sealed(federation, _BODIES)
        federation.wait_round("collecting")

        def measure_uploads(first: int, connections: int) -> _Rates:
            def upload(turn: int) -> Run:
                members = federation.members[first + turn * batch :][:batch]
                return federation.load(list(federation.uploads(members, bodies)), 201, connections=connections)

            discarding, durable = (
                _Peer(bare, route, bodies[0], batch, connections) for route in ("/discard", "/durable")
            )
            return _in_turn(upload, discarding, repetitions, tick, floor=durable)

        uploaded = measure_uploads(_FIRST, CONNECTIONS)
        by_many = measure_uploads(_FIRST + each, MANY_CONNECTIONS)
    return {
        "enrol_fraction": enrolled.fraction,
        "small.upload_fraction": uploaded.fraction,
        "small.floor_fraction": uploaded.floor_fraction,
        **enrolled.figures("enrol"),
        **uploaded.figures("upload"),
        "small.upload_many_fraction": by_many.fraction,
        "small.floor_many_fraction": by_many.floor_fraction,
        **by_many.figures("upload_many"),
        "small.many_connections": MANY_CONNECTIONS,
        "small.body_bytes": len(bodies[0]),
        "small.connections": CONNECTIONS,
        "small.repetitions": repetitions,
        "small.batch": batch,
    }


class _Rates:
    """Measurements of all repetitions."""

    def __init__(self) -> None:
        self.ours: list[float] = []
        self.bare: list[float] = []
        self.floor: list[float] = []
        self.latencies: list[float] = []

    @property
    def fraction(self) -> float:
        """Median of the repetitions' ratios of rates."""
        return median(a / b for a, b in zip(self.ours, self.bare, strict=True))

    @property
    def floor_fraction(self) -> float:
        """The same median for the route that does only the unavoidable work."""
        return median(a / b for a, b in zip(self.floor, self.bare, strict=True))

    def figures(self, name: str) -> dict[str, Figure]:
        """Rates and latencies."""
        whole = Run(latencies=self.latencies)
        return {
            f"small.{name}_per_s": median(self.ours),
            f"small.{name}_bare_per_s": median(self.bare),
            **{f"small.{name}_p{share}_ms": 1e3 * whole.percentile(share / 100) for share in (50, 95, 99)},
        }


def _in_turn(
    ours: Callable[[int], Run],
    peer: _Peer,
    repetitions: int,
    tick: Callable[[], object],
    floor: _Peer | None = None,
) -> _Rates:
    """Load both servers in turn, and `floor` if there is one; the first repetition is a warm-up."""
    found = _Rates()
    for repetition in range(repetitions + 1):
        run, bare = ours(repetition), peer.rate()
        least = None if floor is None else floor.rate()
        if repetition > 0:
            found.ours.append(run.rate)
            found.bare.append(bare)
            found.latencies += run.latencies
            if least is not None:
                found.floor.append(least)
        tick()
    return found
