"""Who may still be asked for a sum: the members that have not left, the frozen cohort, the smallest one, the drawn one.

A client abstains after as many contributions as a task's privacy block pays for, those to failed rounds included. So
the server counts them when a round is over, asks nobody any more who has made so many
(`tasks.membership.eligible_clause`), and ends the task once the others are too few for a sum. New members could go on
with it, but nobody knows whether they come: members would wait for ever.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Select, func, select, true, update
from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.storage.database import announce, changed_rows, in_batches
from aggregator_service.storage.round_rows import last_over_same_data
from aggregator_service.storage.schema import (
    ClientRow,
    ContributionRow,
    RoundRow,
    TaskRow,
)
from aggregator_service.storage.stage_rows import clients_with
from aggregator_service.tasks.membership import able_to_add, eligible_clause, within_budget
from aggregator_service.tasks.plans import TaskPlan, row_most_sums
from protocols.cohorts import places_after, places_in_turn
from protocols.messages import Schedule
from protocols.messages.stages import RoundState
from protocols.sums.group_sums import SMALLEST

_LOG = logging.getLogger(__name__)
_RANDOM = secrets.SystemRandom()


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


def least_cohort(session: Session, task: TaskRow, summed: TaskPlan) -> int:
    """Return the smallest cohort that can compute a sum of this plan."""
    schedule, plan = Schedule.model_validate(task.schedule), summed.sum_plan
    least = max(schedule.min_clients * plan.groups, plan.quorum(schedule.cohort_size) if plan.repeated else 0)
    return max(least, least_after_groups(session, task, summed))


def least_after_groups(session: Session, task: TaskRow, summed: TaskPlan) -> int:
    """Return the fewest clients of a sum after one in groups over the same data; 0 if the first was not split.

    With as many, `min_clients` of each of those groups are left, whichever the others were of. The clients of all
    parties require so many of each group (`client_sdk.store.states`, which has the proof).
    """
    if not summed.sum_class.repeated:
        return 0
    same = RoundRow.task_id == task.id, RoundRow.sum_rule == "repeated", RoundRow.sum_data == summed.sum_class.data
    query = select(RoundRow).where(*same, RoundRow.state == RoundState.COMPLETE).order_by(RoundRow.number).limit(1)
    first = session.scalars(query).one_or_none()
    if first is None or SMALLEST not in first.report:
        return 0
    spare = int(first.report[SMALLEST]) - Schedule.model_validate(task.schedule).min_clients
    return first.survivors - spare


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
    end at a measurement of the model by a frozen cohort, which is abandoned (`opening`).
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
            return len(cohorts[0]), len(cohorts[1]), least_cohort(session, task, plan)
    left, everyone = (able_to_add(session, task, plan, sum_index, spent=spent) for spent in (False, True))
    return left, everyone, least_cohort(session, task, plan)


def enough_members(schedule: Schedule, able: Sequence[int], device_group: int, least: int, *, first: bool) -> bool:
    """Whether enough members can contribute for a round over `device_group` to open.

    able: members that can contribute, by device group. least: the smallest cohort of the round (`least_cohort`). first:
    whether this is the task's first round. It opens when the whole task has `start_clients`, and each group enough for
    its sums.
    """
    if not first:
        return able[device_group] >= least
    each = max(least, 0 if schedule.start_clients else schedule.cohort_size)
    return min(able) >= each and sum(able) >= schedule.start_clients


def draw_cohort(session: Session, task: TaskRow, plan: TaskPlan, sum_index: int, least: int) -> list[str]:
    """Draw a new cohort for a sum, of the members that can contribute to it; return its client ids.

    Taking turns, those at the next places in the order of `ClientRow.turn`: a batch (`protocols.cohorts`), or
    `cohort_size` for a sum whose cohort stays. Uniform without replacement with `sampling` `uniform`. plan: of the sum.
    least: fewest clients that can compute it, at most as many as there are.
    """
    schedule, sum_class = Schedule.model_validate(task.schedule), plan.sum_class
    able = select(ClientRow.id).where(
        ClientRow.task_id == task.id,
        ClientRow.device_group == plan.recipe.device_group_of(sum_index),
        eligible_clause(task, sum_class, sum_index),
    )
    if schedule.sampling == "uniform":
        everyone = list(session.scalars(able.order_by(ClientRow.sequence)))
        return _RANDOM.sample(everyone, min(schedule.cohort_size, len(everyone)))
    members = session.execute(able.with_only_columns(func.count())).scalar_one()
    turn, most = _turn(session, task, plan, sum_index), schedule.cohort_size
    places = places_after(members, turn, most) if sum_class.repeated else places_in_turn(members, turn, most, least)
    ordered = able.order_by(ClientRow.turn, ClientRow.id)
    return [client for some in places for client in session.scalars(ordered.offset(some.start).limit(len(some)))]


def _turn(session: Session, task: TaskRow, plan: TaskPlan, sum_index: int) -> int:
    """Return how many cohorts were drawn before for sums of the class and the device group of this one.

    Those of failed rounds count: members that were away do not keep the others waiting. Rounds of other classes do not:
    who measures the model often trains as often as others.
    """
    recipe, sum_class = plan.recipe, plan.sum_class
    drawn = select(RoundRow.sum_index).where(
        RoundRow.task_id == task.id,
        RoundRow.sum_rule == sum_class.rule,
        RoundRow.sum_data.is_(None) if sum_class.data is None else RoundRow.sum_data == sum_class.data,
        RoundRow.again.is_(None),
    )
    if recipe.device_groups == 1:
        return session.execute(drawn.with_only_columns(func.count())).scalar_one()
    group = recipe.device_group_of(sum_index)
    return sum(recipe.device_group_of(index) == group for index in session.scalars(drawn))
