"""Jobs with a frozen cohort: which sums were released over whom, and who leaves when two would be too alike.

The rule and its reasons: `protocols.privacy.differencing`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from aggregator_service.storage.rounds import hold_data_set, list_completed, list_judged
from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow
from aggregator_service.storage.stages import clients_with
from aggregator_service.tasks.eligibility import able_members
from aggregator_service.tasks.plans import plan_round
from protocols.crypto.domain import SEED_BYTES
from protocols.messages import Schedule
from protocols.privacy.differencing import Allowed, judge

__all__ = ["TooAlike", "retire_similar", "staying_cohort"]

_BATCH: Final = 500


@dataclass(frozen=True)
class TooAlike:
    """The round's sum must not be released. `stay`: members that are left for the same sum over fewer."""

    reason: str
    stay: int


def retire_similar(session: Session, task: TaskRow, round_: RoundRow) -> TooAlike | None:
    """Judge the survivors of a round whose collecting is over. None: its sum may be released.

    Otherwise those that dropped out, and as many more as the threshold wants, are retired from the job in the same
    transaction. Clients are told apart by their identity keys: the same key in two tasks is the same person.
    """
    if not plan_round(task, round_).recipe.frozen_cohort:
        return None
    schedule = Schedule.model_validate(task.schedule)
    threshold = schedule.min_difference or schedule.min_clients
    own = _released(session, task)
    others = _over_the_same_data(session, task)
    survivors = _survivors(session, round_.id)
    verdict = judge([*own, *others], survivors.keys(), threshold, os.urandom(SEED_BYTES))
    if isinstance(verdict, Allowed):
        return None
    stay = {client for key, client in survivors.items() if key not in verdict.leave_out}
    gone = set(session.scalars(clients_with(round_.id, "asked"))) - stay
    _retire(session, gone, round_.number)
    # Before its first sum a job has not chosen its cohort yet: the next one is drawn from all that are left.
    left = len(stay) if own else sum(able_members(session, task, 1))
    reason = (
        f"the survivors differ from those of an earlier sum by {verdict.difference} clients, and sums over the same "
        f"data differ by at least {threshold}: nothing is released, {len(gone)} clients leave the job, {left} stay"
    )
    return TooAlike(reason, left)


def _released(session: Session, task: TaskRow) -> list[Collection[str]]:
    """The sets of survivors of the job's released sums, each once: cohorts only shrink, so equal sizes, equal sets."""
    rounds = {row.survivors: row.id for row in list_completed(session, task.id)}
    return [_survivors(session, round_id).keys() for round_id in rounds.values()]


def _over_the_same_data(session: Session, task: TaskRow) -> list[Collection[str]]:
    """The same of all other jobs with this task's label, with those sums that will be released soon.

    Two rounds must not be judged at once, neither knowing of the other: whoever comes first is seen by the second.
    """
    if task.data_set is None:
        return []
    hold_data_set(session, task.data_set)
    found: list[Collection[str]] = []
    query = select(TaskRow).where(TaskRow.data_set == task.data_set, TaskRow.id != task.id)
    for other in session.scalars(query.order_by(TaskRow.id)):
        rounds = list_judged(session, other.id)
        if rounds and plan_round(other, rounds[0]).recipe.frozen_cohort:
            found += [_survivors(session, row.id).keys() for row in rounds]
    return found


def _survivors(session: Session, round_id: int) -> dict[str, str]:
    """Identity key (hex) -> client id of those who contributed to a round."""
    query = select(ClientRow.identity_key, ClientRow.id).where(ClientRow.id.in_(clients_with(round_id, "contribute")))
    return {row[0].hex(): row[1] for row in session.execute(query)}


def _retire(session: Session, clients: Collection[str], number: int) -> None:
    ordered = sorted(clients)
    for start in range(0, len(ordered), _BATCH):
        some = update(ClientRow).where(ClientRow.id.in_(ordered[start : start + _BATCH])).values(retired_in=number)
        session.execute(some, execution_options={"synchronize_session": False})


def staying_cohort(session: Session, completed: RoundRow) -> list[str]:
    """The next cohort of a job with a frozen one: survivors of its last released sum that have not left since."""
    stays = select(ClientRow.id).where(
        ClientRow.id.in_(clients_with(completed.id, "contribute")),
        ClientRow.retired_in.is_(None),
        ClientRow.revoked_at.is_(None),
    )
    return list(session.scalars(stays.order_by(ClientRow.sequence)))
