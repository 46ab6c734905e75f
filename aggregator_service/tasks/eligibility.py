"""Eligibility: which members of a task can contribute."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, func, select, true
from sqlalchemy.orm import Session

from aggregator_service.round_states import ACTIVE
from aggregator_service.storage.rounds import last_round, summed_clause
from aggregator_service.storage.schema import ClientRow, ContributionRow, RoundRow, TaskRow
from protocols.messages import Schedule
from protocols.recipes.base import Recipe

__all__ = [
    "able_members",
    "awaited_uncounted",
    "eligible_clause",
    "uncounted_clause",
]


def eligible_clause(task: TaskRow) -> ColumnElement[bool]:
    """Return the condition for members that can contribute: not revoked, not retired, and keyed where that is needed.

    Members of a committee never contribute. A holder that takes part stores an envelope for itself; one that only gives
    out keys has none, and is not asked.
    """
    present = and_(ClientRow.revoked_at.is_(None), ClientRow.retired_in.is_(None))
    member = and_(present, ClientRow.role != "committee")
    return and_(member, ClientRow.envelope_key.is_not(None)) if task.needs_keyring else member


def uncounted_clause(task: TaskRow, recipe: Recipe) -> ColumnElement[bool]:
    """Return the condition for members that do not abstain from the task's next sum: true unless it counts again.

    A client is in one sum of counts. Those whose contribution an earlier one holds are not asked for the next, also if
    that one was never opened.
    """
    if not _counts_again(task, recipe):
        return true()
    counted = select(ContributionRow.client_id).join(RoundRow, RoundRow.id == ContributionRow.round_id)
    return ClientRow.id.not_in(counted.where(RoundRow.task_id == task.id, summed_clause()))


def _counts_again(task: TaskRow, recipe: Recipe) -> bool:
    return task.completed_rounds + task.failed_rounds > 0 and task.next_sum <= recipe.count_sums


def awaited_uncounted(session: Session, task: TaskRow, recipe: Recipe) -> str | None:
    """Return what the next sum of counts waits for, in plain words; None when it does not wait for members."""
    newest = last_round(session, task.id)
    if task.state != "open" or not _counts_again(task, recipe) or (newest is not None and newest.state in ACTIVE):
        return None
    needed = Schedule.model_validate(task.schedule).min_clients
    (able,) = able_members(session, task, 1, uncounted_clause(task, recipe))
    counting = f"sum {task.next_sum} of counts needs {needed} members that no earlier one holds"
    return None if able >= needed else f"new members: {counting}, and has {able}"


def able_members(
    session: Session, task: TaskRow, device_groups: int, among: ColumnElement[bool] | None = None
) -> list[int]:
    """Return the number of members that can contribute, by device group. among: a further condition."""
    able = select(ClientRow.device_group, func.count()).where(
        ClientRow.task_id == task.id, eligible_clause(task), true() if among is None else among
    )
    counts = {row[0]: row[1] for row in session.execute(able.group_by(ClientRow.device_group))}
    return [counts.get(device_group, 0) for device_group in range(device_groups)]
