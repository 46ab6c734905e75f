"""Measure folding and unmasking by number of clients, vector length, and workers: processes, and Dask.

    .venv/bin/python -m bench.scaling [--quick] [--json FILE]

The jobs are the service's own (`aggregator_service.compute.split_jobs`), over blobs on disk, in batches of 32 per
worker. Every job reports the processor seconds that it took in its worker. `cpu_s` is their sum. `path_s` is the time
of the slowest part and of the job that merges the parts, batch after batch: the time with one core per worker. `wall_s`
is wall time on this machine, with its other load.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregator_service.compute.jobs import BlobRef, FoldJob, MergeJob, ReleaseJob, merge_partials
from aggregator_service.compute.split_jobs import SplitJobs
from aggregator_service.compute.unmasking import Masks
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.tasks.plans import TaskTerms, plan_task
from bench._report import Figure, arguments, say, spread, time_in_turn
from bench.registry import finish
from bench.scaling_parts import (
    TimedWorkers,
    cluster_of,
    contributions,
    masks_of,
    pool_of,
    terms_of,
    workers_here,
)
from protocols.recipes.base import RoundSpec
from protocols.sums.masked import server
from protocols.sums.masked.masks import pair_mask_key
from protocols.sums.masked.roster import open_roster
from protocols.sums.masked.shamir import combine, split

__all__ = ["measure_units"]


# --- Measure the processor time of single steps, from which the cost of larger rounds can be computed

THRESHOLDS = (12, 28, 78, 114)
"""Of 100 clients in bench/masked.py; of 1,000 curious, 1,000 semi-malicious and 1,000,000 semi-malicious at 0.1."""


def _seconds(step: Callable[[], object], calls: int) -> float:
    """Median processor seconds of one call of `step`."""
    return time_in_turn({"": step}, 5, {"": calls}, time.process_time, warm=False)[""].median


def measure_units(blobs: DirectoryBlobs, quick: bool) -> dict[str, Figure]:
    """The figures `units.*` except dispatch: reconstruction, key agreement, merging, digests, and a round's data."""
    figures: dict[str, Figure] = {}
    calls = 5 if quick else 30
    for threshold in THRESHOLDS:
        secret = os.urandom(32)
        secret = secret[:-1] + b"\0"
        shares = dict(enumerate(split(secret, threshold, range(1, threshold + 1)), 1))
        found = partial(combine, shares, threshold)
        figures[f"units.secret_us.t{threshold}"] = 1e6 * _seconds(found, calls)
    key, other = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key().public_bytes_raw()
    own = key.public_key().public_bytes_raw()
    figures["units.pair_us"] = 1e6 * _seconds(partial(pair_mask_key, key, own, other), 10 * calls)
    terms = terms_of(100, 1_000_000)
    size = plan_task(terms).sum_plan.partial_bytes
    parts = [f"partials/t_bench-unit-{number}" for number in range(8)]
    refs = tuple(BlobRef(part, blobs.put(part, bytes(size))) for part in parts)
    merge = MergeJob(blobs, "t_bench", terms, RoundSpec(1, bytes(32), 1), refs)
    seconds = _seconds(lambda: blobs.delete(merge_partials(merge).key), 1 if quick else 3)
    figures["units.merge_bytes_per_s"] = len(refs) * size / seconds
    body = bytes(16 << 20)
    figures["units.digest_bytes_per_s"] = len(body) / _seconds(lambda: hashlib.sha256(body).digest(), 2)
    blobs.delete(*parts)
    clients = 100 if quick else 1000
    masks, count = masks_of(terms_of(clients, 10_000), clients)
    roster = open_roster(masks.context, masks.roster)
    figures["units.clients"], figures["units.masks"] = clients, count
    figures["units.degree"], figures["units.threshold"] = roster.degree, roster.threshold
    figures["units.roster_bytes"] = len(masks.roster)
    figures["units.reply_bytes"] = sum(len(body) for body in masks.replies.values())
    gather = partial(server.collect_shares, roster, masks.shares, masks.survivors, masks.replies)
    figures["units.collect_shares_ms"] = 1e3 * _seconds(gather, 1)
    return figures


# ---

