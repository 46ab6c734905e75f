"""Measure folding and unmasking by number of clients, vector length, and workers.

    .venv/bin/python -m bench.scaling [--quick] [--json FILE]

The jobs are the service's own (`aggregator_service.compute.split_jobs`), over blobs on disk, in batches of 32 per
worker. Every job reports the processor seconds that it took in its worker. `cpu_s` is their sum. `path_s` is the time
of the slowest part and of the job that merges the parts, batch after batch: the time with one core per worker.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregator_service.compute.jobs import BlobRef, FoldJob, MergeJob, ReleaseJob, StoredBody, merge_partials
from aggregator_service.compute.split_jobs import SplitJobs
from aggregator_service.compute.unmasking import Masks
from aggregator_service.compute.workers import FoldPool
from aggregator_service.storage.blobs import tag_of
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.tasks.plans import TaskTerms, plan_task
from bench._report import Figure, arguments, ratio, say, time_in_turn
from bench.figures import run
from bench.sums import masked_run
from protocols.recipes.base import RoundSpec
from protocols.sums.masked.masks import pair_mask_key
from protocols.sums.masked.parameters import ClientPolicy
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.masked.run import MaskedRun
from protocols.sums.masked.shamir import combine, split
from protocols.sums.masked.shares import split_secrets
from protocols.sums.masked.wire import share_bytes

BATCH: Final = 32
DROPOUTS: Final = 0.1
DISTINCT: Final = 4
"""Number of different contributions; they are used again and again, so that the disk need not hold gigabytes."""
SPEC: Final = RoundSpec(1, bytes(32), 1)
ONCE: Final = ("merge_partials", "release_sum")
"""Names of the jobs that run alone."""
THRESHOLDS: Final = (12, 28, 78, 114)
"""Of 100 clients in bench/masked.py; of 1,000 curious, 1,000 semi-malicious and 1,000,000 semi-malicious at 0.1."""


# --- Workers that report the time of a job


def _timed(job: tuple[Callable[[Any], Any], Any]) -> tuple[Any, float]:
    """Run a job in a worker; return its result and the processor seconds that it took there."""
    work, given = job
    start = time.process_time()
    return work(given), time.process_time() - start


class TimedPool(FoldPool):
    """A pool whose jobs use one thread each. costs: (job name, processor seconds) of every job so far."""

    def __init__(self, workers: int, executor: Executor | None = None) -> None:
        super().__init__(workers, executor)
        self.costs: list[tuple[str, float]] = []

    def threads(self, jobs: int) -> int:
        """1, so that a job's processor seconds equal its wall time on an idle core."""
        return 1

    async def run(self, work: Callable[[Any], Any], job: Any) -> Any:
        """See `Workers.run`."""
        outcome, cost = await super().run(_timed, (work, job))
        self.costs.append((work.__name__, cost))
        return outcome


