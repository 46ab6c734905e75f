"""Measure the server's memory by size of the cohort: the same encrypted round with 50 and with 500 contributions.

    .venv/bin/python -m bench.memory [--quick] [--json FILE]

A real `hushrec-server` receives the item matrix of ML-1M from 8 clients at a time and folds in a worker process. The
figure is the peak resident memory of both processes together. A worker's memory in a round of long bodies is measured
for itself.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
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
from aggregator_service.tasks.plans import TaskTerms, plan_task
from bench._report import MIB, Figure, Watch, arguments, ratio, say
from bench.figures import run
from bench.service_load import Federation
from protocols.recipes.base import RoundSpec

# --- The peak memory of a fold worker, in bodies, for a round of long ones: CoLR, 1,000,000 items, rank 4, dim 32

FOLDED_ITEMS, BATCH, CLIENTS = 1_000_000, 3, 100
SPEC = RoundSpec(1, bytes(32), 1)
PARAMETERS = {"plain": "{}", "masked": '{"corrupt":0.1,"dropout":0.1,"mode":"curious"}', "ckks": "{}", "oneshot": "{}"}


def measure_fold_memory(items: int) -> dict[str, Figure]:
    """The figures `fold_worker.*`."""
    figures: dict[str, Figure] = {"fold_worker.items": items}
    context = get_context("spawn")
    for mechanism in PARAMETERS:
        say(f"fold worker, {mechanism}")
        receiving, sending = context.Pipe(duplex=False)
        worker = context.Process(target=_measure_one, args=(mechanism, items, sending))
        worker.start()
        figures |= {f"fold_worker.{mechanism}.{key}": value for key, value in receiving.recv().items()}
        worker.join()
    bodies = [value for key, value in figures.items() if key.endswith(("fold_bodies", "merge_bodies"))]
    figures["fold_worker.peak_bodies"] = max(float(value or 0) for value in bodies)
    return figures


def _measure_one(mechanism: str, items: int, answer: Connection) -> None:
    """In a process of its own: send the figures of one mechanism."""
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
        figures = {
            "body_bytes": length,
            "idle_mib": idle / MIB,
            "fold_bodies": (max(peak, next_peak) - idle) / length,
            "merge_bodies": (merge_peak - idle) / length,
        }
        if mechanism == "plain":  # the server opens the sum and computes the model
            job = ReleaseJob(blobs, "t", terms, SPEC, bytes(32), merged, 3 * BATCH, None, True, None)
            figures["release_bodies"] = (_peak_of(lambda: release_sum(job))[0] - idle) / length
    answer.send(figures)


def _terms(mechanism: str, items: int) -> TaskTerms:
    recipe = f'{{"items":{items},"dim":32,"rank":4,"clip":0.1}}'
    return TaskTerms("colr", recipe, mechanism, PARAMETERS[mechanism], CLIENTS)


def _stored(blobs: DirectoryBlobs, terms: TaskTerms) -> StoredBody:
    """A stored contribution of zeros, which every mechanism can fold."""
    body, key = bytes(plan_task(terms, SPEC.sum_index).contribution_bytes(SPEC, "c_0")), "contributions/t-1-c_0"
    return StoredBody(key, blobs.put(key, body), tag_of(body))


def _fold(blobs: DirectoryBlobs, terms: TaskTerms, stored: StoredBody, partial: BlobRef | None) -> BlobRef:
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


# --- One round through a fresh server

ITEMS = 3706
SIZES = (50, 500)
UPLOADERS = 8
BODIES = 4


def measure_cohort(dim: int, cohort: int) -> dict[str, Figure]:
    """Figures of one round of `cohort` contributions through a fresh server: peak memory in MiB and seconds."""
    settings = {"HUSHREC_TUNING": '{"recheck_seconds": 0.2}'}
    with (
        tempfile.TemporaryDirectory() as root,
        Federation(Path(root), items=ITEMS, dim=dim, cohort=cohort, **settings) as federation,
    ):
        federation.enrol(cohort)
        federation.upload_envelopes()
        bodies, _ = federation.sealed(BODIES)
        federation.wait_round("collecting")
        started = time.perf_counter()
        with Watch(federation.server.pid) as watch:
            federation.load(federation.uploads(federation.members, bodies), 201, connections=UPLOADERS)
            uploaded = time.perf_counter()
            federation.wait_round("complete")
        ended = time.perf_counter()
    return {
        f"peak_rss_mib_{cohort}": watch.total / MIB,
        f"peak_rss_api_mib_{cohort}": watch.api / MIB,
        f"peak_rss_workers_mib_{cohort}": watch.workers / MIB,
        f"seconds_{cohort}": ended - started,
        f"fold_rest_s_{cohort}": ended - uploaded,
        "contribution_bytes": len(bodies[0]),
    }


def measure(options: argparse.Namespace) -> dict[str, Figure]:
    """Figures of the fold worker, and of both cohorts."""
    figures = measure_fold_memory(100_000 if options.quick else FOLDED_ITEMS)
    for cohort in SIZES:
        say(f"a round of {cohort} contributions")
        figures |= measure_cohort(16 if options.quick else 64, cohort)
    return figures | {"peak_rss_ratio": ratio(figures, *(f"peak_rss_mib_{cohort}" for cohort in reversed(SIZES)))}


if __name__ == "__main__":
    run("memory", arguments(__doc__), measure)
