"""Tasks with a frozen cohort: the sets of survivors of its sums, and which clients leave when two are similar.

A sum whose survivors were fixed counts like a released one, also if it could not be opened (`storage.rounds`).

The rule and its reasons are in `protocols.privacy.differencing`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from aggregator_service.storage.rounds import last_that_collected, list_judged, list_summed, lock_data_set
from aggregator_service.storage.schema import ClientRow, RoundRow, TaskRow
from aggregator_service.storage.stages import Part, clients_with
from aggregator_service.tasks.eligibility import able_members
from aggregator_service.tasks.plans import plan_round
from protocols.crypto.domain import SEED_BYTES
from protocols.messages import Schedule
from protocols.privacy.differencing import Allowed, Isolating, TooComplex, judge
from protocols.sums.base import SumPlan
from protocols.sums.masked.plan import MaskedPlan

__all__ = ["TooSimilar", "frozen_cohort", "least_cohort", "remaining_clients", "retire_if_too_similar"]

_BATCH: Final = 500


@dataclass(frozen=True)
class TooSimilar:
    """The round's sum must not be released. remaining: members that are left for the same sum over fewer clients.

    counts: whether the round counts towards `max_failed_rounds`, because nobody left the task.
    """

    reason: str
    remaining: int
    counts: bool = False


def retire_if_too_similar(
    session: Session, task: TaskRow, round_: RoundRow, present: Part = "contribute"
) -> TooSimilar | None:
    """Judge the survivors of a round whose collecting is over beside those of earlier sums. None: it may be released.

    Otherwise retire, in this transaction, the clients that dropped out and as many more as the threshold requires.
    Clients are identified by their identity keys: the same key in two tasks is the same person. present: what the
    survivors have done.
    """
    if not plan_round(task, round_).recipe.frozen_cohort:
        return None
    schedule = Schedule.model_validate(task.schedule)
    threshold = schedule.min_difference or schedule.min_clients
    own = [_survivors(session, row.id).keys() for row in list_summed(session, task.id)]
    others = _survivors_over_same_data(session, task)
    survivors = _survivors(session, round_.id, present)
    verdict = judge([*own, *others], survivors.keys(), threshold, os.urandom(SEED_BYTES))
    if isinstance(verdict, Allowed):
        return None
    if isinstance(verdict, TooComplex):
        reason = (
            "cannot compute what this sum reveals together with earlier sums over the same data, so nothing is "
            f"released: {verdict.reason}"
        )
        return TooSimilar(reason, len(survivors), counts=True)
    staying = {client for key, client in survivors.items() if key not in verdict.leave_out}
    retired = set(session.scalars(clients_with(round_.id, "asked"))) - staying
    mark_retired(session, retired, round_.number)
    # Before its first sum a task has no frozen cohort yet: the next one is drawn from all members that are left.
    frozen = bool(own) or _keeps_roster(plan_round(task, round_).sum_plan)
    remaining = len(staying) if frozen else sum(able_members(session, task, 1))
    if isinstance(verdict, Isolating):
        fault = (
            f"this sum and earlier ones, added and subtracted, give a sum over {verdict.clients} clients, but sums "
            f"over the same data must not isolate fewer than {threshold}"
        )
    else:
        fault = (
            f"the survivors differ from those of an earlier sum by {verdict.difference} clients, but sums over the "
            f"same data must differ by at least {threshold}"
        )
    reason = f"{fault}: nothing is released, {len(retired)} clients leave the task, {remaining} remain"
    return TooSimilar(reason, remaining)


def _survivors_over_same_data(session: Session, task: TaskRow) -> list[Collection[str]]:
    """Survivors of the sums of all other tasks with this data set label, also of those that are about to be released.

    Locks the label until the commit: two rounds must not be judged at the same time without seeing each other.
    """
    if task.data_set is None:
        return []
    lock_data_set(session, task.data_set)
    found: list[Collection[str]] = []
    query = select(TaskRow).where(TaskRow.data_set == task.data_set, TaskRow.id != task.id)
    for other in session.scalars(query.order_by(TaskRow.id)):
        rounds = list_judged(session, other.id)
        if rounds and plan_round(other, rounds[0]).recipe.frozen_cohort:
            found += [_survivors(session, row.id).keys() for row in rounds]
    return found


def _survivors(session: Session, round_id: int, present: Part = "contribute") -> dict[str, str]:
    """Client ids by identity key (hex) of the clients that contributed to a round, or did `present` in it."""
    query = select(ClientRow.identity_key, ClientRow.id).where(ClientRow.id.in_(clients_with(round_id, present)))
    return {row[0].hex(): row[1] for row in session.execute(query)}


def mark_retired(session: Session, clients: Collection[str], number: int) -> None:
    """Keep clients out of every cohort after round `number`."""
    ordered = sorted(clients)
    for start in range(0, len(ordered), _BATCH):
        some = update(ClientRow).where(ClientRow.id.in_(ordered[start : start + _BATCH])).values(retired_in=number)
        session.execute(some, execution_options={"synchronize_session": False})


def frozen_cohort(session: Session, task: TaskRow) -> list[str] | None:
    """Return the next cohort of a task with a frozen one; None if it is still to be drawn.

    These are the survivors of its last sum that have not left since. Before the first sum of a masked task they are the
    members of the last roster in which clients were asked to contribute: clients keep to that roster.
    """
    summed = list_summed(session, task.id)
    if summed:
        return remaining_clients(session, clients_with(summed[-1].id, "contribute"))
    collected = last_that_collected(session, task.id)
    if collected is None or not _keeps_roster(plan_round(task, collected).sum_plan):
        return None
    return remaining_clients(session, clients_with(collected.id, "advertise"))


def least_cohort(task: TaskRow, round_: RoundRow) -> int:
    """Return the smallest cohort with which a task can continue."""
    schedule, plan = Schedule.model_validate(task.schedule), plan_round(task, round_).sum_plan
    if isinstance(plan, MaskedPlan) and plan.repeated:
        return max(schedule.min_clients, plan.quorum(schedule.cohort_size))
    return schedule.min_clients


def _keeps_roster(plan: SumPlan) -> bool:
    return isinstance(plan, MaskedPlan) and plan.repeated


def remaining_clients(session: Session, clients: Select[str]) -> list[str]:
    """Return the clients among these that have not left the task, in the order of their enrolment."""
    remaining = select(ClientRow.id).where(
        ClientRow.id.in_(clients),
        ClientRow.retired_in.is_(None),
        ClientRow.revoked_at.is_(None),
    )
    return list(session.scalars(remaining.order_by(ClientRow.sequence)))
