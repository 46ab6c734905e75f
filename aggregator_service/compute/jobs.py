"""The jobs of worker processes: folds and releases, as pure functions from blobs to new blobs.

A job contains all its inputs by value, or as blob keys with digests. A worker reads one contribution at a time,
so its memory is O(vector). It never uses the database: a job that is lost or run twice changes nothing until the engine
commits its result. Each attempt writes blobs under keys of its own, so that two attempts cannot overwrite each other.
The blobs of abandoned attempts are deleted as orphans.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from aggregator_service.compute.unmasking import Masks, OneshotMasks, SumUnopenedError
from aggregator_service.crash_points import crash_point
from aggregator_service.storage.blobs import BlobDamagedError, BlobStore, forget_pages, matches_tag, new_key
from aggregator_service.tasks.plans import StoredTerms, TaskPlan, plan_task
from protocols.errors import CodecError
from protocols.layout import Route
from protocols.recipes.base import AbsorbsByParts, ModelState, RoundSpec
from protocols.sums.base import Buffer, OpensByParts
from protocols.sums.masked.server import BadShare
from protocols.sums.possible import require_possible, require_possible_parts
from protocols.sums.ring import ring_mechanism

Contributed = tuple[Route, memoryview]


@dataclass(frozen=True)
class BlobRef:
    """A blob and the SHA-256 (hex) that its bytes must have."""

    key: str
    digest: str


@dataclass(frozen=True)
class BodyByValue:
    """A short contribution, which the database keeps, and the SHA-256 (hex) that it must have."""

    body: bytes = field(repr=False)
    digest: str

    def view(self) -> memoryview:
        """Return the bytes. Raises `BlobDamagedError` when they do not match the digest."""
        if hashlib.sha256(self.body).hexdigest() != self.digest:
            raise BlobDamagedError("a contribution in the database does not match its digest")
        return memoryview(self.body)


@dataclass(frozen=True)
class StoredBody:
    """A contribution in a blob, and its tag (`BodyTagger`)."""

    key: str
    tag: bytes = field(repr=False)
    start: int | None = None
    """Of the contribution in a pack; None: the blob is the contribution."""

    def read(self, blobs: BlobStore, into: memoryview) -> memoryview:
        """Fill `into` with the bytes and return it, read-only.

        Raises `BlobDamagedError` when the blob is missing, has another length or does not match the tag.
        """
        blobs.read_into(self.key, into, self.start)
        if not matches_tag(into, self.tag):
            raise BlobDamagedError(f"the blob {self.key} has changed since it was stored")
        return into.toreadonly()


@dataclass(frozen=True)
class StoredState:
    """A stored model state, or a device group's view of it: the fields of its row."""

    blob_key: str
    digest: str
    bytes: int
    """Its length."""


@dataclass(frozen=True)
class Job:
    """What each job of a round says."""

    blobs: BlobStore
    task_id: str
    terms: StoredTerms
    spec: RoundSpec


@dataclass(frozen=True)
class FoldJob(Job):
    """Add contributions (client id, and blob or bytes) to a partial sum; None: start an empty one."""

    partial: BlobRef | None
    contributions: tuple[tuple[str, StoredBody | BodyByValue], ...]
    groups: tuple[int, ...] = ()
    """Of the contributions, ascending, in a round with groups; else empty."""


@dataclass(frozen=True)
class MergeJob(Job):
    """Add partial sums of the same round."""

    partials: tuple[BlobRef, ...]


@dataclass(frozen=True)
class UnmaskJob(Job):
    """Compute a correction that removes some of a round's masks, as a partial sum of no contributions."""

    masks: Masks


@dataclass(frozen=True)
class ReleaseJob(Job):
    """Convert a partial sum to the aggregate."""

    task_seed: bytes = field(repr=False)
    partial: BlobRef
    survivors: int
    """Number of contributions in `partial`."""
    masks: Masks | OneshotMasks | None
    """Removes the masks of a masked sum; or use the `corrections` that `unmask_some` returned, each a partial sum."""
    absorb: bool
    """Anyone can open the sum, so also compute the new model state."""
    state: tuple[int, BlobRef] | None
    """The newest snapshot and the number of its round; None: the initial state."""
    corrections: tuple[BlobRef, ...] = ()


