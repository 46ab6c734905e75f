"""Facts of the overview page: all tasks with their newest round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from aggregator_service.dashboard.tallies import Tally, tallies
from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow
from protocols.messages import Schedule

__all__ = ["Overview", "TaskLine", "overview"]

PAGE: Final = 50


@dataclass(frozen=True)
class TaskLine:
    """One task: its row, schedule, number of members and newest round."""

    task: TaskRow
    schedule: Schedule
    members: int
    current: Tally | None


@dataclass(frozen=True)
class Overview:
    """One page of tasks (open ones first, then the newest), the number of tasks by state, and the page number."""

    lines: list[TaskLine]
    states: dict[str, int]
    page: int
    more: bool


def overview(session: Session, page: int = 1) -> Overview:
    """Return page `page` (from 1) of the tasks. Makes eight queries, independent of the number of tasks and clients."""
    first = case((TaskRow.state == "open", 0), else_=1)
    query = select(TaskRow).order_by(first, TaskRow.created_at.desc(), TaskRow.id)
    rows = session.scalars(query.offset((page - 1) * PAGE).limit(PAGE + 1)).all()
    tasks, ids = rows[:PAGE], [row.id for row in rows[:PAGE]]
    newest = select(func.max(RoundRow.id)).where(RoundRow.task_id.in_(ids)).group_by(RoundRow.task_id)
    current = {
        tally.round.task_id: tally
        for tally in tallies(session, session.scalars(select(RoundRow).where(RoundRow.id.in_(newest))))
    }
    member = select(ClientRow.task_id, func.count()).where(ClientRow.revoked_at.is_(None), ClientRow.task_id.in_(ids))
    members = {row[0]: row[1] for row in session.execute(member.group_by(ClientRow.task_id))}
    counted = session.execute(select(TaskRow.state, func.count()).group_by(TaskRow.state))
    return Overview(
        [
            TaskLine(task, Schedule.model_validate(task.schedule), members.get(task.id, 0), current.get(task.id))
            for task in tasks
        ],
        {row[0]: row[1] for row in counted},
        page,
        len(rows) > PAGE,
    )
