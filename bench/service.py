"""Measure the service: large and small uploads, and a round of 10,000 clients.

.venv/bin/python -m bench.service [--quick] [--only large small round10k] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Final

import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from numpy.typing import NDArray

from bench._report import MIB, Figure, Watch, arguments, in_turn, ratio, say, wait_for
from bench.figures import run
from bench.service_load import CONNECTIONS, Federation, Run, closed_loop, request_bytes
from client_sdk.lab.local_server import free_ports
from protocols.sums.ckks.mechanism import CKKS

# --- The peer of large uploads: FastAPI alone on uvicorn, reading the same bodies

_AT_ONCE: Final = 2**18

bare = FastAPI()


@bare.put("/stored", status_code=201)
async def stored(request: Request) -> str:
    """Write the request body to a file, durably, and return its SHA-256."""
    digest = hashlib.sha256()
    with NamedTemporaryFile(dir=request.app.state.folder) as file:

        def take(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        def end() -> None:
            file.flush()
            os.fsync(file.fileno())

        waiting, taking = bytearray(), None
        async for chunk in request.stream():
            waiting += chunk
            if len(waiting) >= _AT_ONCE:
                if taking is not None:
                    await taking
                taking, waiting = asyncio.create_task(asyncio.to_thread(take, waiting)), bytearray()
        if taking is not None:
            await taking
        await asyncio.to_thread(take, waiting)
        await asyncio.to_thread(end)
    return digest.hexdigest()


def serve_bare(port: int, folder: str) -> None:
    bare.state.folder = folder
    uvicorn.run(bare, host="127.0.0.1", port=port, http="h11", log_level="error", access_log=False)


@contextmanager
def peer_server(serve: Callable[[int, str], None]) -> Iterator[tuple[int, int]]:
    """A peer in its own process, ready when the block begins: its port and process id. serve: of a port and folder."""
    (port,) = free_ports(1)
    with TemporaryDirectory() as folder:
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(port, folder))
        process.start()
        try:
            wait_for(port)
            yield port, int(process.pid or 0)
        finally:
            process.terminate()
            process.join(timeout=30)


# --- Uploads until they are durable: bodies of 4 MiB beside a bare server's, and small ones per second

LARGE = {"items": 12_900, "dim": 64}
"""A seeded FedMF contribution of this size in CKKS `standard` has 4 MiB."""
SMALL = {"items": 200, "dim": 8}
"""10 KB."""
_BODIES = 4


def measure_large(quick: bool, forwarded: bool) -> dict[str, Figure]:
    """Rates over 4 connections, in turn with a bare server that streams, hashes and syncs."""
    batch, repetitions = (4, 1) if quick else (32, 9)
    with peer_server(serve_bare) as (port, _):
        runs, size = _in_turn(LARGE, CONNECTIONS, batch, repetitions, forwarded, port)
    rates = {name: median(batch * size / run.seconds / 1e6 for run in taken) for name, taken in runs.items()}
    return {"large.body_bytes": size, **{f"large.{name}_mb_s": rate for name, rate in rates.items()}}


def measure_small(quick: bool, forwarded: bool) -> dict[str, Figure]:
    """Uploads per second over 32 connections."""
    batch, repetitions = (32, 1) if quick else (200, 9)
    runs, size = _in_turn(SMALL, 32, batch, repetitions, forwarded)
    rate = median(batch / run.seconds for run in runs["ours"])
    return {"uploads_per_second": rate, "uploads.body_bytes": size}


def _in_turn(
    model: dict[str, int], connections: int, batch: int, repetitions: int, forwarded: bool, bare_port: int = 0
) -> tuple[dict[str, list[Run]], int]:
    """Runs of batches by server, in turn, and the size of a body; the first batch of each is a warm-up.

    One member does not contribute, so that the round stays open; and folds are postponed (`fold_batch`),
    because their cost depends on the mechanism. bare_port: of the bare server, if it takes turns.
    """
    cohort = batch * (repetitions + 1) + 1
    with TemporaryDirectory() as root:
        settings = {"HUSHREC_TUNING": '{"fold_batch": 100000}'}
        with Federation(Path(root), **model, cohort=cohort, forwarded=forwarded, **settings) as federation:
            federation.enrol(cohort)
            federation.upload_envelopes()
            bodies, _ = federation.sealed(_BODIES)
            federation.wait_round("collecting")
            waiting = federation.members[1:]

            def ours() -> Run:
                members = [waiting.pop() for _ in range(batch)]
                return federation.load(list(federation.uploads(members, bodies)), 201, connections)

            def stored() -> Run:
                calls = [request_bytes("PUT", "/stored", {}, bodies[place % _BODIES]) for place in range(batch)]
                return closed_loop(bare_port, calls, connections, forwarded).expect(201)

            loads = {"ours": ours, "stored": stored} if bare_port else {"ours": ours}
            return in_turn(loads, repetitions), len(bodies[0])


# --- Measure a whole encrypted round of 10,000 clients with small vectors, and one of 1,000 to compare memory

SIZES = (1_000, 10_000)
QUICK_SIZES = (10, 20)


def measure_rounds(quick: bool, forwarded: bool) -> dict[str, Figure]:
    """Figures of both rounds, the small one first. The prefixes are `round1k` and `round10k` for quick runs too."""
    figures: dict[str, Figure] = {}
    for name, cohort in zip(("round1k", "round10k"), QUICK_SIZES if quick else SIZES, strict=True):
        figures |= {f"{name}.{key}": value for key, value in one_round(cohort, forwarded).items()}
    return {**figures, "round10k.peak_rss_ratio": ratio(figures, "round10k.peak_rss_mb", "round1k.peak_rss_mb")}


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
            bodies, total = federation.sealed(cohort)
            opened += time.perf_counter() - sealing
            uploads = federation.load(federation.uploads(federation.members, bodies), 201)
            view = federation.wait_round("complete", "failed")
            done = time.perf_counter()
        error = _error(federation, total)
    return {
        "clients": cohort,
        "survivors": view.survivors,
        "exact": view.state == "complete" and view.survivors == cohort and error <= federation.plan.predicted_error,
        "wall_s": done - opened,
        "whole_s": done - started,
        "enrol_s": enrolled.seconds,
        "envelopes_s": envelopes.seconds,
        "poll_s": polls.seconds,
        "upload_s": uploads.seconds,
        "server_cpu_ms_per_client": 1e3 * watch.cpu_seconds / cohort,
        "peak_rss_mb": watch.total / MIB,
    }


def _error(federation: Federation, expected: NDArray[np.float64]) -> float:
    """Largest error of the sum's values; infinite if a count is wrong."""
    opened = CKKS.open(federation.plan, federation.aggregate(), federation.cohort, federation.keyring)
    counts = federation.plan.layout.blocks[0].integral_mask()
    if not np.array_equal(np.rint(opened[counts]), expected[counts]):
        return float("inf")
    return float(np.abs(opened - expected)[~counts].max())


PARTS: Final = {"large": measure_large, "small": measure_small, "round10k": measure_rounds}


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    """Measure the chosen parts one after the other, directly and as behind a proxy."""
    figures: dict[str, Figure] = {}
    for name in options.only:
        for prefix in ("", "forwarded."):
            say(f"{prefix}{name}")
            found = PARTS[name](options.quick, bool(prefix))
            figures |= {f"{prefix}{key}": value for key, value in found.items()}
    return figures


if __name__ == "__main__":
    run("service", arguments(__doc__, parts=tuple(PARTS)), measure)
