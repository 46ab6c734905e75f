"""What the engine reads before each action: the active round of a task, and which contributions are folded next.

These are whole batches, or smaller ones where adding a contribution takes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from sqlalchemy import Row
from sqlalchemy.orm import Session

from aggregator_service.compute.jobs import BlobRef, BodyByValue, StoredBody
from aggregator_service.compute.split_jobs import SplitJobs
from aggregator_service.storage.bodies import is_small, small_bodies
from aggregator_service.storage.round_rows import unfolded, unfolded_count
from aggregator_service.storage.schema import RoundRow
from aggregator_service.tasks.plans import StoredTerms, plan_task
from protocols.messages.stages import RoundState
from protocols.sums.base import SumPlan

Batch = tuple[tuple[str, StoredBody | BodyByValue], ...]
"""Client ids and their contributions."""

_LEAST: Final = 32
_MOST: Final = 512
_BATCH_BYTES: Final = 2 * 1024 * 1024
"""Without a setting a worker folds 32 contributions at once; of short ones as many as these bytes of partial sums are,
at most 512: what is read and written once for each fold takes longer than adding them.
"""
_EARLY_PART: Final = 8
"""Where adding contributions takes long, a fold begins while the round collects with this part of a whole batch, if
that is as much as a worker's part of a split fold. A fold reads, writes and merges partial sums once, which takes as
long as adding three or four seeded CKKS contributions: much smaller batches would mostly do that. When contributions
arrive faster than they are folded, batches grow by themselves.
"""
_LEAST_EARLY: Final = 4
"""Fewest contributions a worker of such a fold, also with small batches: with fewer it could not be split."""


class NextFold(NamedTuple):
    """What is folded next."""

    batch: Batch
    is_last: bool
    """Whether no other contribution of the round is left or can come."""
    lacking: float = inf
    """Contributions that have to arrive before there is anything to fold."""


class Batches:
    """Chooses the contributions of the next fold.

    jobs: runs the folds. batch: contributions that one worker folds at once; None: chosen by their length.
    """

    def __init__(self, jobs: SplitJobs, batch: int | None) -> None:
        self._jobs, self._batch = jobs, batch

    def next(self, session: Session, terms: StoredTerms, round_: RoundRow) -> NextFold:
        """Return what to fold next; while the round is collecting, nothing until there is enough."""
        plan = plan_task(terms, round_.sum_index, round_.size or ()).sum_plan
        if round_.state == RoundState.COLLECTING:
            if plan.groups > 1 and plan.committee:  # the groups are drawn from all that contributed
                return NextFold((), False)
            lacking = self.enough(plan) - unfolded_count(session, round_.id)
            if lacking > 0:
                return NextFold((), False, lacking)
        limit = self._limit(plan)
        rows = unfolded(session, round_.id, limit)
        return NextFold(_with_bodies(session, rows), round_.state == RoundState.FOLDING and len(rows) < limit)

    def enough(self, plan: SumPlan) -> int:
        """Fewest contributions for a fold while the round collects."""
        if not plan.folds_slowly:
            return self._limit(plan)
        batch = self._of_worker(plan)
        long_enough = 2 * self._jobs.split_bytes // plan.partial_bytes  # a contribution is half of a sum, or as long
        return min(batch, max(_LEAST_EARLY, batch // _EARLY_PART, long_enough)) * self._jobs.workers.width

    def _limit(self, plan: SumPlan) -> int:
        """Most contributions of one fold: a batch for every worker."""
        return self._of_worker(plan) * self._jobs.workers.width

    def _of_worker(self, plan: SumPlan) -> int:
        """Contributions that one worker folds at once."""
        if self._batch is not None:
            return self._batch
        return _LEAST if plan.folds_slowly else max(_LEAST, min(_MOST, _BATCH_BYTES // plan.partial_bytes))


def _with_bodies(session: Session, batch: Sequence[Row[str, str | None, int | None, str, bytes | None]]) -> Batch:
    """Return client ids with the bytes of small bodies, and with references to blobs.

    A small body that is missing becomes a reference, with which the fold finds that the storage is damaged.
    """
    bodies = small_bodies(session, [key for _, key, *_ in batch if key is not None and is_small(key)])
    return tuple(
        (client, BodyByValue(bodies[key], digest) if key in bodies else StoredBody(key or "", tag or b"", start))
        for client, key, start, digest, tag in batch
    )


@dataclass(frozen=True)
class ActiveRound:
    """The active round of a task, as one transaction read it."""

    terms: StoredTerms
    task_seed: bytes
    opened_by_anyone: bool
    round: RoundRow
    missing: int
    """Clients whose message the state still waits for."""
    batch: Batch
    is_last: bool
    """See `NextFold`."""
    partial: BlobRef | None
    """The partial sum, None before the first fold."""
    folded: int
    """Contributions in it."""
    lacking: float = inf
    """See `NextFold`."""

    @property
    def messages_ahead(self) -> float:
        """Messages of clients after which there is something to do: the last expected one, or one that fills a batch.

        Until then only a deadline changes what the engine does.
        """
        return min(self.missing, self.lacking)


def partial_of(row: RoundRow) -> BlobRef | None:
    """Return the partial sum of a round; None before the first fold."""
    key, digest = row.partial_key, row.partial_digest
    return BlobRef(key, digest) if key is not None and digest is not None else None
