"""How folding and unmasking grow with clients and vector length, and shrink with workers: processes, and Dask.

    .venv/bin/python bench/scaling.py [--quick] [--json FILE]

Jobs are the service's own (`aggregator_service.compute.split_jobs`), over blobs on disk, in batches of 32 a
worker. Every job tells the processor seconds that it took in its worker. `cpu_s` is their sum; `path_s` is what the
slowest part and the job that puts the parts together took, batch after batch: the time that is left with a core of
its own for every worker. `wall_s` is the clock's, on this machine with what else ran on it. bench/README.md lists
the keys.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from aggregator_service.compute.jobs import BlobRef, FoldJob, ReleaseJob
from aggregator_service.compute.split_jobs import SplitJobs
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.tasks.plans import TaskTerms, plan_task
from bench._report import Figure, arguments, bars, show, write_figures
from bench.scaling_parts import DROPOUTS, Here, Timed, cluster_of, contributions, masks_of, nothing, pool_of, terms_of
from bench.scaling_units import measure_units
from protocols.recipes.base import RoundSpec

BATCH = 32
SPEC = RoundSpec(1, bytes(32), 1)
ONCE = ("merge_partials", "release_sum")
"""Jobs that nothing runs beside."""


async def fold_all(workers: Timed, blobs: DirectoryBlobs, terms: TaskTerms, given: Any) -> BlobRef:
    """A round's contributions, batch after batch, as the engine folds them."""
    partial_sum, jobs = None, SplitJobs(workers)
    for first in range(0, len(given), BATCH * workers.width):
        batch = given[first : first + BATCH * workers.width]
        before, partial_sum = partial_sum, await jobs.fold(FoldJob(blobs, "t_bench", terms, SPEC, partial_sum, batch))
        workers.costs.append(("", 0.0))  # a batch is over
        if before is not None:
            blobs.delete(before.key)
    assert partial_sum is not None
    return partial_sum


async def unmask_all(workers: Timed, blobs: DirectoryBlobs, terms: TaskTerms, given: Any) -> None:
    """Masks taken off a partial sum, and the sum released."""
    masks, partial_sum = given
    job = ReleaseJob(blobs, "t_bench", terms, bytes(32), SPEC, partial_sum, len(masks.survivors), masks, False, None)
    released = await SplitJobs(workers).release(job)
    blobs.delete(released.aggregate.key)


