"""Eligibility: which members of a task can contribute."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import ClientRow, TaskRow

__all__ = [
    "able_members",
    "eligible_clause",
]


def eligible_clause(task: TaskRow) -> ColumnElement[bool]:
    """Return the condition for members that can contribute: not revoked, not retired, and keyed where that is needed.

    Members of a committee never contribute. A holder that takes part stores an envelope for itself; one that only gives
    out keys has none, and is not asked.
    """
    present = and_(ClientRow.revoked_at.is_(None), ClientRow.retired_in.is_(None))
    member = and_(present, ClientRow.role != "committee")
    return and_(member, ClientRow.envelope_key.is_not(None)) if task.needs_keyring else member


def able_members(session: Session, task: TaskRow, device_groups: int) -> list[int]:
    """Return the number of members that can contribute, by device group."""
    able = select(ClientRow.device_group, func.count()).where(ClientRow.task_id == task.id, eligible_clause(task))
    counts = {row[0]: row[1] for row in session.execute(able.group_by(ClientRow.device_group))}
    return [counts.get(device_group, 0) for device_group in range(device_groups)]
