"""One batch, or one sum's masks, over several workers at the same time: parts, then one job that puts them together.

Partial sums add up exactly, so the outcome is that of one worker, bit for bit. Parts are blobs that no row ever names:
they go when the outcome is there, or, if the server dies before, with the orphans.
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
from aggregator_service.compute.process_pool import Workers
from aggregator_service.crash_points import crash_point
from aggregator_service.logs import fields
from aggregator_service.settings import SPLIT_BYTES
from aggregator_service.storage.blobs import BlobStore, BlobsUnavailableError
from aggregator_service.tasks.plans import plan_task
from protocols.sums.masked.server import BadShare

__all__ = ["Parallel", "split_fold"]

_LOG = logging.getLogger(__name__)

_PARTIALS_A_PART: Final = 4
"""A part's partial sum is written, read and added once more: that must be little beside the part itself."""

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Parallel:
    """Does a round's jobs on `workers`, split where it pays: no part reads, or makes, less than `split_bytes`."""

    workers: Workers
    split_bytes: int = SPLIT_BYTES

    async def fold(self, job: FoldJob) -> BlobRef:
        """The new partial sum."""
        parts = await run_in_threadpool(split_fold, job, self.workers.width, self.split_bytes)
        if len(parts) == 1:
            return await self.workers.run(fold_batch, job)
        _LOG.debug("batch split", extra=fields(task=job.task_id, round=job.spec.number, parts=len(parts)))
        partials: list[BlobRef] = []
        try:
            await _all(partials, (self.workers.run(fold_batch, part) for part in parts))
            crash_point("parts.folded-before-merge")
            merge = MergeJob(job.blobs, job.task_id, job.terms, job.spec, tuple(partials))
            return await self.workers.run(merge_partials, merge)
        finally:
            await _forget(job.blobs, partials)

    async def release(self, job: ReleaseJob) -> Released:
        """The aggregate; a masked sum's masks are taken off first."""
        parts = await self._parts(job)
        if len(parts) < 2:
            masks = None if job.masks is None else replace(job.masks, threads=self.workers.threads(1))
            return await self.workers.run(release_sum, replace(job, masks=masks))
        _LOG.debug("masks split", extra=fields(task=job.task_id, round=job.spec.number, parts=len(parts)))
        found: list[tuple[BlobRef, tuple[BadShare, ...]]] = []
        try:
            await _all(found, (self.workers.run(unmask_some, part) for part in parts))
            crash_point("parts.unmasked-before-release")
            corrections = tuple(correction for correction, _ in found)
            released = await self.workers.run(release_sum, replace(job, masks=None, corrections=corrections))
        finally:
            await _forget(job.blobs, [correction for correction, _ in found])
        return replace(released, bad_shares=tuple(bad for _, some in found for bad in some))

    async def _parts(self, job: ReleaseJob) -> tuple[UnmaskJob, ...]:
        width = self.workers.width
        if job.masks is None or width == 1:
            return ()
        parts = await run_in_threadpool(job.masks.split, width, self.split_bytes, self.workers.threads(width))
        return tuple(UnmaskJob(job.blobs, job.task_id, job.spec, part) for part in parts)


def split_fold(job: FoldJob, workers: int, split_bytes: int) -> tuple[FoldJob, ...]:
    """A batch in at most `workers` parts of about equally many contributions; the first takes the partial sum along.

    One part when there are not bytes enough for two.
    """
    count = len(job.contributions)
    if workers == 1 or count < 2:
        return (job,)
    task = plan_task(job.terms, job.spec.sum_index)
    read = sum(task.contribution_bytes(job.spec, client_id) for client_id, _ in job.contributions)
    parts = min(workers, count, read // max(split_bytes, _PARTIALS_A_PART * task.sum_plan.partial_bytes))
    if parts < 2:
        return (job,)
    edges = pairwise(count * part // parts for part in range(parts + 1))
    return tuple(
        replace(job, partial=None if first else job.partial, contributions=job.contributions[first:last])
        for first, last in edges
    )


async def _all(outcomes: list[Outcome], jobs: Iterable[Awaitable[Outcome]]) -> None:
    """Await every job and keep what those that end well return, in their order; then raise what another one raised."""
    failure: BaseException | None = None
    for outcome in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(outcome, BaseException):
            failure = failure or outcome
        else:
            outcomes.append(outcome)
    if failure is not None:
        raise failure


async def _forget(blobs: BlobStore, parts: Sequence[BlobRef]) -> None:
    if not parts:
        return
    try:
        await run_in_threadpool(blobs.delete, *(part.key for part in parts))
    except BlobsUnavailableError as error:
        _LOG.warning("parts of a sum are deleted later: %s", error)