class InPlace(Executor):
    """Runs a job at once in this very process: for what a single worker's processor does, and nothing else."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The finished future of a call."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


# --- Masked rounds to fold and to unmask


def terms_of(clients: int, values: int) -> TaskTerms:
    """Terms of a FedMF task over masked sums, of about `values` values and some counts over `clients` clients."""
    items = max(100, values // 1000)
    recipe = f'{{"items":{items},"dim":{values // items},"clip":0.1}}'
    return TaskTerms("fedmf", recipe, "masked", '{"corrupt":0.1,"dropout":0.1,"mode":"curious"}', clients)


def contributions(blobs: DirectoryBlobs, terms: TaskTerms, clients: int) -> tuple[tuple[str, StoredBody], ...]:
    """Store random ring elements; return (client id, blob) for every client."""
    plan = plan_task(terms).sum_plan
    rng, refs = np.random.default_rng(1), []
    for number in range(DISTINCT):
        body = rng.bytes(plan.partial_bytes - 8)
        key = f"contributions/t_bench-{plan.layout.length}-{number}"
        refs.append(StoredBody(key, blobs.put(key, body), tag_of(body)))
    return tuple((f"c_{number:07}", refs[number % DISTINCT]) for number in range(clients))


def masks_of(terms: TaskTerms, clients: int) -> tuple[Masks, int]:
    """The inputs that remove the masks of a round in which a tenth dropped out, and the number of masks.

    Shares are made by the clients' own functions, but are not sealed and not sent.
    """
    plan = MaskedPlan.of(plan_task(terms).sum_plan)
    policy = ClientPolicy(modes=frozenset({"curious"}))
    run = masked_run(plan, clients, np.zeros(0, plan.dtype), policy=policy).advertise()
    roster, dropped = run.roster, set(range(0, clients, round(1 / DROPOUTS)))
    names = tuple(entry.client_id for entry in roster.entries)
    survivors = tuple(name for place, name in enumerate(names) if place not in dropped)
    masks = len(survivors) + sum(peer not in dropped for place in dropped for peer in roster.neighbours_of(place))
    # no share is wrong, so that the commitments beside the sealed shares are never read
    shares = dict.fromkeys(names, bytes(share_bytes(roster.degree)))
    return Masks(run.context, roster.body, shares, survivors, _replies(run, dropped)), masks


def _replies(run: MaskedRun, dropped: set[int]) -> dict[str, bytes]:
    roster = run.roster
    held: dict[int, dict[int, bytes]] = {place: {} for place in range(len(roster))}
    for place, entry in enumerate(roster.entries):
        state, peers = run.advertised[entry.client_id], roster.neighbours_of(place)
        secret = state.mask_secret.private_bytes_raw()
        for peer, pair in zip(peers, split_secrets(state.seed, secret, roster.threshold, peers), strict=True):
            held[peer][place] = pair.of_mask_key if place in dropped else pair.of_seed
    return {
        entry.client_id: b"".join(held[place][peer] for peer in roster.neighbours_of(place))
        for place, entry in enumerate(roster.entries)
        if place not in dropped
    }


async def fold_all(workers: TimedPool, blobs: DirectoryBlobs, terms: TaskTerms, refs: Any) -> BlobRef:
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
    workers: TimedPool, blobs: DirectoryBlobs, terms: TaskTerms, masks: Masks, partial_sum: BlobRef
) -> None:
    """Remove the masks from a partial sum and release the sum."""
    job = ReleaseJob(blobs, "t_bench", terms, bytes(32), SPEC, partial_sum, len(masks.survivors), masks, False, None)
    released = await SplitJobs(workers).release(job)
    blobs.delete(released.aggregate.key)


def time_of(workers: TimedPool, step: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> dict[str, float]:
    """Processor and critical-path seconds of one step, as `cpu_s` and `path_s`."""
    workers.costs.clear()
    loop.run_until_complete(step())
    path = slowest = 0.0
    for name, cost in [*workers.costs, ("", 0.0)]:
        if name in ONCE or not name:
            path, slowest = path + slowest + cost, 0.0
        else:
            slowest = max(slowest, cost)
    return {"cpu_s": sum(cost for _, cost in workers.costs), "path_s": path}


def figures_of(prefix: str, runs: list[dict[str, float]]) -> dict[str, Figure]:
    """The medians of both kinds of seconds, with keys `<prefix>.<kind>`."""
    return {f"{prefix}.{kind}": median(run[kind] for run in runs) for kind in runs[0]}


class Bench:
    """A blob store in `folder` and an event loop, shared by all measurements. masks: of the round made last."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.blobs, self.loop = DirectoryBlobs(folder / "blobs"), loop
        self.blobs.prepare()

    def size(self, workers: TimedPool, clients: int, values: int, repetitions: int) -> dict[str, Figure]:
        """Figures of folding and unmasking for one number of clients and one vector length."""
        figures: dict[str, Figure] = {}
        for prefix, step in self.steps(clients, values).items():
            runs = [time_of(workers, partial(step, workers), self.loop) for _ in range(repetitions)]
            figures |= figures_of(f"{prefix}.n{clients}.m{values}", runs)
        terms = terms_of(clients, values)
        folded = clients * (plan_task(terms).sum_plan.partial_bytes - 8)
        figures[f"fold.n{clients}.m{values}.bytes"] = folded
        figures[f"fold.n{clients}.m{values}.gb_per_s"] = folded / figures[f"fold.n{clients}.m{values}.cpu_s"] / 1e9
        figures[f"unmask.n{clients}.m{values}.masks"] = self.masks
        return figures

    def steps(self, clients: int, values: int) -> dict[str, Callable[[TimedPool], Any]]:
        """The steps `fold` and `unmask` for a masked round of this size; sets `self.masks` to its number of masks."""
        terms = terms_of(clients, values)
        refs = contributions(self.blobs, terms, clients)
        masks, self.masks = masks_of(terms, clients)
        partial_sum = self.loop.run_until_complete(fold_all(TimedPool(1, InPlace()), self.blobs, terms, refs[:1]))
        # the values under the masks do not affect the time, so contributions are random

        async def fold(workers: TimedPool) -> None:
            folded = await fold_all(workers, self.blobs, terms, refs)
            self.blobs.delete(folded.key)

        async def unmask(workers: TimedPool) -> None:
            await unmask_all(workers, self.blobs, terms, masks, partial_sum)

        return {"fold": fold, "unmask": unmask}