BATCH = 32
SPEC = RoundSpec(1, bytes(32), 1)
ONCE = ("merge_partials", "release_sum")
"""Names of the jobs that run alone."""


async def fold_all(workers: TimedWorkers, blobs: DirectoryBlobs, terms: TaskTerms, refs: Any) -> BlobRef:
    """Fold a round's contributions, batch after batch, as the service does; return the partial sum.

    refs: (client id, blob) of every contribution.
    """
    partial_sum, jobs = None, SplitJobs(workers)
    for first in range(0, len(refs), BATCH * workers.width):
        batch = refs[first : first + BATCH * workers.width]
        before, partial_sum = partial_sum, await jobs.fold(FoldJob(blobs, "t_bench", terms, SPEC, partial_sum, batch))
        workers.costs.append(("", 0.0))  # marks the end of a batch
        if before is not None:
            blobs.delete(before.key)
    assert partial_sum is not None
    return partial_sum


async def unmask_all(
    workers: TimedWorkers, blobs: DirectoryBlobs, terms: TaskTerms, masks: Masks, partial_sum: BlobRef
) -> None:
    """Remove the masks from a partial sum and release the sum."""
    job = ReleaseJob(blobs, "t_bench", terms, bytes(32), SPEC, partial_sum, len(masks.survivors), masks, False, None)
    released = await SplitJobs(workers).release(job)
    blobs.delete(released.aggregate.key)


