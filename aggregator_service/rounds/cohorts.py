"""Draw the cohort of a round: the clients that are asked to contribute."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import ClientRow, CohortRow, RoundRow, TaskRow
from aggregator_service.tasks.members import eligible_clause
from protocols.layout import SumClass
from protocols.messages import Schedule

__all__ = ["draw_cohort", "enough_members", "write_cohort"]

_RANDOM = secrets.SystemRandom()


def enough_members(schedule: Schedule, able: Sequence[int], device_group: int, first: bool) -> bool:
    """Whether enough members can contribute for a round over `device_group` to open.

    able: members that can contribute, by device group. first: whether this is the task's first round. It opens when the
    whole task has `start_clients`, and each group enough for its sums: a sum is never over fewer than `min_clients`.
    """
    if not first:
        return able[device_group] >= schedule.min_clients
    each = max(schedule.min_clients, 0 if schedule.start_clients else schedule.cohort_size)
    return min(able) >= each and sum(able) >= schedule.start_clients


def draw_cohort(
    session: Session, task: TaskRow, schedule: Schedule, device_group: int, sum_class: SumClass, sum_index: int
) -> list[str]:
    """Draw a new cohort of `device_group` for a sum, of the members that can contribute to it; return its client ids.

    Uniform without replacement; with round-robin sampling, the members that were asked least often, in a fixed order.
    """
    able = select(ClientRow.id).where(
        ClientRow.task_id == task.id,
        ClientRow.device_group == device_group,
        eligible_clause(task, sum_class, sum_index),
    )
    if schedule.sampling == "round-robin":
        ordered = able.order_by(ClientRow.times_asked, ClientRow.turn, ClientRow.id).limit(schedule.cohort_size)
        return list(session.execute(ordered).scalars())
    everyone = list(session.execute(able.order_by(ClientRow.sequence)).scalars())
    return _RANDOM.sample(everyone, min(schedule.cohort_size, len(everyone)))


def write_cohort(session: Session, round_: RoundRow, clients: Sequence[str]) -> None:
    """Insert the rows of a cohort and count how often each of its members was asked."""
    session.execute(insert(CohortRow), [{"round_id": round_.id, "client_id": client} for client in clients])
    for start in range(0, len(clients), 500):  # databases limit the number of bound parameters
        some = clients[start : start + 500]
        asked = update(ClientRow).where(ClientRow.id.in_(some)).values(times_asked=ClientRow.times_asked + 1)
        session.execute(asked.execution_options(synchronize_session=False))
