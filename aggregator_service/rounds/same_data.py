"""Whether a sum may stand beside earlier ones over the same data, and who leaves such sums if it may not.

Sums of class `once` and `repeated` are judged by the rule of `protocols.privacy.differencing`. A sum whose survivors
were fixed counts like a released one, also if it could not be opened (`storage.round_rows`).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from aggregator_service.rounds.cohorts import frozen_cohort, least_after_groups, update_clients
from aggregator_service.storage.round_rows import lock_name, summed_clause
from aggregator_service.storage.schema import (
    ClientRow,
    PastSummandRow,
    PastSumRow,
    RoundRow,
    TaskRow,
)
from aggregator_service.storage.stage_rows import StagePart, clients_with
from aggregator_service.tasks.membership import able_members, same_data_set
from aggregator_service.tasks.plans import plan_round
from protocols.crypto.keys import SEED_BYTES
from protocols.messages import Schedule
from protocols.messages.stages import RoundState
from protocols.privacy.differencing import Allowed, Isolating, TooComplex, judge


@dataclass(frozen=True)
class RefusedSum:
    """The round's sum must not be released."""

    reason: str
    remaining: int
    """Members that are left for the same sum, over fewer clients or, if nobody left, with those that were absent."""
    counts: bool = False
    """Whether the round counts towards `max_failed_rounds`, because nobody left the task."""


def retire_if_too_similar(
    session: Session, task: TaskRow, round_: RoundRow, present: StagePart = "contribute"
) -> RefusedSum | None:
    """Judge the survivors of a round whose collecting is over beside those of earlier sums. None: it may be released.

    All sums of class `once` and `repeated` over the same data are judged together: of the task, and of all tasks with
    its data set label. Otherwise the clients that dropped out leave such sums of this task, in this transaction, and as
    many more as the threshold requires. If a later sum could then be over too few of a group of the first one, nobody
    leaves: all of the frozen cohort are asked again, since nobody has agreed to this set, and those that were absent
    may come back. Clients are identified by digests of their identity keys: the same key in two tasks is the same
    person, also after an erasure. present: what the survivors have done.
    """
    plan = plan_round(task, round_)
    sum_class = plan.sum_class
    if sum_class.data is None:
        return None
    schedule = Schedule.model_validate(task.schedule)
    threshold = schedule.min_difference or schedule.min_clients
    survivors = _survivors(session, round_.id, present)
    frozen = frozen_cohort(session, task, plan) if sum_class.repeated else None
    least = least_after_groups(session, task, plan)
    of_groups = f"{least} are needed, so that {schedule.min_clients} clients of each group of the first sum are left"
    if frozen is not None and len(survivors) < least:
        reason = f"{len(survivors)} clients contributed, and {of_groups}: nothing is released, {len(frozen)} remain"
        return RefusedSum(reason, len(frozen), counts=True)
    earlier = _summed_over_same_data(session, task, round_)
    verdict = judge(earlier, survivors.keys(), threshold, os.urandom(SEED_BYTES))
    if isinstance(verdict, Allowed):
        return None
    if isinstance(verdict, TooComplex):
        reason = (
            "cannot compute what this sum reveals together with earlier sums over the same data, so nothing is "
            f"released: {verdict.reason}"
        )
        return RefusedSum(reason, len(survivors), counts=True)
    staying = {client for key, client in survivors.items() if key not in verdict.leave_out}
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
    if frozen is not None and len(staying) < least:
        reason = f"{fault}: nothing is released. If as many left, {len(staying)} would remain, and {of_groups}"
        is_absent = not set(frozen).issubset(survivors.values())  # if nobody is, the next round would be the same
        return RefusedSum(reason, len(frozen if is_absent else staying), counts=True)
    leaving = set(session.scalars(clients_with(round_.id, "asked"))) - staying
    update_clients(session, leaving, left_data_in=round_.number)  # of every sum of class `once` or `repeated`
    able = able_members(session, task, plan.recipe, sum_class, round_.sum_index)
    remaining = sum(able) if frozen is None else len(staying)
    reason = f"{fault}: nothing is released, {len(leaving)} clients leave such sums, {remaining} remain"
    return RefusedSum(reason, remaining)


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


def _survivors(session: Session, round_id: int, present: StagePart = "contribute") -> dict[str, str]:
    """Client ids by person (`storage.persons`, hex) of those that contributed to a round, or did `present` in it."""
    query = select(ClientRow.person, ClientRow.id).where(ClientRow.id.in_(clients_with(round_id, present)))
    return {row[0].hex(): row[1] for row in session.execute(query)}
