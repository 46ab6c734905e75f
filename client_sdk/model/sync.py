"""The catalogue of a task: the completed rounds and the newest snapshot that a client may catch up with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Program
from client_sdk.errors import ContractBroken, ModelUnavailable
from protocols.messages import RoundView, SnapshotView

__all__ = [
    "Catalogue",
    "REQUEST_COST",
    "SyncPlan",
    "fetch_catalogue",
    "plan_sync",
    "replay_bytes",
    "replay_cost",
]


REQUEST_COST: Final = 16384
"""Bytes that a request counts as: at 10 Mbit/s they take 13 ms, and most round trips take longer."""

_PAGE: Final = 100


@dataclass(frozen=True)
class Catalogue:
    """What the server offers for catching up to the end of round `upto`.

    completed: completed rounds in ascending order, from some known round on. snapshot: the newest one; None when there
    is none or it cannot be of use.
    """

    upto: int
    completed: tuple[RoundView, ...]
    snapshot: SnapshotView | None


def replay_bytes(rounds: Sequence[RoundView]) -> int:
    """Return the size in bytes of the aggregates of `rounds`."""
    return sum(view.aggregate_bytes or 0 for view in rounds)


def replay_cost(rounds: Sequence[RoundView]) -> int:
    """Return the bytes of the aggregates of `rounds`, and `REQUEST_COST` for each."""
    return replay_bytes(rounds) + REQUEST_COST * len(rounds)


def fetch_catalogue(
    calls: ApiCalls, terms: TaskTerms, known: int, upto: int, snapshots_only: bool = False, snapshots: bool = True
) -> Program[Catalogue]:
    """Request the completed rounds after `known` and up to `upto`, and the newest snapshot where it may be cheaper.

    snapshots: False to ask for none. Pages of rounds that the snapshot covers are skipped once it is clear that the
    snapshot is cheaper. Raises `ContractBroken` when the list contradicts the task's terms.
    """
    snapshot = None
    longest_replay = (upto - known) * (terms.sum_plan.aggregate_bytes + REQUEST_COST)
    if snapshots_only or (snapshots and longest_replay > terms.snapshot_bytes + REQUEST_COST):
        snapshot = yield from calls.latest_snapshot(terms.task_id)
        if snapshot is not None and not known < snapshot.round <= upto:
            snapshot = None
    completed: list[RoundView] = []
    after = known
    while after < upto:
        page = yield from calls.rounds(terms.task_id, after=after, limit=_PAGE, state="complete")
        for view in page.rounds:
            _check_completed(terms, view, after)
            after = view.number
            if view.number <= upto:
                completed.append(view)
        if not page.more:
            break
        if not page.rounds:
            raise ContractBroken(
                "GET", f"/v1/tasks/{terms.task_id}/rounds", 200, "an empty page says that there is more"
            )
        if snapshot is not None and replay_cost(completed) > snapshot.bytes + REQUEST_COST:
            after = max(after, snapshot.round)
    return Catalogue(upto, tuple(completed), snapshot)


def _check_completed(terms: TaskTerms, view: RoundView, after: int) -> None:
    """Raise `ContractBroken` unless `view` is in order, has the planned length and enough survivors."""
    fault = None
    if view.state != "complete" or view.number <= after:
        fault = "is out of place in the list of completed rounds"
    elif view.aggregate_bytes != (planned := terms.sum_plan_at(view.step).aggregate_bytes):
        fault = f"has an aggregate of {view.aggregate_bytes} bytes, but the plan has {planned}"
    elif not terms.schedule.min_clients <= view.survivors <= terms.sum_plan.max_contributions:
        fault = f"was released over {view.survivors} survivors, outside what the task allows"
    if fault:
        raise ContractBroken("GET", f"/v1/tasks/{terms.task_id}/rounds", 200, f"round {view.number} {fault}")


# --- the cheapest way from a known model state to the newest one -----------------------------------------------------


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
