"""Which members of a task can contribute."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import ClientRow, TaskRow

__all__ = [
    "able_members",
    "eligible_clause",
]


def eligible_clause(task: TaskRow) -> ColumnElement[bool]:
    """Which members can contribute: all, or the keyed ones; nobody who was revoked or has left a frozen job.

    A holder that only serves keys is not asked; one that takes part leaves itself an envelope like any other.
    """
    member = and_(ClientRow.revoked_at.is_(None), ClientRow.retired_in.is_(None))
    return and_(member, ClientRow.envelope_key.is_not(None)) if task.needs_keyring else member


def able_members(session: Session, task: TaskRow, device_groups: int) -> list[int]:
    """How many members of each group can contribute."""
    able = select(ClientRow.device_group, func.count()).where(ClientRow.task_id == task.id, eligible_clause(task))
    counts = {row[0]: row[1] for row in session.execute(able.group_by(ClientRow.device_group))}
    return [counts.get(device_group, 0) for device_group in range(device_groups)]