@dataclass(frozen=True)
class Released:
    """The result of a release."""

    aggregate: BlobRef
    aggregate_bytes: int
    """Length of the aggregate."""
    bad_shares: tuple[BadShare, ...]
    """Secret shares that did not fit when the masks were removed."""
    state: StoredState | None = None
    """The new model state, where the server computes it."""
    views: tuple[StoredState, ...] = ()
    """What each device group downloads of the state, by group; empty with one group."""
    report: dict[str, float] = field(default_factory=dict)
    """The recipe's metrics of the state."""
    is_done: bool = False
    """The recipe needs no further sum."""
    next_size: tuple[int, ...] = ()
    """Rows, columns and values of the next sum (`Recipe.size_after`)."""
    wrong_members: tuple[str, ...] = ()
    """Of the committee of a one-shot sum, whose summed shares were wrong."""

    @property
    def groups_left_out(self) -> int:
        """How many groups the model is made without; 0 in a round without groups."""
        return int(self.report.get("groups", 0.0) - self.report.get("groups_used", 0.0))


def fold_batch(job: FoldJob) -> BlobRef:
    """Fold the contributions; return the new partial sum.

    Raises `BlobDamagedError` when a blob is missing or does not match its digest.
    """
    task = plan_task(job.terms, job.spec.sum_index, job.spec.size)
    partial = None if job.partial is None else job.blobs.view(job.partial.key, job.partial.digest)
    contributions = _after(partial, _contributions(job, task))
    if job.groups:
        of_groups = ((group, *one) for group, one in zip(job.groups, contributions, strict=True))
        return _write(job, "partials", ring_mechanism(task.mechanism).fold_groups(task.sum_plan, partial, of_groups))
    return _write(job, "partials", task.mechanism.fold(task.sum_plan, partial, contributions))


def _after(partial: memoryview | None, contributions: Iterator[Contributed]) -> Iterator[Contributed]:
    """Yield the contributions; a fold takes the first one when it has read the partial sum."""
    forget_pages(partial)
    yield from contributions


def _contributions(job: FoldJob, task: TaskPlan) -> Iterator[Contributed]:
    """Read one contribution after the other into the same buffer: each is valid until the next one is taken."""
    buffer = memoryview(bytearray())
    for client_id, stored in job.contributions:
        route = task.recipe.route(job.spec, client_id)
        if isinstance(stored, BodyByValue):
            body = stored.view()
        else:
            length = task.upload_bytes(route)
            if len(buffer) < length:
                buffer = memoryview(mmap.mmap(-1, length))  # given back to the system at the end, as heap may not be
            body = stored.read(job.blobs, buffer[:length])
        yield route, body[task.sum_plan.ticket_bytes :]
        crash_point("worker.folding")


def merge_partials(job: MergeJob) -> BlobRef:
    """Merge the partial sums; return the new one. Raises `BlobDamagedError` as `fold_batch` does."""
    task = plan_task(job.terms, job.spec.sum_index, job.spec.size)
    merged = task.mechanism.merge(task.sum_plan, (job.blobs.view(blob.key, blob.digest) for blob in job.partials))
    return _write(job, "partials", merged)


def unmask_some(job: UnmaskJob) -> tuple[BlobRef, tuple[BadShare, ...]]:
    """Return the correction and the wrong shares.

    Raises `ThresholdError` and `AtFaultError` as `protocols.sums.masked.server.unmask` does.
    """
    correction, bad_shares = job.masks.correction()
    crash_point("worker.unmasking")
    return _write(job, "partials", correction), bad_shares


def _write(job: Job, kind: str, body: bytes, *parts: int) -> BlobRef:
    key = new_key(kind, job.task_id, job.spec.number, *parts)
    return BlobRef(key, job.blobs.put(key, body))


