"""The end of a task with a privacy block: when too few members may contribute once more.

A client abstains after as many contributions as the block pays for, those to failed rounds included. So the server
counts them when a round is over, asks nobody any more who has made so many (`tasks.members.eligible_clause`), and ends
the task once the others are too few for a sum. New members could go on with it, but nobody knows whether they come:
members would wait for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.rounds.differencing import frozen_cohort, least_cohort
from aggregator_service.storage.database import announce, changed_rows, in_batches
from aggregator_service.storage.schema import ClientRow, ContributionRow, TaskRow
from aggregator_service.tasks.members import able_members
from aggregator_service.tasks.plans import TaskPlan, row_most_sums
from protocols.messages import Schedule

__all__ = ["count_contributions", "end_at_budget"]

_LOG = logging.getLogger(__name__)


def count_contributions(session: Session, task: TaskRow, round_id: int, clients: Collection[str] | None = None) -> None:
    """Count the stored contributions to a round for their members, in a task with a privacy block.

    Call it once for each contribution: for all when the round is over, and before for `clients` that are taken out of
    it, whose contributions are deleted.
    """
    if task.privacy is None:
        return
    count = update(ClientRow).values(times_contributed=ClientRow.times_contributed + 1)
    if clients is None:
        given = select(ContributionRow.client_id).where(ContributionRow.round_id == round_id)
        changed_rows(session, count.where(ClientRow.id.in_(given)))
        return
    for some in in_batches(clients):
        changed_rows(session, count.where(ClientRow.id.in_(some)))


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
    return left, everyone, Schedule.model_validate(task.schedule).min_clients