def measure_sizes(bench: Bench, quick: bool) -> dict[str, Figure]:
    """Figures by clients and vector length with one worker. The largest sizes run once, which is steady enough."""
    figures: dict[str, Figure] = {}
    workers = TimedPool(1, InPlace())
    for clients, values in sizes(quick):
        say(f"{clients} clients, {values} values")
        figures |= bench.size(workers, clients, values, 1 if clients * values > 50_000_000 else 3)
    return figures


def sizes(quick: bool) -> list[tuple[int, int]]:
    """The pairs (clients, values) to measure."""
    many, lengths = ((20, 40), (1_000, 2_000)) if quick else ((100, 300, 1000), (10_000, 100_000, 1_000_000))
    every = [(clients, values) for clients in many for values in lengths]
    return [(clients, values) for clients, values in every if clients * values <= 300_000_000]


def measure_workers(bench: Bench, quick: bool) -> dict[str, Figure]:
    """Figures of one round by kind and number of workers; all kinds take turns."""
    clients, values, repetitions = (40, 10_000, 1) if quick else (300, 200_000, 3)
    steps = bench.steps(clients, values)
    figures: dict[str, Figure] = {"workers.clients": clients, "workers.values": values, "workers.masks": bench.masks}
    with ExitStack() as stack:
        kinds: dict[str, TimedPool] = {}
        for count in (1, 2) if quick else (1, 2, 4):
            kinds[f"here{count}"] = TimedPool(count, InPlace())
            kinds[f"local{count}"] = stack.enter_context(closing(TimedPool(count)))
        runs: dict[str, list[dict[str, float]]] = {}
        for repetition in range(repetitions + 1):
            say(f"workers, repetition {repetition} of {repetitions}")
            for kind, workers in kinds.items():
                for name, step in steps.items():
                    took = time_of(workers, partial(step, workers), bench.loop)
                    if repetition:  # the first is a warm-up
                        runs.setdefault(f"{kind}.{name}", []).append(took)
        terms = terms_of(100, 1000)
        refs = contributions(bench.blobs, terms, 1)

        def dispatch() -> None:
            """Fold one contribution of 1,000 values, a millisecond of work, so that nearly all of it is dispatch."""
            bench.blobs.delete(bench.loop.run_until_complete(fold_all(kinds["local1"], bench.blobs, terms, refs)).key)

        figures["units.dispatch_ms.local"] = 1e3 * time_in_turn({"": dispatch}, 30)[""].median
    for name, took in runs.items():
        figures |= figures_of(f"workers.{name}", took)
        own, one = (f"workers.{which}.path_s" for which in (name, re.sub(r"\d", "1", name)))
        figures[f"workers.{name}.speedup_path"] = ratio(figures, one, own)
    return figures


def measure_units(blobs: DirectoryBlobs, quick: bool) -> dict[str, Figure]:
    """The figures `units.*` except dispatch: processor time of steps from which larger rounds are computed."""

    def seconds(step: Callable[[], object], calls: int) -> float:
        return time_in_turn({"": step}, 5, {"": calls}, time.process_time, warm=False)[""].median

    figures: dict[str, Figure] = {}
    calls = 5 if quick else 30
    for threshold in THRESHOLDS:
        shares = dict(enumerate(split(os.urandom(31) + b"\0", threshold, range(1, threshold + 1)), 1))
        figures[f"units.secret_us.t{threshold}"] = 1e6 * seconds(partial(combine, shares, threshold), calls)
    key, other = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key().public_bytes_raw()
    own = key.public_key().public_bytes_raw()
    figures["units.pair_us"] = 1e6 * seconds(partial(pair_mask_key, key, own, other), 10 * calls)
    terms = terms_of(100, 1_000_000)
    size = plan_task(terms).sum_plan.partial_bytes
    parts = [f"partials/t_bench-unit-{number}" for number in range(8)]
    refs = tuple(BlobRef(part, blobs.put(part, bytes(size))) for part in parts)
    merge = MergeJob(blobs, "t_bench", terms, SPEC, refs)
    took = seconds(lambda: blobs.delete(merge_partials(merge).key), 1 if quick else 3)
    blobs.delete(*parts)
    return figures | {"units.merge_bytes_per_s": len(refs) * size / took}


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="hushrec-scaling-") as name, closing(asyncio.new_event_loop()) as loop:
        bench = Bench(Path(name), loop)
        figures = measure_sizes(bench, options.quick)
        figures |= measure_workers(bench, options.quick)
        return figures | measure_units(bench.blobs, options.quick)


if __name__ == "__main__":
    run("scaling", arguments(__doc__), measure)
