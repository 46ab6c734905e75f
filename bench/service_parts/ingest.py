"""Measure ingest: contributions of 4 MB until they are durable, compared with a bare server that discards them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure
from bench.service_parts.bare import Bare
from bench.service_parts.federation import CONNECTIONS, Federation, digest_of
from bench.service_parts.wire import Call, Run, closed_loop, request_bytes
from protocols.layout import whole_route
from protocols.sums.ckks.mechanism import CKKS

__all__ = ["measure_ingest", "sealed"]

ITEMS, DIM = 12_900, 64
"""A seeded FedMF contribution of this size in CKKS `standard` has 4.2 MB."""
BATCH, REPETITIONS = 32, 9
_MB = 1e6
_BODIES = 4


@dataclass
class _Side:
    """One of the two servers: how to load it, and the measurements of all repetitions."""

    load: Callable[[list[Call]], Run]
    cpu: Callable[[], float]
    calls: Callable[[int], list[Call]]
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    server_seconds: float = 0.0
    generator_seconds: float = 0.0
    bodies: int = 0

    def play(self, repetition: int, bytes_each: int, counts: bool) -> None:
        """Send one batch of bodies; record the measurements if `counts`."""
        calls, before, own = self.calls(repetition), self.cpu(), time.process_time()
        run = self.load(calls)
        if counts:
            self.rates.append(len(calls) * bytes_each / run.seconds / _MB)
            self.latencies += run.latencies
            self.server_seconds += self.cpu() - before
            self.generator_seconds += time.process_time() - own
            self.bodies += len(calls)

    def figures(self, name: str) -> dict[str, Figure]:
        """Figures `ingest.<name>_*`: rates, processor time per body, and latencies."""
        whole = Run(latencies=self.latencies)
        return {
            f"ingest.{name}_mb_s": median(self.rates),
            f"ingest.{name}_mb_s_min": min(self.rates),
            f"ingest.{name}_mb_s_max": max(self.rates),
            f"ingest.{name}_server_cpu_ms": 1e3 * self.server_seconds / self.bodies,
            f"ingest.{name}_generator_cpu_ms": 1e3 * self.generator_seconds / self.bodies,
            f"ingest.{name}_p50_ms": 1e3 * whole.percentile(0.5),
            f"ingest.{name}_p95_ms": 1e3 * whole.percentile(0.95),
            f"ingest.{name}_p99_ms": 1e3 * whole.percentile(0.99),
        }


def sealed(federation: Federation, count: int) -> tuple[list[bytes], list[NDArray[np.float64]]]:
    """`count` sealed contributions, and the vectors in them."""
    random = np.random.default_rng(1)
    block = federation.plan.layout.blocks[0]
    bounds, counts = block.bounds(), block.integral_mask()
    vectors = [np.where(counts, 1.0, random.uniform(-bounds, bounds)) for _ in range(count)]
    route = whole_route(federation.plan.layout)
    return [CKKS.seal(federation.plan, route, [vector], federation.keyring) for vector in vectors], vectors


def measure_ingest(quick: bool, tick: Callable[[], object] = lambda: None) -> dict[str, Figure]:
    """Figures of both servers, loaded in turn with one batch per repetition, and of the fold of all contributions.

    The server folds only after all contributions have arrived (`HUSHREC_FOLD_BATCH`), because the cost of a fold
    depends on the mechanism and is measured separately from the cost of a body.
    """
    batch, repetitions = (8, 3) if quick else (BATCH, REPETITIONS)
    cohort = batch * (repetitions + 1)
    with (
        TemporaryDirectory() as root,
        Federation(Path(root), items=ITEMS, dim=DIM, cohort=cohort, HUSHREC_FOLD_BATCH="10000") as federation,
        Bare() as bare,
    ):
        federation.enrol(cohort)
        federation.upload_envelopes()
        bodies, _ = sealed(federation, _BODIES)
        federation.wait_round("collecting")
        discarded = [request_bytes("PUT", "/discard", {"content-digest": digest_of(body)}, body) for body in bodies]
        sides = (
            _Side(
                lambda calls: federation.load(calls, 201),
                federation.cpu,
                lambda turn: list(federation.uploads(federation.members[turn * batch :][:batch], bodies)),
            ),
            _Side(
                lambda calls: closed_loop(bare.port, calls, CONNECTIONS).expect(201),
                bare.cpu,
                lambda _: discarded * (batch // len(discarded)),
            ),
        )
        for repetition in range(repetitions + 1):  # the first is a warm-up
            for side in sides if repetition % 2 else sides[::-1]:
                side.play(repetition, len(bodies[0]), counts=repetition > 0)
            tick()
        folding = time.perf_counter()
        federation.wait_round("complete")
        folding = time.perf_counter() - folding
    ours, peer = sides
    return {
        "ingest_fraction": median(a / b for a, b in zip(ours.rates, peer.rates, strict=True)),
        **ours.figures("ours"),
        **peer.figures("bare"),
        "ingest.body_bytes": len(bodies[0]),
        "ingest.fold_ms_per_contribution": 1e3 * folding / cohort,
        "ingest.connections": CONNECTIONS,
        "ingest.repetitions": repetitions,
        "ingest.batch": batch,
    }
