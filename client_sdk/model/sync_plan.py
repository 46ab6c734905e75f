"""The cheapest way from a known model state to the newest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from client_sdk.errors import ModelUnavailable
from client_sdk.model.catalogue import REQUEST_COST, Catalogue, replay_bytes
from protocols.messages import RoundView, SnapshotView

__all__ = ["SyncPlan", "plan_sync"]


@dataclass(frozen=True)
class SyncPlan:
    """What to download: first the snapshot, if any, then the aggregates of `rounds`, in ascending order."""

    snapshot: SnapshotView | None = None
    rounds: tuple[RoundView, ...] = ()

    @property
    def bytes(self) -> int:
        """Total size of all bodies in bytes."""
        return (self.snapshot.bytes if self.snapshot else 0) + replay_bytes(self.rounds)

    @property
    def requests(self) -> int:
        """Number of bodies, each of which takes a request."""
        return len(self.rounds) + (self.snapshot is not None)

    @property
    def cost(self) -> int:
        """The bytes, and `REQUEST_COST` for each request."""
        return self.bytes + REQUEST_COST * self.requests

    @property
    def kind(self) -> Literal["nothing", "replay", "snapshot"]:
        """ "snapshot" if one is downloaded, "replay" if only aggregates are, "nothing" for an empty plan."""
        return "snapshot" if self.snapshot else "replay" if self.rounds else "nothing"

    @property
    def target(self) -> int | None:
        """Round number of the state that the plan leads to; None for an empty plan."""
        return self.rounds[-1].number if self.rounds else self.snapshot.round if self.snapshot else None


def plan_sync(known: int, catalogue: Catalogue, snapshots_only: bool = False) -> SyncPlan:
    """Return the plan of lower cost: every missed aggregate, or the snapshot and the aggregates after it.

    known: round of the known state. Raises `ModelUnavailable` when `snapshots_only` is set and the newest snapshot is
    older than the newest completed round.
    """
    missed = tuple(view for view in catalogue.completed if known < view.number <= catalogue.upto)
    if not missed:
        return SyncPlan()
    snapshot, newest = catalogue.snapshot, missed[-1].number
    if snapshot is not None and not known < snapshot.round <= catalogue.upto:
        snapshot = None
    if snapshots_only:
        if snapshot is None or snapshot.round < newest:
            raise ModelUnavailable(newest, f"no snapshot of round {newest} has been published yet")
        return SyncPlan(snapshot)
    replay = SyncPlan(None, missed)
    if snapshot is None:
        return replay
    shortcut = SyncPlan(snapshot, tuple(view for view in missed if view.number > snapshot.round))
    return min(replay, shortcut, key=lambda plan: plan.cost)
