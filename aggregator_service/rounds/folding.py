"""Folds and releases as pure functions from blob keys to new blob keys: what runs in the worker processes.

A job names everything by value; a worker opens one contribution at a time, so its memory is O(vector). It never
touches the database: a job that is lost, or done twice, changes nothing until the engine commits its outcome.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aggregator_service.plans import TaskPlan, TaskTerms, plan_task
from aggregator_service.rounds.unmasking import Masks
from aggregator_service.storage.blobs import BlobStore
from protocols.layout import Route
from protocols.recipes.base import RoundSpec
from protocols.sums.base import Buffer
from protocols.sums.masked.server import BadShare

__all__ = ["BlobRef", "FoldJob", "ReleaseJob", "Released", "StoredState", "fold_batch", "release_sum"]


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
    """Add a batch of contributions to a partial sum (None: an empty one) and write the result under `output`."""

    blobs: BlobStore
    terms: TaskTerms
    spec: RoundSpec
    partial: BlobRef | None
    contributions: tuple[tuple[str, BlobRef], ...]
    output: str


@dataclass(frozen=True)
class ReleaseJob:
    """Turn a partial into the aggregate. With `state_output`, anyone can open it: absorb it into the model state too.

    `state` is the newest snapshot and its round (None: the initial state), `survivors` how many were folded, `masks`
    what a masked sum is opened with first. `view_outputs`: where each group's view of the state goes, if there are
    several groups.
    """

    blobs: BlobStore
    terms: TaskTerms
    task_seed: bytes
    spec: RoundSpec
    partial: BlobRef
    survivors: int
    masks: Masks | None
    output: str
    state: tuple[int, BlobRef] | None
    state_output: str | None
    view_outputs: tuple[str, ...] = ()


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
    task = plan_task(job.terms, job.spec.step)
    partial = None if job.partial is None else job.blobs.view(job.partial.key, job.partial.digest)
    folded = task.mechanism.fold(task.plan, partial, _contributions(job, task))
    return BlobRef(job.output, job.blobs.put(job.output, folded))


def _contributions(job: FoldJob, task: TaskPlan) -> Iterator[tuple[Route, memoryview]]:
    for client_id, blob in job.contributions:
        yield task.route(job.spec, client_id), job.blobs.view(blob.key, blob.digest)


def release_sum(job: ReleaseJob) -> Released:
    """The aggregate as clients download it; the next model state, too, when anyone can open the sum.

    `ThresholdError` when the masks of a masked sum do not come off: nothing is written then.
    """
    task = plan_task(job.terms, job.spec.step)
    partial: Buffer = job.blobs.view(job.partial.key, job.partial.digest)
    bad_shares: tuple[BadShare, ...] = ()
    if job.masks is not None:
        partial, bad_shares = job.masks.take_off(partial)
    aggregate = task.mechanism.release(task.plan, partial)
    released = BlobRef(job.output, job.blobs.put(job.output, aggregate))
    if job.state_output is None:
        return Released(released, len(aggregate), None, (), {}, is_done=False, bad_shares=bad_shares)
    if job.state is None:
        state = task.recipe.initial_state(job.task_seed)
    else:
        number, blob = job.state
        state = task.recipe.decode_state(number, bytes(job.blobs.view(blob.key, blob.digest)))
    total = task.mechanism.open(task.plan, aggregate, job.survivors, None)
    after = task.recipe.absorb(state, job.spec, total, job.survivors)
    recipe = task.recipe
    return Released(
        aggregate=released,
        aggregate_bytes=len(aggregate),
        state=_stored(job, job.state_output, recipe.encode_state(after)),
        views=tuple(
            _stored(job, output, recipe.encode_view(recipe.view(after, group), group))
            for group, output in enumerate(job.view_outputs)
        ),
        report=task.recipe.report(after),
        is_done=task.recipe.is_done(after),
        bad_shares=bad_shares,
    )


def _stored(job: ReleaseJob, key: str, body: bytes) -> StoredState:
    return StoredState(key, job.blobs.put(key, body), len(body))
