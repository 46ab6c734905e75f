"""Measure uploads until they are durable: bodies of 4 MiB in MB/s beside a bare server's, and small ones per second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure
from bench.service_parts.bare import Bare
from bench.service_parts.federation import CONNECTIONS, Federation
from bench.service_parts.wire import Run, closed_loop, request_bytes
from protocols.layout import whole_route
from protocols.sums.ckks.mechanism import CKKS

__all__ = ["MANY_CONNECTIONS", "measure_large", "measure_small", "sealed"]

LARGE = {"items": 12_900, "dim": 64}
"""A seeded FedMF contribution of this size in CKKS `standard` has 4 MiB."""
SMALL = {"items": 200, "dim": 8}
"""10 KB."""
MANY_CONNECTIONS = 32
_BODIES = 4
_MB = 1e6


def sealed(federation: Federation, count: int) -> tuple[list[bytes], NDArray[np.float64]]:
    """`count` sealed contributions, and the sum of the vectors in them."""
    random = np.random.default_rng(1)
    block, route = federation.plan.layout.blocks[0], whole_route(federation.plan.layout)
    bounds, counts = block.bounds(), block.integral_mask()
    total, bodies = np.zeros(block.length), []
    for _ in range(count):
        vector = np.where(counts, 1.0, random.uniform(-bounds, bounds))
        total += vector
        bodies.append(CKKS.seal(federation.plan, route, [vector], federation.keyring))
    return bodies, total


def measure_large(quick: bool, forwarded: bool, tick: Callable[[], object]) -> dict[str, Figure]:
    """Rates over 4 connections, in turn with a bare server that streams, hashes and syncs, and one that discards."""
    batch, repetitions = (4, 1) if quick else (32, 9)
    with Bare() as bare:

        def other(route: str, bodies: Sequence[bytes]) -> Callable[[], Run]:
            calls = [request_bytes("PUT", route, {}, body) for body in bodies] * (batch // len(bodies))
            return lambda: closed_loop(bare.port, calls, CONNECTIONS, forwarded=forwarded).expect(201)

        runs, size = _in_turn(LARGE, CONNECTIONS, batch, repetitions, forwarded, tick, other)
    figures: dict[str, Figure] = {"large.body_bytes": size, "large.connections": CONNECTIONS}
    for name, taken in runs.items():
        rates = [batch * size / run.seconds / _MB for run in taken]
        figures |= {f"large.{name}_mb_s": median(rates), f"large.{name}_mb_s_min": min(rates)}
        figures[f"large.{name}_mb_s_max"] = max(rates)
    return figures


def measure_small(quick: bool, forwarded: bool, tick: Callable[[], object]) -> dict[str, Figure]:
    """Uploads per second over 32 connections."""
    batch, repetitions = (32, 1) if quick else (200, 9)
    runs, size = _in_turn(SMALL, MANY_CONNECTIONS, batch, repetitions, forwarded, tick)
    whole = Run(latencies=[seconds for run in runs["ours"] for seconds in run.latencies])
    return {
        "uploads_per_second": median(run.rate for run in runs["ours"]),
        **{f"uploads.p{share}_ms": 1e3 * whole.percentile(share / 100) for share in (50, 95, 99)},
        "uploads.body_bytes": size,
        "uploads.connections": MANY_CONNECTIONS,
    }


def _in_turn(
    model: dict[str, int],
    connections: int,
    batch: int,
    repetitions: int,
    forwarded: bool,
    tick: Callable[[], object],
    other: Callable[[str, Sequence[bytes]], Callable[[], Run]] | None = None,
) -> tuple[dict[str, list[Run]], int]:
    """Runs of batches by server, in turn, and the size of a body; the first batch of each is a warm-up.

    One member does not contribute, so that the round stays open; and folds are postponed (`fold_batch`),
    because their cost depends on the mechanism. other: makes the load of a route of the bare server.
    """
    cohort = batch * (repetitions + 1) + 1
    with TemporaryDirectory() as root:
        settings = {"HUSHREC_TUNING": '{"fold_batch": 100000}'}
        with Federation(Path(root), **model, cohort=cohort, forwarded=forwarded, **settings) as federation:
            federation.enrol(cohort)
            federation.upload_envelopes()
            bodies, _ = sealed(federation, _BODIES)
            federation.wait_round("collecting")

            def ours() -> Run:
                members = [waiting.pop() for _ in range(batch)]
                return federation.load(list(federation.uploads(members, bodies)), 201, connections=connections)

            waiting = federation.members[1:]
            loads = {"ours": ours}
            if other is not None:
                loads |= {name: other(f"/{name}", bodies) for name in ("stored", "discarded")}
            runs: dict[str, list[Run]] = {name: [] for name in loads}
            for repetition in range(repetitions + 1):
                for name, load in loads.items():
                    run = load()
                    if repetition > 0:
                        runs[name].append(run)
                tick()
    return runs, len(bodies[0])
