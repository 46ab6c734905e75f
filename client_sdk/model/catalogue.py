"""The catalogue of a task: the completed rounds and the newest snapshot that a client may catch up with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Program
from client_sdk.errors import ContractBroken
from protocols.messages import RoundView, SnapshotView

__all__ = ["REQUEST_COST", "Catalogue", "fetch_catalogue", "replay_bytes", "replay_cost"]

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
