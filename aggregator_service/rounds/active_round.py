"""The active round of a task, as the engine reads it before each action."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aggregator_service.compute.jobs import BlobRef
from aggregator_service.rounds.batches import Batch, NextFold
from aggregator_service.storage.schema import RoundRow
from aggregator_service.tasks.plans import TaskTerms

__all__ = ["ActiveRound", "partial_of"]


@dataclass(frozen=True)
class ActiveRound:
    """The active round of a task, as one transaction read it.

    missing: clients whose message the state still waits for. next_fold: what to fold next. partial: the partial sum,
    None before the first fold. folded: contributions in it.
    """

    terms: TaskTerms
    task_seed: bytes
    opened_by_anyone: bool
    round: RoundRow
    missing: int
    next_fold: NextFold
    partial: BlobRef | None
    folded: int

    @property
    def batch(self) -> Batch:
        """Client ids and bytes, or blobs, of what to fold next."""
        return self.next_fold.batch

    @property
    def masked(self) -> bool:
        """Whether this is a masked round."""
        return self.round.model_digest is not None

    def after_fold(self, partial: BlobRef) -> ActiveRound:
        """Return this round after the commit of a fold into `partial` of the last contributions, to release it."""
        return replace(self, partial=partial, folded=self.folded + len(self.batch), next_fold=NextFold(()))


def partial_of(row: RoundRow) -> BlobRef | None:
    """Return the partial sum of a round; None before the first fold."""
    key, digest = row.partial_key, row.partial_digest
    return BlobRef(key, digest) if key is not None and digest is not None else None
