"""The active round of a task, as the engine reads it before each action."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator_service.compute.jobs import BlobRef
from aggregator_service.rounds.batches import Batch, NextFold
from aggregator_service.storage.schema import RoundRow
from aggregator_service.tasks.plans import TaskTerms

__all__ = ["ActiveRound"]


@dataclass(frozen=True)
class ActiveRound:
    """The active round of a task, as one transaction read it.

    missing: clients whose message the state still waits for. next_fold: what to fold next.
    """

    terms: TaskTerms
    task_seed: bytes
    opened_by_anyone: bool
    round: RoundRow
    missing: int
    next_fold: NextFold

    @property
    def batch(self) -> Batch:
        """Client ids and bytes, or blobs, of what to fold next."""
        return self.next_fold.batch

    @property
    def needed(self) -> int:
        """Clients that must send something before the next action can be due, as long as no deadline has passed."""
        return min(self.missing, self.next_fold.lacking or self.missing)

    @property
    def masked(self) -> bool:
        """Whether this is a masked round."""
        return self.round.model_digest is not None

    @property
    def partial(self) -> BlobRef | None:
        """The partial sum; None before the first fold."""
        key, digest = self.round.partial_key, self.round.partial_digest
        return BlobRef(key, digest) if key is not None and digest is not None else None
