"""Who may not be in one more sum: clients of similar sets of survivors, and members whose privacy budget is spent.

Sums of class `once` and `repeated` are judged by the rule of `protocols.privacy.differencing`. A sum whose survivors
were fixed counts like a released one, also if it could not be opened (`storage.rounds`).

A client abstains after as many contributions as a task's privacy block pays for, those to failed rounds included. So
the server counts them when a round is over, asks nobody any more who has made so many
(`tasks.members.eligible_clause`), and ends the task once the others are too few for a sum. New members could go on with
it, but nobody knows whether they come: members would wait for ever.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Select, and_, or_, select, true, update
from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.storage.database import announce, changed_rows, in_batches
from aggregator_service.storage.rounds import last_over_same_data, lock_name, summed_clause
from aggregator_service.storage.schema import (
    ClientRow,
    ContributionRow,
    PastSummandRow,
    PastSumRow,
    RoundRow,
    TaskRow,
)
from aggregator_service.storage.stages import Part, clients_with
from aggregator_service.tasks.members import able_members, same_data_set, within_budget
from aggregator_service.tasks.plans import TaskPlan, plan_round, row_most_sums
from protocols.crypto.keys import SEED_BYTES
from protocols.messages import Schedule
from protocols.messages.stages import RoundState
from protocols.privacy.differencing import Allowed, Isolating, TooComplex, judge

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class TooSimilar:
    """The round's sum must not be released."""

    reason: str
    remaining: int
    """Members that are left for the same sum over fewer clients."""
    counts: bool = False
    """Whether the round counts towards `max_failed_rounds`, because nobody left the task."""


def retire_if_too_similar(
    session: Session, task: TaskRow, round_: RoundRow, present: Part = "contribute"
) -> TooSimilar | None:
    """Judge the survivors of a round whose collecting is over beside those of earlier sums. None: it may be released.

    All sums of class `once` and `repeated` over the same data are judged together: of the task, and of all tasks with
    its data set label. Otherwise the clients that dropped out leave such sums of this task, in this transaction, and as
    many more as the threshold requires. Clients are identified by digests of their identity keys: the same key in two
    tasks is the same person, also after an erasure. present: what the survivors have done.
    """
    plan = plan_round(task, round_)
    sum_class = plan.sum_class
    if sum_class.data is None:
        return None
    schedule = Schedule.model_validate(task.schedule)
    threshold = schedule.min_difference or schedule.min_clients
    earlier = _summed_over_same_data(session, task, round_)
    survivors = _survivors(session, round_.id, present)
    verdict = judge(earlier, survivors.keys(), threshold, os.urandom(SEED_BYTES))
    if isinstance(verdict, Allowed):
        return None
    if isinstance(verdict, TooComplex):
        reason = (
            "cannot compute what this sum reveals together with earlier sums over the same data, so nothing is "
            f"released: {verdict.reason}"
        )
        return TooSimilar(reason, len(survivors), counts=True)
    staying = {client for key, client in survivors.items() if key not in verdict.leave_out}
    leaving = set(session.scalars(clients_with(round_.id, "asked"))) - staying
    update_clients(session, leaving, left_data_in=round_.number)  # of every sum of class `once` or `repeated`
    frozen = frozen_cohort(session, task, plan) if sum_class.repeated else None
    able = able_members(session, task, plan.recipe.device_groups, sum_class, round_.sum_index)
    remaining = sum(able) if frozen is None else len(staying)
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
    reason = f"{fault}: nothing is released, {len(leaving)} clients leave such sums, {remaining} remain"
    return TooSimilar(reason, remaining)


_BEFORE_RELEASE: Final = (RoundState.FOLDING, RoundState.CONFIRMING, RoundState.UNMASKING)
"""States of a round whose survivors are final, and whose sum is about to be released."""


def _summed_over_same_data(session: Session, task: TaskRow, round_: RoundRow) -> list[Collection[str]]:
    """Survivors of all other sums of class `once` or `repeated` over the data of a round, each set once.

    Of other tasks also those of sums that are about to be released: their label is locked until the commit, since two
    rounds must not be judged at the same time without seeing each other.
    """
    if task.data_set is not None:
        lock_name(session, f"data_set {task.data_set}")
    about_to_be = and_(RoundRow.state.in_(_BEFORE_RELEASE), RoundRow.task_id != task.id)
    query = select(RoundRow).join(TaskRow).where(same_data_set(task), RoundRow.sum_data == round_.sum_data)
    query = query.where(RoundRow.id != round_.id, or_(summed_clause(), about_to_be))
    rounds: dict[object, int] = {}
    for row in session.scalars(query.order_by(RoundRow.id)):
        # the sets of one task's repeated sums only shrink, so those of equal size are equal; 0: it was not released
        shrinks = row.sum_rule == "repeated" and row.survivors
        rounds[(row.task_id, row.survivors) if shrinks else row.id] = row.id
    found: list[Collection[str]] = [_survivors(session, round_id).keys() for round_id in rounds.values()]
    return [*found, *_survivors_of_deleted(session, task.data_set, round_.sum_data)]


def _survivors_of_deleted(session: Session, data_set: str | None, sum_data: str | None) -> list[Collection[str]]:
    """Sets of persons of the sums of deleted tasks (`tasks.deletion`)."""
    query = select(PastSumRow.id, PastSummandRow.person).join(PastSummandRow, PastSummandRow.sum_id == PastSumRow.id)
    sets: dict[int, set[str]] = {}
    for sum_id, person in session.execute(
        query.where(PastSumRow.data_set == data_set, PastSumRow.sum_data == sum_data)
    ):
        sets.setdefault(sum_id, set()).add(person.hex())
    return list(sets.values())


