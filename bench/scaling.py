"""Measure folding and unmasking by number of clients, vector length, and workers.

    .venv/bin/python -m bench.scaling [--quick] [--json FILE]

The jobs are the service's own (`aggregator_service.compute.split_jobs`), over blobs on disk, in batches of 32 per
worker. They run in this process, those of all workers one after the other, and each reports its processor seconds.
`cpu_s` is their sum. `path_s` is the time of the slowest part and of the job that merges the parts, batch after batch:
the time with one core per worker.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregator_service.compute.jobs import BlobRef, FoldJob, ReleaseJob, StoredBody
from aggregator_service.compute.split_jobs import SplitJobs
from aggregator_service.compute.unmasking import Masks
from aggregator_service.compute.workers import FoldPool
from aggregator_service.storage.blobs import tag_of
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.tasks.plans import TaskTerms, plan_task
from bench._report import Figure, arguments, in_turn, ratio, say, time_in_turn
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


class InPlace(FoldPool):
    """So many workers whose jobs run in this very process, with one thread each.

    costs: (job name, processor seconds) of every job so far; ("", 0.0) ends a batch.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.costs: list[tuple[str, float]] = []

    def threads(self, jobs: int) -> int:
        """1, so that a job's processor seconds equal its wall time on an idle core."""
        return 1

    async def run(self, work: Callable[[Any], Any], job: Any) -> Any:
        """See `Workers.run`."""
        start = time.process_time()
        outcome = work(job)
        self.costs.append((work.__name__, time.process_time() - start))
        return outcome

    def time_of(self, step: Callable[[InPlace], Awaitable[None]]) -> dict[str, float]:
        """Processor and critical-path seconds of one step on these workers, as `cpu_s` and `path_s`."""

        async def play() -> None:
            await step(self)

        self.costs.clear()
        asyncio.run(play())
        path = slowest = 0.0
        for name, cost in [*self.costs, ("", 0.0)]:
            if name in ONCE or not name:
                path, slowest = path + slowest + cost, 0.0
            else:
                slowest = max(slowest, cost)
        return {"cpu_s": sum(cost for _, cost in self.costs), "path_s": path}


# --- Masked rounds to fold and to unmask


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


