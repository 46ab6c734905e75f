"""Measure a whole encrypted round of 10,000 clients with small vectors, and one of 1,000 to compare memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from bench._report import Figure
from bench._server import Watch
from bench.service_parts.federation import CONNECTIONS, Federation
from bench.service_parts.uploads import SMALL, sealed
from bench.service_parts.wire import Run
from protocols.sums.ckks.mechanism import CKKS

__all__ = ["SIZES", "measure_rounds", "one_round"]

SIZES = (1_000, 10_000)
QUICK_SIZES = (10, 20)
_MIB = 2**20


def measure_rounds(quick: bool, forwarded: bool, tick: Callable[[], object]) -> dict[str, Figure]:
    """Figures of both rounds, the small one first. The prefixes are `round1k` and `round10k` for quick runs too."""
    figures: dict[str, Figure] = {}
    for name, cohort in zip(("round1k", "round10k"), QUICK_SIZES if quick else SIZES, strict=True):
        figures |= {f"{name}.{key}": value for key, value in one_round(cohort, forwarded).items()}
        tick()
    small, large = (float(figures[f"{name}.peak_rss_mb"] or 0) for name in ("round1k", "round10k"))
    return {**figures, "round10k.peak_rss_ratio": large / small}


def one_round(cohort: int, forwarded: bool = False) -> dict[str, Figure]:
    """Figures of one round on a fresh server: enrolment, envelopes, a poll and a contribution per client, release."""
    with (
        TemporaryDirectory() as root,
        Federation(Path(root), **SMALL, cohort=cohort, forwarded=forwarded) as federation,
    ):
        with Watch(federation.server.pid) as watch:
            started = time.perf_counter()
            enrolled, envelopes = federation.enrol(cohort), federation.upload_envelopes()
            federation.wait_round("collecting")
            opened = time.perf_counter()
            current = f"{federation.path}/rounds/current"
            polls = federation.load((member.call("GET", current) for member in federation.members), 200)
            sealing = time.perf_counter()  # the clients' time is not part of the round's
            bodies, total = sealed(federation, cohort)
            opened += time.perf_counter() - sealing
            uploads = federation.load(federation.uploads(federation.members, bodies), 201)
            uploaded = time.perf_counter()
            view = federation.wait_round("complete", "failed")
            done = time.perf_counter()
        error, bound = _error(federation, total)
    return {
        "clients": cohort,
        "survivors": view["survivors"],
        "exact": view["state"] == "complete" and view["survivors"] == cohort and error <= bound,
        "max_error": error,
        "predicted_error": bound,
        "contribution_bytes": len(bodies[0]),
        "wall_s": done - opened,
        "whole_s": done - started,
        "fold_rest_s": done - uploaded,
        "enrol_s": enrolled.seconds,
        "envelopes_s": envelopes.seconds,
        "poll_s": polls.seconds,
        "upload_s": uploads.seconds,
        **_percentiles("enrol", enrolled),
        **_percentiles("poll", polls),
        **_percentiles("upload", uploads),
        "server_cpu_s": watch.cpu_seconds,
        "server_cpu_ms_per_client": 1e3 * watch.cpu_seconds / cohort,
        "peak_rss_mb": watch.total / _MIB,
        "peak_rss_api_mb": watch.api / _MIB,
        "peak_rss_workers_mb": watch.workers / _MIB,
        "connections": CONNECTIONS,
    }


def _error(federation: Federation, expected: NDArray[np.float64]) -> tuple[float, float]:
    """Largest error of the sum's values (infinite if a count is wrong), and the bound that the plan predicts."""
    opened = CKKS.open(federation.plan, federation.aggregate(), federation.cohort, federation.keyring)
    counts = federation.plan.layout.blocks[0].integral_mask()
    if not np.array_equal(np.rint(opened[counts]), expected[counts]):
        return float("inf"), federation.plan.predicted_error
    return float(np.abs(opened - expected)[~counts].max()), federation.plan.predicted_error


def _percentiles(name: str, run: Run) -> dict[str, Figure]:
    return {f"{name}_p{number}_ms": 1e3 * run.percentile(number / 100) for number in (50, 95, 99)}