def time_of(workers: Timed, move: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> dict[str, float]:
    """Seconds of one move: by the clock, of the processors, and along the path that workers cannot shorten."""
    workers.costs.clear()
    start = time.perf_counter()
    loop.run_until_complete(move())
    wall = time.perf_counter() - start
    path = slowest = 0.0
    for name, cost in [*workers.costs, ("", 0.0)]:
        if name in ONCE or not name:
            path, slowest = path + slowest + cost, 0.0
        else:
            slowest = max(slowest, cost)
    return {"wall_s": wall, "cpu_s": sum(cost for _, cost in workers.costs), "path_s": path}


def figures_of(prefix: str, runs: list[dict[str, float]]) -> dict[str, Figure]:
    """Median, least and most of every kind of seconds."""
    figures: dict[str, Figure] = {}
    for kind in runs[0]:
        values = [run[kind] for run in runs]
        figures |= {f"{prefix}.{kind}": median(values), f"{prefix}.{kind}_min": min(values)}
        figures[f"{prefix}.{kind}_max"] = max(values)
    return figures


class Bench:
    """Blobs, an event loop, and the rounds that were made so far."""

    def __init__(self, folder: Path) -> None:
        self.blobs = DirectoryBlobs(folder / "blobs")
        self.blobs.prepare()
        self.loop = asyncio.new_event_loop()

    def size(self, workers: Timed, clients: int, values: int, repetitions: int) -> dict[str, Figure]:
        """One number of clients and one length of vector, one worker."""
        figures: dict[str, Figure] = {}
        for prefix, move in self.moves(clients, values).items():
            runs = [time_of(workers, partial(move, workers), self.loop) for _ in range(repetitions)]
            figures |= figures_of(f"{prefix}.n{clients}.m{values}", runs)
        terms = terms_of("masked", clients, values)
        figures[f"fold.n{clients}.m{values}.bytes"] = clients * (plan_task(terms).sum_plan.partial_bytes - 8)
        figures[f"unmask.n{clients}.m{values}.masks"] = self.masks
        return figures

    def moves(self, clients: int, values: int) -> dict[str, Callable[[Timed], Any]]:
        """Folding and unmasking a masked round of this size; `self.masks` is how many masks it has."""
        terms = terms_of("masked", clients, values)
        given = contributions(self.blobs, terms, clients)
        masks, self.masks = masks_of(terms, clients)
        partial_sum = self.loop.run_until_complete(fold_all(Timed(Here(), 1), self.blobs, terms, given[:1]))
        # what lies under the masks does not matter here: random contributions are as good as any

        async def fold(workers: Timed) -> None:
            folded = await fold_all(workers, self.blobs, terms, given)
            self.blobs.delete(folded.key)

        async def unmask(workers: Timed) -> None:
            await unmask_all(workers, self.blobs, terms, (masks, partial_sum))

        return {"fold": fold, "unmask": unmask}


def measure_sizes(bench: Bench, quick: bool, tick: Callable[[], object]) -> dict[str, Figure]:
    """Clients x vector length with one worker. The largest sizes are run once: they take long enough to be steady."""
    figures: dict[str, Figure] = {}
    workers = Timed(Here(), 1)
    for clients, values in sizes(quick):
        figures |= bench.size(workers, clients, values, 1 if clients * values > 50_000_000 else 3)
        tick()
    return figures


def sizes(quick: bool) -> list[tuple[int, int]]:
    """(clients, values)."""
    many, lengths = ((50, 100), (10_000, 100_000)) if quick else ((100, 300, 1000), (10_000, 100_000, 1_000_000))
    every = [(clients, values) for clients in many for values in lengths]
    return [(clients, values) for clients, values in every if clients * values <= 300_000_000]


def measure_workers(bench: Bench, folder: Path, quick: bool, tick: Callable[[], object]) -> dict[str, Figure]:
    """The same round with more and more workers, all kinds in turn."""
    clients, values, repetitions = (100, 100_000, 2) if quick else (300, 200_000, 3)
    moves = bench.moves(clients, values)
    figures: dict[str, Figure] = {"workers.clients": clients, "workers.values": values, "workers.masks": bench.masks}
    with ExitStack() as stack:
        kinds: dict[str, Timed] = {}
        for count in (1, 2) if quick else (1, 2, 4):
            kinds[f"here{count}"] = Timed(Here(), count)
            kinds[f"local{count}"] = stack.enter_context(pool_of(count))
            kinds[f"dask{count}"] = stack.enter_context(cluster_of(count, folder, bench.blobs))
        runs: dict[str, list[dict[str, float]]] = {}
        for repetition in range(repetitions + 1):
            for kind, workers in kinds.items():
                for name, move in moves.items():
                    took = time_of(workers, partial(move, workers), bench.loop)
                    if repetition:  # the first one warms up
                        runs.setdefault(f"{kind}.{name}", []).append(took)
                tick()
        for kind in ("local1", "dask1"):
            trips = [time_of(kinds[kind], partial(kinds[kind].run, nothing, None), bench.loop) for _ in range(30)]
            figures[f"units.dispatch_ms.{kind[:-1]}"] = 1e3 * median(trip["wall_s"] for trip in trips)
    for name, took in runs.items():
        figures |= figures_of(f"workers.{name}", took)
    for kind in kinds:
        for name in moves:
            for seconds in ("wall_s", "path_s"):
                one, now = (figures[f"workers.{which}.{name}.{seconds}"] for which in (f"{kind[:-1]}1", kind))
                figures[f"workers.{kind}.{name}.speedup_{seconds[:-2]}"] = float(one or 0) / float(now or 1)
    return figures


def main() -> None:
    """Measure, show, write the JSON."""
    given = arguments(__doc__.partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory(prefix="hushrec-scaling-") as name, bars() as progress:
        bench = Bench(Path(name))
        bar = progress.add_task("clients x values", total=len(sizes(given.quick)))
        figures = measure_sizes(bench, given.quick, partial(progress.advance, bar))
        bar = progress.add_task("workers, in turn", total=18 if given.quick else 36)
        figures |= measure_workers(bench, Path(name), given.quick, partial(progress.advance, bar))
        bar = progress.add_task("units", total=4)
        figures |= measure_units(bench.blobs, given.quick, partial(progress.advance, bar))
        bench.loop.close()
    shown = {key: value for key, value in figures.items() if not key.endswith(("_min", "_max"))}
    show(f"Folding and unmasking, {DROPOUTS:.0%} drop out, one thread a worker", shown)
    write_figures(given.json, figures)


if __name__ == "__main__":
    main()
