"""Who is asked in a round."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select, true, update
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import ClientRow, CohortRow, RoundRow, TaskRow
from protocols.messages import Schedule

__all__ = ["draw_cohort", "eligible_clause", "eligible_count", "members_needed", "write_cohort"]

_RANDOM = secrets.SystemRandom()


def eligible_clause(task: TaskRow) -> ColumnElement[bool]:
    """Which members can contribute: all, or the keyed ones.

    A holder that only serves keys is not asked; one that takes part leaves itself an envelope like any other.
    """
    if not task.needs_keyring:
        return true()
    return ClientRow.envelope_key.is_not(None)


def eligible_count(session: Session, task: TaskRow) -> int:
    """How many members can contribute."""
    count = select(func.count()).select_from(ClientRow).where(ClientRow.task_id == task.id, eligible_clause(task))
    return session.execute(count).scalar_one()


def members_needed(schedule: Schedule, first: bool) -> int:
    """Members that must be able to contribute before a round opens."""
    wanted = (schedule.start_clients or schedule.cohort_size) if first else 0
    return max(wanted, schedule.min_clients)


def draw_cohort(session: Session, task: TaskRow, schedule: Schedule) -> list[str]:
    """Client ids of a new cohort: uniform without replacement, or those asked least, in their fixed order."""
    able = select(ClientRow.id).where(ClientRow.task_id == task.id, eligible_clause(task))
    if schedule.sampling == "round-robin":
        ordered = able.order_by(ClientRow.times_asked, ClientRow.turn, ClientRow.id).limit(schedule.cohort_size)
        return list(session.execute(ordered).scalars())
    everyone = list(session.execute(able.order_by(ClientRow.sequence)).scalars())
    return _RANDOM.sample(everyone, min(schedule.cohort_size, len(everyone)))


def write_cohort(session: Session, round_: RoundRow, clients: Sequence[str]) -> None:
    """Store the cohort and count how often each member was asked."""
    session.add_all(CohortRow(round_id=round_.id, client_id=client) for client in clients)
    for start in range(0, len(clients), 500):  # within every database's limit on bound parameters
        some = clients[start : start + 500]
        asked = update(ClientRow).where(ClientRow.id.in_(some)).values(times_asked=ClientRow.times_asked + 1)
        session.execute(asked.execution_options(synchronize_session=False))