def release_sum(job: ReleaseJob) -> Released:
    """Write the aggregate as clients download it and, with `absorb`, the new model state and its views.

    Raises `ThresholdError` and `AtFaultError` as `protocols.sums.masked.server.unmask` does, `SumUnopenedError` when
    the masks of a one-shot sum do not come off, or the sum is none of so many contributions (nothing is left then),
    `BlobDamagedError` as `fold_batch` does.
    """
    task = plan_task(job.terms, job.spec.sum_index, job.spec.size)
    partial: Buffer = job.blobs.view(job.partial.key, job.partial.digest)
    bad_shares: tuple[BadShare, ...] = ()
    wrong_members: tuple[str, ...] = ()
    if isinstance(job.masks, OneshotMasks):
        aggregate, wrong_members = job.masks.unmask(partial, job.survivors)
    else:
        if job.masks is not None:
            partial, bad_shares = job.masks.remove_from(partial)
        if job.corrections:
            corrections = (job.blobs.view(blob.key, blob.digest) for blob in job.corrections)
            partial = task.mechanism.merge(task.sum_plan, chain((partial,), corrections))
        aggregate = task.mechanism.release(task.sum_plan, partial)
    written = _write(job, "aggregates", aggregate)
    released = Released(written, len(aggregate), bad_shares=bad_shares, wrong_members=wrong_members)
    if not job.absorb:
        return released
    if job.state is None:
        state = task.recipe.initial_state(job.task_seed)
    else:
        number, blob = job.state
        state = task.recipe.decode_state(number, bytes(job.blobs.view(blob.key, blob.digest)))
    del partial, aggregate
    after, of_groups = _absorbed(task, job, state, written)
    del state
    recipe = task.recipe
    return replace(
        released,
        state=_stored(job, "snapshots", recipe.encode_state(after)),
        views=tuple(
            _stored(job, "views", recipe.encode_view(recipe.view(after, device_group), device_group), device_group)
            for device_group in range(recipe.device_groups)
            if recipe.device_groups > 1
        ),
        report=recipe.report(after) | of_groups,
        is_done=recipe.is_done(after),
        next_size=recipe.size_after(after),
    )


def _absorbed(
    task: TaskPlan, job: ReleaseJob, state: ModelState, released: BlobRef
) -> tuple[ModelState, dict[str, float]]:
    """Return the state after the released sum, which is opened in parts if mechanism and recipe can do that.

    And what the record of a round with groups says of them.

    The aggregate is mapped from its blob, so that of its bytes only those in use take memory. Raises `SumUnopenedError`
    for a sum that is none of so many contributions, and deletes its blob.
    """
    mechanism, recipe, plan, survivors = task.mechanism, task.recipe, task.sum_plan, job.survivors
    aggregate = job.blobs.view(released.key, released.digest)
    of_groups: dict[str, float] = {}
    try:
        if plan.groups == 1 and isinstance(mechanism, OpensByParts) and isinstance(recipe, AbsorbsByParts):

            def part(start: int, stop: int) -> NDArray[np.float64]:
                values = mechanism.open_part(plan, aggregate, survivors, start, stop)
                forget_pages(aggregate)
                return values

            require_possible_parts(plan, part, survivors)
            return recipe.absorb_parts(state, job.spec, part, survivors), of_groups
        if plan.groups > 1:
            opened = ring_mechanism(mechanism).open_groups(plan, aggregate, survivors)
            total, of_groups = opened.total(), opened.report()
        else:
            total = mechanism.open(plan, aggregate, survivors, None)
        require_possible(plan, total, survivors)
        spec = replace(job.spec, rounding=plan.predicted_error)
        return recipe.absorb(state, spec, total, survivors), of_groups
    except CodecError as error:
        job.blobs.delete(released.key)
        raise SumUnopenedError(str(error)) from error


def _stored(job: ReleaseJob, kind: str, body: bytes, *parts: int) -> StoredState:
    written = _write(job, kind, body, *parts)
    return StoredState(written.key, written.digest, len(body))