def time_of(workers: TimedWorkers, step: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> dict[str, float]:
    """Wall, processor and critical-path seconds of one step, as `wall_s`, `cpu_s` and, not for a cluster, `path_s`."""
    workers.costs.clear()
    start, spent = time.perf_counter(), workers.process_seconds()
    loop.run_until_complete(step())
    wall = time.perf_counter() - start
    if workers.processes:
        return {"wall_s": wall, "cpu_s": workers.process_seconds() - spent}
    path = slowest = 0.0
    for name, cost in [*workers.costs, ("", 0.0)]:
        if name in ONCE or not name:
            path, slowest = path + slowest + cost, 0.0
        else:
            slowest = max(slowest, cost)
    return {"wall_s": wall, "cpu_s": sum(cost for _, cost in workers.costs), "path_s": path}


def figures_of(prefix: str, runs: list[dict[str, float]]) -> dict[str, Figure]:
    """Median, minimum and maximum of every kind of seconds, with keys `<prefix>.<kind>[_min,_max]`."""
    figures: dict[str, Figure] = {}
    for kind in runs[0]:
        figures |= spread(f"{prefix}.{kind}", [run[kind] for run in runs])
    return figures


class Bench:
    """A blob store in `folder` and an event loop, shared by all measurements. masks: of the round made last."""

    def __init__(self, folder: Path) -> None:
        self.blobs = DirectoryBlobs(folder / "blobs")
        self.blobs.prepare()
        self.loop = asyncio.new_event_loop()

    def size(self, workers: TimedWorkers, clients: int, values: int, repetitions: int) -> dict[str, Figure]:
        """Figures of folding and unmasking for one number of clients and one vector length."""
        figures: dict[str, Figure] = {}
        for prefix, step in self.steps(clients, values).items():
            runs = [time_of(workers, partial(step, workers), self.loop) for _ in range(repetitions)]
            figures |= figures_of(f"{prefix}.n{clients}.m{values}", runs)
        terms = terms_of(clients, values)
        folded = clients * (plan_task(terms).sum_plan.partial_bytes - 8)
        figures[f"fold.n{clients}.m{values}.bytes"] = folded
        seconds = float(figures[f"fold.n{clients}.m{values}.cpu_s"] or 0)
        figures[f"fold.n{clients}.m{values}.gb_per_s"] = folded / seconds / 1e9
        figures[f"unmask.n{clients}.m{values}.masks"] = self.masks
        return figures

    def steps(self, clients: int, values: int) -> dict[str, Callable[[TimedWorkers], Any]]:
        """The steps `fold` and `unmask` for a masked round of this size; sets `self.masks` to its number of masks."""
        terms = terms_of(clients, values)
        refs = contributions(self.blobs, terms, clients)
        masks, self.masks = masks_of(terms, clients)
        partial_sum = self.loop.run_until_complete(fold_all(workers_here(1), self.blobs, terms, refs[:1]))
        # the values under the masks do not affect the time, so contributions are random

        async def fold(workers: TimedWorkers) -> None:
            folded = await fold_all(workers, self.blobs, terms, refs)
            self.blobs.delete(folded.key)

        async def unmask(workers: TimedWorkers) -> None:
            await unmask_all(workers, self.blobs, terms, masks, partial_sum)

        return {"fold": fold, "unmask": unmask}

    def short_job(self, workers: TimedWorkers) -> Callable[[], Any]:
        """A fold of one contribution of 1,000 values, a millisecond of work, so that nearly all of it is dispatch."""
        terms = terms_of(100, 1000)
        refs = contributions(self.blobs, terms, 1)

        async def fold() -> None:
            self.blobs.delete((await fold_all(workers, self.blobs, terms, refs)).key)

        return fold


def measure_sizes(bench: Bench, quick: bool) -> dict[str, Figure]:
    """Figures by clients and vector length with one worker. The largest sizes run once, which is steady enough."""
    figures: dict[str, Figure] = {}
    workers = workers_here(1)
    for clients, values in sizes(quick):
        say(f"{clients} clients, {values} values")
        figures |= bench.size(workers, clients, values, 1 if clients * values > 50_000_000 else 3)
    return figures


def sizes(quick: bool) -> list[tuple[int, int]]:
    """The pairs (clients, values) to measure."""
    many, lengths = ((20, 40), (1_000, 2_000)) if quick else ((100, 300, 1000), (10_000, 100_000, 1_000_000))
    every = [(clients, values) for clients in many for values in lengths]
    return [(clients, values) for clients, values in every if clients * values <= 300_000_000]


def measure_workers(bench: Bench, folder: Path, quick: bool) -> dict[str, Figure]:
    """Figures of one round by kind and number of workers; all kinds take turns."""
    clients, values, repetitions = (40, 10_000, 1) if quick else (300, 200_000, 3)
    steps = bench.steps(clients, values)
    figures: dict[str, Figure] = {"workers.clients": clients, "workers.values": values, "workers.masks": bench.masks}
    with ExitStack() as stack:
        kinds: dict[str, TimedWorkers] = {}
        for count in (1, 2) if quick else (1, 2, 4):
            kinds[f"here{count}"] = workers_here(count)
            kinds[f"local{count}"] = stack.enter_context(pool_of(count))
            kinds[f"dask{count}"] = stack.enter_context(cluster_of(count, folder, bench.blobs))
        runs: dict[str, list[dict[str, float]]] = {}
        for repetition in range(repetitions + 1):
            say(f"workers, repetition {repetition} of {repetitions}")
            for kind, workers in kinds.items():
                for name, step in steps.items():
                    took = time_of(workers, partial(step, workers), bench.loop)
                    if repetition:  # the first is a warm-up
                        runs.setdefault(f"{kind}.{name}", []).append(took)
        for kind in ("local1", "dask1"):
            trips = [time_of(kinds[kind], bench.short_job(kinds[kind]), bench.loop) for _ in range(30)]
            figures[f"units.dispatch_ms.{kind[:-1]}"] = 1e3 * median(trip["wall_s"] for trip in trips)
    for name, took in runs.items():
        figures |= figures_of(f"workers.{name}", took)
    for kind in kinds:
        for name in steps:
            for seconds in ("wall_s", "path_s"):
                if f"workers.{kind}.{name}.{seconds}" not in figures:
                    continue
                one, now = (figures[f"workers.{which}.{name}.{seconds}"] for which in (f"{kind[:-1]}1", kind))
                figures[f"workers.{kind}.{name}.speedup_{seconds[:-2]}"] = float(one or 0) / float(now or 1)
    return figures


def main() -> None:
    """Measure, print and write the figures."""
    options = arguments(__doc__ or "").parse_args()
    with tempfile.TemporaryDirectory(prefix="hushrec-scaling-") as name:
        bench = Bench(Path(name))
        figures = measure_sizes(bench, options.quick)
        figures |= measure_workers(bench, Path(name), options.quick)
        figures |= measure_units(bench.blobs, options.quick)
        bench.loop.close()
    finish("scaling", figures, options.json)


if __name__ == "__main__":
    main()
