"""Folds and releases as pure functions from blob keys to new blob keys: what runs in the worker processes.

A job names everything by value; a worker opens one contribution at a time, so its memory is O(vector). It never
touches the database: a job that is lost, or done twice, changes nothing until the engine commits its outcome. What it
writes has a key that no other attempt at the job has: of two workers that both hold it to be theirs, neither can touch
what the other wrote. The blobs of attempts that nobody waited for are swept away as orphans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from aggregator_service.compute.unmasking import Masks, SomeMasks
from aggregator_service.crash_points import crash_point
from aggregator_service.storage.blobs import BlobStore, new_key
from aggregator_service.tasks.plans import TaskPlan, TaskTerms, plan_task
from protocols.layout import Route
from protocols.recipes.base import RoundSpec
from protocols.sums.base import Buffer
from protocols.sums.masked.server import BadShare

__all__ = [
    "BlobRef",
    "FoldJob",
    "MergeJob",
    "ReleaseJob",
    "Released",
    "StoredState",
    "UnmaskJob",
    "fold_batch",
    "merge_partials",
    "release_sum",
    "unmask_some",
]


@dataclass(frozen=True)
class BlobRef:
    """A blob and the SHA-256 (hex) that its bytes must have."""

    key: str
    digest: str


@dataclass(frozen=True)
class StoredState:
    """An encoded model state, or a group's view of it, as it was stored; the fields of its row."""

    blob_key: str
    digest: str
    bytes: int


@dataclass(frozen=True)
class FoldJob:
    """Add a batch of contributions to a partial sum (None: an empty one)."""

    blobs: BlobStore
    task_id: str
    terms: TaskTerms
    spec: RoundSpec
    partial: BlobRef | None
    contributions: tuple[tuple[str, BlobRef], ...]


@dataclass(frozen=True)
class MergeJob:
    """Add up partial sums of the same round."""

    blobs: BlobStore
    task_id: str
    terms: TaskTerms
    spec: RoundSpec
    partials: tuple[BlobRef, ...]


@dataclass(frozen=True)
class UnmaskJob:
    """Find what takes some of a round's masks off, as a partial sum of no contributions."""

    blobs: BlobStore
    task_id: str
    spec: RoundSpec
    masks: SomeMasks


@dataclass(frozen=True)
class ReleaseJob:
    """Turn a partial into the aggregate. With `absorb`, anyone can open it: absorb it into the model state too.

    `state` is the newest snapshot and its round (None: the initial state), `survivors` how many were folded. A masked
    sum is opened with `masks`, or with the `corrections` that workers found in them, each as a partial sum.
    """

    blobs: BlobStore
    task_id: str
    terms: TaskTerms
    task_seed: bytes = field(repr=False)
    spec: RoundSpec
    partial: BlobRef
    survivors: int
    masks: Masks | None
    absorb: bool
    state: tuple[int, BlobRef] | None
    corrections: tuple[BlobRef, ...] = ()


@dataclass(frozen=True)
class Released:
    """The aggregate, its length, and where the server can see one the new model state and what it says of itself.

    `views` are what the groups see of the state, in their order. `bad_shares` are those that did not fit when the masks
    were taken off.
    """

    aggregate: BlobRef
    aggregate_bytes: int
    state: StoredState | None
    views: tuple[StoredState, ...]
    report: dict[str, float]
    is_done: bool
    bad_shares: tuple[BadShare, ...]


def fold_batch(job: FoldJob) -> BlobRef:
    """The new partial. Raises `BlobDamagedError` when the storage lost or altered a blob."""
    task = plan_task(job.terms, job.spec.sum_index)
    partial = None if job.partial is None else job.blobs.view(job.partial.key, job.partial.digest)
    folded = task.mechanism.fold(task.sum_plan, partial, _contributions(job, task))
    return _write(job, "partials", folded)


def _contributions(job: FoldJob, task: TaskPlan) -> Iterator[tuple[Route, memoryview]]:
    for client_id, blob in job.contributions:
        yield task.route(job.spec, client_id), job.blobs.view(blob.key, blob.digest)
        crash_point("worker.folding")


def merge_partials(job: MergeJob) -> BlobRef:
    """One partial of several. Raises `BlobDamagedError` as `fold_batch` does."""
    task = plan_task(job.terms, job.spec.sum_index)
    merged = task.mechanism.merge(task.sum_plan, (job.blobs.view(blob.key, blob.digest) for blob in job.partials))
    return _write(job, "partials", merged)


def unmask_some(job: UnmaskJob) -> tuple[BlobRef, tuple[BadShare, ...]]:
    """The correction, and the shares that were wrong. `ThresholdError` when these masks do not come off."""
    correction, bad_shares = job.masks.correction()
    crash_point("worker.unmasking")
    return _write(job, "partials", correction), bad_shares


def _write(job: FoldJob | MergeJob | UnmaskJob | ReleaseJob, kind: str, body: bytes, *parts: int) -> BlobRef:
    key = new_key(kind, job.task_id, job.spec.number, *parts)
    return BlobRef(key, job.blobs.put(key, body))


def release_sum(job: ReleaseJob) -> Released:
    """The aggregate as clients download it; the next model state, too, when anyone can open the sum.

    `ThresholdError` when the masks of a masked sum do not come off: nothing is written then.
    """
    task = plan_task(job.terms, job.spec.sum_index)
    partial: Buffer = job.blobs.view(job.partial.key, job.partial.digest)
    bad_shares: tuple[BadShare, ...] = ()
    if job.masks is not None:
        partial, bad_shares = job.masks.take_off(partial)
    if job.corrections:
        corrections = (job.blobs.view(blob.key, blob.digest) for blob in job.corrections)
        partial = task.mechanism.merge(task.sum_plan, chain((partial,), corrections))
    aggregate = task.mechanism.release(task.sum_plan, partial)
    released = _write(job, "aggregates", aggregate)
    if not job.absorb:
        return Released(released, len(aggregate), None, (), {}, is_done=False, bad_shares=bad_shares)
    if job.state is None:
        state = task.recipe.initial_state(job.task_seed)
    else:
        number, blob = job.state
        state = task.recipe.decode_state(number, bytes(job.blobs.view(blob.key, blob.digest)))
    total = task.mechanism.open(task.sum_plan, aggregate, job.survivors, None)
    after = task.recipe.absorb(state, job.spec, total, job.survivors)
    recipe = task.recipe
    return Released(
        aggregate=released,
        aggregate_bytes=len(aggregate),
        state=_stored(job, "snapshots", recipe.encode_state(after)),
        views=tuple(
            _stored(job, "views", recipe.encode_view(recipe.view(after, device_group), device_group), device_group)
            for device_group in range(recipe.device_groups)
            if recipe.device_groups > 1
        ),
        report=task.recipe.report(after),
        is_done=task.recipe.is_done(after),
        bad_shares=bad_shares,
    )


def _stored(job: ReleaseJob, kind: str, body: bytes, *parts: int) -> StoredState:
    written = _write(job, kind, body, *parts)
    return StoredState(written.key, written.digest, len(body))