def _survivors(session: Session, round_id: int, present: Part = "contribute") -> dict[str, str]:
    """Client ids by person (`storage.persons`, hex) of those that contributed to a round, or did `present` in it."""
    query = select(ClientRow.person, ClientRow.id).where(ClientRow.id.in_(clients_with(round_id, present)))
    return {row[0].hex(): row[1] for row in session.execute(query)}


def mark_retired(session: Session, clients: Collection[str], number: int) -> None:
    """Keep clients out of every cohort after round `number`."""
    update_clients(session, clients, retired_in=number)


def retire_at_fault(session: Session, clients: Collection[str], round_: RoundRow) -> None:
    """Keep clients that were found at fault in a round out of every later cohort, and log who they are."""
    mark_retired(session, clients, round_.number)
    for client in sorted(clients):
        _LOG.warning("client at fault, retired", extra=fields(task=round_.task_id, round=round_.number, client=client))


def update_clients(session: Session, clients: Collection[str], **values: int | ColumnElement[int]) -> None:
    """Set columns of the rows of these clients."""
    for some in in_batches(clients):
        changed_rows(session, update(ClientRow).where(ClientRow.id.in_(some)).values(**values))


def frozen_cohort(session: Session, task: TaskRow, plan: TaskPlan, *, spent: bool = False) -> list[str] | None:
    """Return the cohort of the next sum of class `repeated` over the data of `plan`; None if it is still to be drawn.

    These are the survivors of the task's last such sum that have not left since. Before the first one of a masked task
    they are the members of the last roster in which clients were asked to contribute: clients keep to that roster.
    spent: with those that a privacy block pays for no more.
    """
    data = plan.sum_class.data
    summed = last_over_same_data(session, task.id, data, summed=True)
    if summed is not None:
        return remaining_clients(session, task, clients_with(summed.id, "contribute"), spent=spent)
    collected = last_over_same_data(session, task.id, data, summed=False)
    if collected is None or not plan.sum_plan.repeated:
        return None
    return remaining_clients(session, task, clients_with(collected.id, "advertise"), spent=spent)


def least_cohort(task: TaskRow, summed: TaskPlan) -> int:
    """Return the smallest cohort that can compute a sum of this plan."""
    schedule, plan = Schedule.model_validate(task.schedule), summed.sum_plan
    return max(schedule.min_clients * plan.groups, plan.quorum(schedule.cohort_size) if plan.repeated else 0)


def remaining_clients(session: Session, task: TaskRow, clients: Select[str], *, spent: bool = False) -> list[str]:
    """Return the clients among these that have not left, in the order of their enrolment.

    spent: also those that a privacy block pays for no more.
    """
    remaining = select(ClientRow.id).where(
        ClientRow.id.in_(clients),
        ClientRow.retired_in.is_(None),
        ClientRow.left_data_in.is_(None),
        ClientRow.revoked_at.is_(None),
        true() if spent else within_budget(task),
    )
    return list(session.scalars(remaining.order_by(ClientRow.sequence)))


def count_contributions(session: Session, task: TaskRow, round_id: int, clients: Collection[str] | None = None) -> None:
    """Count the stored contributions to a round for their members, in a task with a privacy block.

    Call it once for each contribution: for all when the round is over, and before for `clients` that are taken out of
    it, whose contributions are deleted.
    """
    if task.privacy is None:
        return
    counted = ClientRow.times_contributed + 1
    if clients is not None:
        update_clients(session, clients, times_contributed=counted)
        return
    given = select(ContributionRow.client_id).where(ContributionRow.round_id == round_id)
    changed_rows(session, update(ClientRow).where(ClientRow.id.in_(given)).values(times_contributed=counted))


def end_at_budget(session: Session, task: TaskRow, plan: TaskPlan, sum_index: int) -> bool:
    """End a task whose next sum has too few members left that its privacy block pays for; return whether it ended.

    plan: of the next sum. The task is then complete, with the model that it has, or failed if it released no sum. It
    does not end where the members would be too few with a larger budget, too: it waits for others to enrol. Nor does it
    end at a measurement of the model by a frozen cohort, which is abandoned (`openings`).
    """
    most = row_most_sums(task)
    if most is None:
        return False
    if plan.sum_class.data == "held-out" and frozen_cohort(session, task, plan) is not None:
        return False
    left, everyone, needed = _counts(session, task, plan, sum_index)
    if not left < needed <= everyone:
        return False
    task.state = "complete" if task.completed_rounds else "failed"
    task.ended = (
        f"the privacy block pays for {most} contributions of a member, those to failed rounds included: {left} of "
        f"{everyone} members may contribute once more, and a sum needs {needed}"
    )
    session.flush()
    announce(session, task.id, "round", "members", "snapshot")
    _LOG.warning("task ended at its privacy budget: %s", task.ended, extra=fields(task=task.id, state=task.state))
    return True


def _counts(session: Session, task: TaskRow, plan: TaskPlan, sum_index: int) -> tuple[int, int, int]:
    """Return the members that may contribute to a sum, those with any budget, and how many the sum needs."""
    if plan.sum_class.repeated:
        cohorts = [frozen_cohort(session, task, plan, spent=spent) for spent in (False, True)]
        if cohorts[0] is not None and cohorts[1] is not None:
            return len(cohorts[0]), len(cohorts[1]), least_cohort(task, plan)
    recipe = plan.recipe
    group = recipe.device_group_of(sum_index)
    left, everyone = (
        able_members(session, task, recipe.device_groups, plan.sum_class, sum_index, spent=spent)[group]
        for spent in (False, True)
    )
    return left, everyone, least_cohort(task, plan)
