"""Facts of a task's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from aggregator_service.dashboard.quality import Series, quality
from aggregator_service.dashboard.tallies import Tally, tallies
from aggregator_service.settings import Signatures
from aggregator_service.storage.schema import ClientRow, InvitationRow, RoundRow, TaskRow
from aggregator_service.tasks.committee import committee_size, committee_view
from aggregator_service.tasks.tasks import task_view
from protocols.messages import CommitteeView, TaskView

__all__ = ["Invited", "Membership", "TaskFacts", "task_facts"]

PAGE: Final = 25


@dataclass(frozen=True)
class Membership:
    """Member counts of a task. retired: dropped out permanently; waiting: without keys yet."""

    enrolled: int
    revoked: int
    retired: int
    waiting: int


@dataclass(frozen=True)
class Invited:
    """Uses of a task's invitations: total, taken, and still free."""

    places: int
    taken: int
    free: int


@dataclass(frozen=True)
class TaskFacts:
    """A task, its rounds (newest first), its member counts, and the metrics its recipe reports.

    committee: None if the mechanism has none.
    """

    row: TaskRow
    view: TaskView
    rounds: Sequence[Tally]
    strip: Sequence[RoundRow]
    older: int | None
    newest: bool
    members: Membership
    invited: Invited
    quality: Sequence[Series]
    committee: CommitteeView | None = None


def task_facts(
    session: Session, task: TaskRow, now: float, before: int | None = None, signatures: Signatures = "required"
) -> TaskFacts:
    """Return the facts with one page of rounds: the newest, or those numbered below `before`.

    now: seconds since the epoch. The number of queries does not depend on the number of clients.
    """
    mine = select(RoundRow).where(RoundRow.task_id == task.id).order_by(RoundRow.number.desc())
    wanted = mine if before is None else mine.where(RoundRow.number < before)
    rows = session.scalars(wanted.limit(PAGE + 1)).all()
    return TaskFacts(
        row=task,
        view=task_view(session, task, signatures, now),
        rounds=tallies(session, rows[:PAGE]),
        strip=session.scalars(mine.limit(60)).all()[::-1],
        older=rows[PAGE - 1].number if len(rows) > PAGE else None,
        newest=before is None,
        members=_members(session, task),
        invited=_invited(session, task, now),
        quality=quality(session, task.id),
        committee=committee_view(session, task) if committee_size(task) else None,
    )


def _members(session: Session, task: TaskRow) -> Membership:
    def of(condition: object) -> object:
        return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)  # type: ignore[arg-type]

    revoked = ClientRow.revoked_at.is_not(None)
    active = ClientRow.revoked_at.is_(None) & (ClientRow.role != "committee")
    left = ClientRow.retired_in.is_not(None) | ClientRow.left_data_in.is_not(None)
    unkeyed = active & ClientRow.envelope_key.is_(None) & (ClientRow.role == "member")
    query = select(of(active), of(revoked), of(active & left), of(unkeyed))  # type: ignore[call-overload]
    enrolled, revoked, retired, waiting = session.execute(query.where(ClientRow.task_id == task.id)).one()
    return Membership(enrolled, revoked, retired, waiting if task.needs_keyring else 0)


def _invited(session: Session, task: TaskRow, now: float) -> Invited:
    free = case(
        (
            (InvitationRow.expires_at > now) & InvitationRow.revoked_at.is_(None),
            InvitationRow.uses - InvitationRow.used,
        ),
        else_=0,
    )
    sums = (func.coalesce(func.sum(column), 0) for column in (InvitationRow.uses, InvitationRow.used, free))
    places, taken, left = session.execute(select(*sums).where(InvitationRow.task_id == task.id)).one()
    return Invited(int(places), int(taken), int(left))
