"""Eligibility: which members of a task can contribute to a sum."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session, aliased

from aggregator_service.round_states import ACTIVE
from aggregator_service.storage.rounds import last_round, summed_clause
from aggregator_service.storage.schema import ClientRow, ContributionRow, RoundRow, TaskRow
from protocols.messages import Schedule
from protocols.recipes.base import Recipe
from protocols.sum_classes import TRAINED, SumClass

__all__ = ["able_members", "awaited_uncounted", "eligible_clause", "same_data_set"]


def eligible_clause(task: TaskRow, sum_class: SumClass = TRAINED, sum_index: int = 0) -> ColumnElement[bool]:
    """Return the condition for members that can contribute to sum `sum_index`, which is of class `sum_class`.

    Not revoked, not retired, and keyed where that is needed. Members of a committee never contribute. A holder that
    takes part stores an envelope for itself; one that only gives out keys has none, and is not asked. Members that left
    the sums of class `once` and `repeated` only train; those whose data another sum of class `once` of the data set may
    hold are not asked for this one: they abstain.
    """
    able = [ClientRow.revoked_at.is_(None), ClientRow.retired_in.is_(None), ClientRow.role != "committee"]
    if task.needs_keyring:
        able.append(ClientRow.envelope_key.is_not(None))
    if sum_class.data is not None:
        able.append(ClientRow.left_data_in.is_(None))
    if sum_class.once:
        able.append(ClientRow.identity_key.not_in(_counted(task, sum_class, sum_index)))
    return and_(*able)


def same_data_set(task: TaskRow) -> ColumnElement[bool]:
    """Return the condition for tasks over the data set of `task`: those with its label; without one, `task` itself."""
    return TaskRow.id == task.id if task.data_set is None else TaskRow.data_set == task.data_set


def _counted(task: TaskRow, sum_class: SumClass, sum_index: int) -> Select[bytes]:
    """Select the identity keys in other sums of class `once` of the data set, failed rounds included.

    A client cannot tell whether a sum that failed for it was opened, so it counts as counted then, too. In the same sum
    it can be asked again, unless it agreed to a set of survivors.
    """
    other = aliased(ClientRow)
    contributed = select(other.identity_key).join(ContributionRow, ContributionRow.client_id == other.id)
    rounds = contributed.join(RoundRow, RoundRow.id == ContributionRow.round_id).join(TaskRow)
    another = or_(RoundRow.task_id != task.id, RoundRow.sum_index != sum_index, summed_clause())
    return rounds.where(same_data_set(task), RoundRow.sum_rule == "once", RoundRow.sum_data == sum_class.data, another)


def awaited_uncounted(session: Session, task: TaskRow, recipe: Recipe) -> str | None:
    """Return what the next sum of class `once` waits for, in plain words; None when it does not wait for members."""
    newest, sum_index = last_round(session, task.id), task.next_sum
    if task.state != "open" or (newest is not None and newest.state in ACTIVE):
        return None
    sum_class = recipe.layout(sum_index).sum_class
    if not sum_class.once:
        return None
    needed = Schedule.model_validate(task.schedule).min_clients
    able = sum(able_members(session, task, recipe.device_groups, sum_class, sum_index))
    if able >= needed or able == sum(able_members(session, task, recipe.device_groups)):
        return None
    where = "this task" if task.data_set is None else f"data set {task.data_set!r}"
    return (
        f"new members: sum {sum_index} counts each client's data once in {where}; it needs {needed} members that no "
        f"other sum holds, and has {able}"
    )


def able_members(
    session: Session, task: TaskRow, device_groups: int, sum_class: SumClass = TRAINED, sum_index: int = 0
) -> list[int]:
    """Return the number of members that can contribute to a sum, by device group; see `eligible_clause`."""
    able = select(ClientRow.device_group, func.count()).where(
        ClientRow.task_id == task.id, eligible_clause(task, sum_class, sum_index)
    )
    counts = {row[0]: row[1] for row in session.execute(able.group_by(ClientRow.device_group))}
    return [counts.get(device_group, 0) for device_group in range(device_groups)]
