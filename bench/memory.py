"""Measure the memory of a fold worker in a round of long bodies: CoLR, 1,000,000 items, rank 4, dim 32.

.venv/bin/python -m bench.memory [--quick] [--json FILE]
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from aggregator_service.compute.jobs import (
    BlobRef,
    FoldJob,
    MergeJob,
    ReleaseJob,
    StoredBody,
    fold_batch,
    merge_partials,
    release_sum,
)
from aggregator_service.storage.blobs import tag_of
from aggregator_service.storage.directory import DirectoryBlobs
from aggregator_service.tasks.plans import StoredTerms, plan_task
from bench._report import Figure, arguments
from bench.figures import run
from protocols.recipes.base import RoundSpec

ITEMS, BATCH, CLIENTS = 1_000_000, 3, 100
SPEC = RoundSpec(1, bytes(32), 1)
PARAMETERS = {"plain": "{}", "masked": '{"corrupt":0.1,"dropout":0.1,"mode":"curious"}', "ckks": "{}", "oneshot": "{}"}


def measure(items: int) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for mechanism, found in zip(PARAMETERS, pool.map(partial(_measure_one, items), PARAMETERS), strict=True):
            figures |= {f"fold_worker.{mechanism}.{key}": value for key, value in found.items()}
    bodies = [value for key, value in figures.items() if key.endswith(("fold_bodies", "merge_bodies"))]
    figures["fold_worker.peak_bodies"] = max(float(value or 0) for value in bodies)
    return figures


def _measure_one(items: int, mechanism: str) -> dict[str, float]:
    """The figures of one mechanism, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        blobs = DirectoryBlobs(Path(folder))
        blobs.prepare()
        _fold(blobs, _terms(mechanism, 100), _stored(blobs, _terms(mechanism, 100)), None)
        terms = _terms(mechanism, items)
        stored, length = _stored(blobs, terms), plan_task(terms, SPEC.sum_index).contribution_bytes(SPEC, "c_0")
        gc.collect()
        idle = _peak_of(lambda: None)[0]
        peak, first = _peak_of(lambda: _fold(blobs, terms, stored, None))
        next_peak, second = _peak_of(lambda: _fold(blobs, terms, stored, first))
        merge_peak, merged = _peak_of(lambda: merge_partials(MergeJob(blobs, "t", terms, SPEC, (first, second))))
        figures = {"fold_bodies": (max(peak, next_peak) - idle) / length, "merge_bodies": (merge_peak - idle) / length}
        if mechanism == "plain":  # the server opens the sum and computes the model
            job = ReleaseJob(blobs, "t", terms, SPEC, bytes(32), merged, 3 * BATCH, None, True, None)
            figures["release_bodies"] = (_peak_of(lambda: release_sum(job))[0] - idle) / length
        return figures


def _terms(mechanism: str, items: int) -> StoredTerms:
    recipe = f'{{"items":{items},"dim":32,"rank":4,"clip":0.1}}'
    return StoredTerms("colr", recipe, mechanism, PARAMETERS[mechanism], CLIENTS)


def _stored(blobs: DirectoryBlobs, terms: StoredTerms) -> StoredBody:
    """A stored contribution of zeros, which every mechanism can fold."""
    body, key = bytes(plan_task(terms, SPEC.sum_index).contribution_bytes(SPEC, "c_0")), "contributions/t-1-c_0"
    blobs.put(key, body)
    return StoredBody(key, tag_of(body))


def _fold(blobs: DirectoryBlobs, terms: StoredTerms, stored: StoredBody, partial: BlobRef | None) -> BlobRef:
    batch = tuple((f"c_{number}", stored) for number in range(BATCH))
    return fold_batch(FoldJob(blobs, "t", terms, SPEC, partial, batch))


def _peak_of(step: Callable[[], Any]) -> tuple[int, Any]:
    """The peak resident memory of this process during a step, in bytes, and what the step returns."""
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present size
    result = step()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1]), result
    raise RuntimeError("the system does not tell the peak memory of a process")


if __name__ == "__main__":
    run("memory", arguments(__doc__), lambda options: measure(100_000 if options.quick else ITEMS))