class MaskedSum:
    """A masked round of a FedMF task of about `values` values and some counts, whose messages are stored in `blobs`.

    The values under the masks do not affect the time, so contributions are random. masks: to take off the sum.
    bytes: of a contribution.
    """

    def __init__(self, blobs: DirectoryBlobs, clients: int, values: int) -> None:
        items = max(100, values // 1000)
        recipe = f'{{"items":{items},"dim":{values // items},"clip":0.1}}'
        mechanism = '{"corrupt":0.1,"dropout":0.1,"mode":"curious"}'
        self.blobs, self.terms = blobs, TaskTerms("fedmf", recipe, "masked", mechanism, clients)
        self.bytes, rng = plan_task(self.terms).sum_plan.partial_bytes - 8, np.random.default_rng(1)
        stored = []
        for number in range(DISTINCT):
            body, key = rng.bytes(self.bytes), f"contributions/t_bench-{clients}-{values}-{number}"
            stored.append(StoredBody(key, blobs.put(key, body), tag_of(body)))
        self.contributions = tuple((f"c_{number:07}", stored[number % DISTINCT]) for number in range(clients))
        self.unmasking, self.masks = masks_of(self.terms, clients)
        self.partial = asyncio.run(self._folded(InPlace(1), clients=1))

    async def _folded(self, workers: InPlace, clients: int) -> BlobRef:
        """Fold the contributions of the first `clients`, batch after batch, as the service does."""
        partial_sum, jobs, step = None, SplitJobs(workers), BATCH * workers.width
        for first in range(0, clients, step):
            batch = self.contributions[first : min(first + step, clients)]
            job = FoldJob(self.blobs, "t_bench", self.terms, SPEC, partial_sum, batch)
            before, partial_sum = partial_sum, await jobs.fold(job)
            workers.costs.append(("", 0.0))
            if before is not None:
                self.blobs.delete(before.key)
        assert partial_sum is not None
        return partial_sum

    async def fold(self, workers: InPlace) -> None:
        """Fold all contributions."""
        self.blobs.delete((await self._folded(workers, len(self.contributions))).key)

    async def unmask(self, workers: InPlace) -> None:
        """Take the masks off a partial sum, and release it."""
        job = ReleaseJob(
            self.blobs, "t_bench", self.terms, SPEC, bytes(32), self.partial, len(self.unmasking.survivors),
            self.unmasking, False, None,
        )  # fmt: skip
        self.blobs.delete((await SplitJobs(workers).release(job)).aggregate.key)


def medians(prefix: str, runs: list[dict[str, float]]) -> dict[str, Figure]:
    """The medians of both kinds of seconds, with keys `<prefix>.<kind>`."""
    return {f"{prefix}.{kind}": median(run[kind] for run in runs) for kind in runs[0]}


def measure_sizes(blobs: DirectoryBlobs, quick: bool) -> dict[str, Figure]:
    """Figures by clients and vector length with one worker. The largest sizes run once, which is steady enough."""
    figures: dict[str, Figure] = {}
    many, lengths = ((20, 40), (1_000, 2_000)) if quick else ((100, 300, 1000), (10_000, 100_000, 1_000_000))
    for clients, values in ((clients, values) for clients in many for values in lengths):
        if clients * values > 300_000_000:
            continue
        say(f"{clients} clients, {values} values")
        made, size = MaskedSum(blobs, clients, values), f"n{clients}.m{values}"
        repetitions = 1 if clients * values > 50_000_000 else 3
        for name, step in (("fold", made.fold), ("unmask", made.unmask)):
            figures |= medians(f"{name}.{size}", [InPlace(1).time_of(step) for _ in range(repetitions)])
        figures |= {f"fold.{size}.bytes": clients * made.bytes, f"unmask.{size}.masks": made.masks}
        figures[f"fold.{size}.gb_per_s"] = ratio(figures, f"fold.{size}.bytes", f"fold.{size}.cpu_s") / 1e9
    return figures


def measure_workers(blobs: DirectoryBlobs, quick: bool) -> dict[str, Figure]:
    """Figures of one round by number of workers, which take turns."""
    clients, values, repetitions = (40, 10_000, 1) if quick else (300, 200_000, 3)
    made = MaskedSum(blobs, clients, values)
    figures: dict[str, Figure] = {"workers.clients": clients, "workers.values": values, "workers.masks": made.masks}
    say("workers")
    steps = {
        f"here{count}.{name}": partial(InPlace(count).time_of, step)
        for count in ((1, 2) if quick else (1, 2, 4))
        for name, step in (("fold", made.fold), ("unmask", made.unmask))
    }
    for name, taken in in_turn(steps, repetitions).items():
        figures |= medians(f"workers.{name}", taken)
        own, one = (f"workers.{which}.path_s" for which in (name, re.sub(r"\d", "1", name)))
        figures[f"workers.{name}.speedup_path"] = ratio(figures, one, own)
    return figures


def measure_units(quick: bool) -> dict[str, Figure]:
    """The figures `units.*`: processor time of steps from which larger rounds are computed, in microseconds."""
    figures: dict[str, Figure] = {}

    def measured(name: str, step: Callable[[], object], calls: int) -> None:
        timing = time_in_turn({name: step}, 5, {name: calls}, time.process_time, warm=False)[name]
        figures[f"units.{name}"] = 1e6 * timing.median

    calls = 5 if quick else 30
    for threshold in THRESHOLDS:
        shares = dict(enumerate(split(os.urandom(31) + b"\0", threshold, range(1, threshold + 1)), 1))
        measured(f"secret_us.t{threshold}", partial(combine, shares, threshold), calls)
    key, other = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key().public_bytes_raw()
    measured("pair_us", partial(pair_mask_key, key, key.public_key().public_bytes_raw(), other), 10 * calls)
    return figures


def measure(quick: bool) -> dict[str, Figure]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="hushrec-scaling-") as name:
        blobs = DirectoryBlobs(Path(name) / "blobs")
        blobs.prepare()
        return measure_sizes(blobs, quick) | measure_workers(blobs, quick) | measure_units(quick)


if __name__ == "__main__":
    run("scaling", arguments(__doc__), lambda options: measure(options.quick))
