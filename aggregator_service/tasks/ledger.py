"""The ledger of released sums: completed rounds, who is in them, what they measured. Its rows are never deleted."""

from __future__ import annotations

import hashlib

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import ClientRow, ContributionRow, RoundRow, TaskRow
from aggregator_service.storage.stages import clients_with
from protocols.messages import LedgerEntry, LedgerPage
from protocols.recipes.evaluation_curve import MODEL_ROUND

__all__ = ["client_ledger", "measurements", "survivors_digest", "task_ledger"]


def task_ledger(session: Session, task: TaskRow, after: int, limit: int) -> LedgerPage:
    """Return at most `limit` released sums of a task after round `after`."""
    query = select(RoundRow).where(RoundRow.task_id == task.id, RoundRow.state == "complete", RoundRow.number > after)
    rows = session.scalars(query.order_by(RoundRow.number).limit(limit + 1)).all()
    return LedgerPage(entries=[_entry(task, row, None) for row in rows[:limit]], more=len(rows) > limit)


def client_ledger(session: Session, task: TaskRow, client_id: str, after: int, limit: int) -> LedgerPage:
    """Return at most `limit` released sums after round `after` that contain a contribution of this client."""
    query = select(RoundRow, ContributionRow.digest).join(ContributionRow, ContributionRow.round_id == RoundRow.id)
    query = query.where(RoundRow.task_id == task.id, RoundRow.state == "complete", RoundRow.number > after)
    query = query.where(ContributionRow.client_id == client_id)
    rows = session.execute(query.order_by(RoundRow.number).limit(limit + 1)).all()
    return LedgerPage(entries=[_entry(task, row, digest) for row, digest in rows[:limit]], more=len(rows) > limit)


def survivors_digest(session: Session, round_id: int) -> str:
    """Return the SHA-256 (hex) of the concatenated, sorted identity keys of a round's survivors."""
    keys = select(ClientRow.identity_key).where(ClientRow.id.in_(clients_with(round_id, "contribute")))
    return hashlib.sha256(b"".join(sorted(session.scalars(keys)))).hexdigest()


def _entry(task: TaskRow, round_: RoundRow, contribution: str | None) -> LedgerEntry:
    return LedgerEntry(
        round=round_.number,
        step=round_.sum_index,
        recipe=task.recipe_name,
        mechanism=task.mechanism_name,
        data_set=task.data_set,
        survivors=round_.survivors,
        survivors_digest=round_.survivors_digest or "",
        released_at=round_.released_at or 0.0,
        contribution_digest=contribution,
    )


def measurements(session: Session, task: TaskRow) -> list[dict[str, float]]:
    """Return the figures of each measurement, oldest first; empty without evaluation, and where members open the sums.

    A figure's name is that of a metric, such as hr@10, or says of which model and how many clients.
    """
    if task.evaluation is None or task.opened_by != "anyone":
        return []
    query = select(RoundRow.report).where(RoundRow.task_id == task.id, RoundRow.state == "complete")
    reports = session.scalars(query.order_by(RoundRow.number))
    return [dict(report) for report in reports if report and MODEL_ROUND in report]
