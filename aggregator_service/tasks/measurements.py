"""The measurements of a task, from the reports of its rounds: what the server sees where it can open the sums."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import RoundRow, TaskRow
from protocols.recipes.evaluation_curve import MODEL_ROUND

__all__ = ["measurements"]


def measurements(session: Session, task: TaskRow) -> list[dict[str, float]]:
    """Return the figures of each measurement, oldest first; empty without evaluation, and where members open the sums.

    A figure's name is that of a metric, such as hr@10, or says of which model and how many clients.
    """
    if task.evaluation is None or task.opened_by != "anyone":
        return []
    query = select(RoundRow.report).where(RoundRow.task_id == task.id, RoundRow.state == "complete")
    reports = session.scalars(query.order_by(RoundRow.number))
    return [dict(report) for report in reports if report and MODEL_ROUND in report]
