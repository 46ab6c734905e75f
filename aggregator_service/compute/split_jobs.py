"""Split a batch of contributions, or the masks of a sum, into jobs for workers, and merge their results.

Partial sums are exact, so the result is bit for bit that of one worker. No row names the blobs of the parts: they are
deleted when the result is there or, if the server dies before, as orphans.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeVar

from starlette.concurrency import run_in_threadpool

from aggregator_service.compute.jobs import (
    BlobRef,
    FoldJob,
    MergeJob,
    Released,
    ReleaseJob,
    UnmaskJob,
    fold_batch,
    merge_partials,
    release_sum,
    unmask_some,
)
from aggregator_service.compute.unmasking import Masks
from aggregator_service.compute.workers import Workers
from aggregator_service.crash_points import crash_point
from aggregator_service.logs import fields
from aggregator_service.settings import SPLIT_BYTES
from aggregator_service.storage.blobs import BlobStore, BlobsUnavailableError
from aggregator_service.tasks.plans import plan_task
from protocols.sums.masked.server import BadShare

_LOG = logging.getLogger(__name__)

_MIN_PARTIALS_PER_PART: Final = 4
"""A part reads at least this many times the bytes of its partial sum, which is written, read and added once more."""
_MIN_PARTIALS_OF_SLOW_PART: Final = 2
"""The same for plans that fold slowly: the work on a contribution is many times that of reading it."""

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class SplitJobs:
    """Runs a round's jobs on `workers`, in parts where that is faster."""

    workers: Workers
    split_bytes: int = SPLIT_BYTES
    """The fewest bytes of contributions that a part reads, or of mask streams that it makes."""

    async def fold(self, job: FoldJob) -> BlobRef:
        """Run a fold; return the new partial sum. Raises as `jobs.fold_batch` and `Workers.run` do."""
        parts = await run_in_threadpool(split_fold, job, self.workers.width, self.split_bytes)
        if len(parts) == 1:
            return await self.workers.run(fold_batch, job)
        _LOG.debug("batch split", extra=fields(task=job.task_id, round=job.spec.number, parts=len(parts)))
        partials: list[BlobRef] = []
        try:
            await _await_all(partials, (self.workers.run(fold_batch, part) for part in parts))
            crash_point("parts.folded-before-merge")
            merge = MergeJob(job.blobs, job.task_id, job.terms, job.spec, tuple(partials))
            return await self.workers.run(merge_partials, merge)
        finally:
            await _delete_parts(job.blobs, partials)

    async def release(self, job: ReleaseJob) -> Released:
        """Run a release, removing masks first; raises as `jobs.release_sum` and `Workers.run` do."""
        parts = await self._split_masks(job)
        if len(parts) < 2:
            if isinstance(job.masks, Masks):
                job = replace(job, masks=replace(job.masks, threads=self.workers.threads(1)))
            return await self.workers.run(release_sum, job)
        _LOG.debug("masks split", extra=fields(task=job.task_id, round=job.spec.number, parts=len(parts)))
        found: list[tuple[BlobRef, tuple[BadShare, ...]]] = []
        try:
            await _await_all(found, (self.workers.run(unmask_some, part) for part in parts))
            crash_point("parts.unmasked-before-release")
            corrections = tuple(correction for correction, _ in found)
            released = await self.workers.run(release_sum, replace(job, masks=None, corrections=corrections))
        finally:
            await _delete_parts(job.blobs, [correction for correction, _ in found])
        return replace(released, bad_shares=tuple(bad for _, some in found for bad in some))

    async def _split_masks(self, job: ReleaseJob) -> tuple[UnmaskJob, ...]:
        width = self.workers.width
        if not isinstance(job.masks, Masks):
            return ()
        parts = await run_in_threadpool(job.masks.split, width, self.split_bytes, self.workers.threads(width))
        return tuple(UnmaskJob(job.blobs, job.task_id, job.terms, job.spec, part) for part in parts)


def split_fold(job: FoldJob, workers: int, split_bytes: int) -> tuple[FoldJob, ...]:
    """Split a fold into at most `workers` jobs with about equally many contributions.

    The first one also takes the partial sum. Returns the job itself when there are too few bytes for two parts.
    """
    count = len(job.contributions)
    if workers == 1 or count < 2:
        return (job,)
    task = plan_task(job.terms, job.spec.sum_index, job.spec.size)
    read = sum(task.contribution_bytes(job.spec, client_id) for client_id, _ in job.contributions)
    partials = _MIN_PARTIALS_OF_SLOW_PART if task.sum_plan.folds_slowly else _MIN_PARTIALS_PER_PART
    parts = min(workers, count, read // max(split_bytes, partials * task.sum_plan.partial_bytes))
    if parts < 2:
        return (job,)
    edges = pairwise(count * part // parts for part in range(parts + 1))
    return tuple(
        replace(
            job,
            partial=None if first else job.partial,
            contributions=job.contributions[first:last],
            groups=job.groups[first:last],
        )
        for first, last in edges
    )


async def _await_all(outcomes: list[Outcome], jobs: Iterable[Awaitable[Outcome]]) -> None:
    """Await every job and append the results of those that succeed, in order; then raise the first exception."""
    failure: BaseException | None = None
    for outcome in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(outcome, BaseException):
            failure = failure or outcome
        else:
            outcomes.append(outcome)
    if failure is not None:
        raise failure


async def _delete_parts(blobs: BlobStore, parts: Sequence[BlobRef]) -> None:
    if not parts:
        return
    try:
        await run_in_threadpool(blobs.delete, *(part.key for part in parts))
    except BlobsUnavailableError as error:
        _LOG.warning("cannot delete the parts of a sum: %s; they are deleted later as orphans", error)
