"""Interventions of operators: extend the deadline of an active round, or abort it; close a task, or resume it."""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Session

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.access.principals import existing_task, round_of
from aggregator_service.problems import Problem
from aggregator_service.round_states import ACTIVE, RoundEvent
from aggregator_service.rounds.transactions import fail_round
from aggregator_service.storage.database import announce
from aggregator_service.storage.round_rows import last_round, lock_round_exclusive, lock_task
from aggregator_service.storage.schema import RoundRow, TaskRow
from aggregator_service.storage.stage_rows import awaited_message
from protocols.messages import Schedule
from protocols.messages.rounds import LONGEST_STAGE

ABORTED: Final = "aborted by an operator"
"""The failure text of a round that an operator aborted."""


def extend_round(session: Session, task_id: str, number: int, seconds: float, actor: Actor) -> tuple[TaskRow, RoundRow]:
    """Move the deadline of a round's stage by `seconds`; return the task and the round.

    Raises `Problem`: 404 for an unknown round, 409 conflict when the round does not wait for clients or the deadline is
    over, 422 invalid-parameters when more than the longest stage would be left.
    """
    task, round_ = _lock(session, task_id, number)
    now = actor.at
    refuse_extension(round_, now)
    left = round_.deadline + seconds - now
    if left > LONGEST_STAGE:
        most = max(0, int(LONGEST_STAGE - (round_.deadline - now)))
        raise Problem(
            "invalid-parameters",
            f"a stage has at most {LONGEST_STAGE:,} seconds left: this one can be extended by {most:,}",
        )
    round_.deadline += seconds
    session.flush()
    announce(session, task.id, "round")
    of_round: dict[str, str | float | None] = {"round": number, "stage": round_.state, "left": round(left, 1)}
    record(session, actor, "round extended", task=task, target=None, seconds=seconds, **of_round)
    return task, round_


def abort_round(session: Session, task_id: str, number: int, actor: Actor) -> tuple[TaskRow, RoundRow]:
    """End an active round as failed; return the task and the round. A second call changes nothing.

    What clients sent is deleted, as in every failed round, and the task continues with its next round. An aborted round
    does not count as one of the failures in a row that end a task.

    Raises `Problem`: 404 for an unknown round, 409 conflict when it ended otherwise.
    """
    task, round_ = _lock(session, task_id, number)
    if round_.failure == ABORTED:
        return task, round_
    refuse_abort(round_)
    fail_round(session, task, round_, RoundEvent.ABORTED, ABORTED, actor.at, counts=False)
    record(session, actor, "round aborted", task=task, round=number)
    return task, round_


def resume_task(session: Session, task_id: str, actor: Actor) -> TaskRow:
    """Open a failed task again, with the sum that it failed at; return it. An open task stays as it is.

    Its failures in a row are forgotten. Raises `Problem`: 404 for an unknown task, 409
    conflict when it is complete or closed, or no sum of its schedule is left.
    """
    existing_task(session, task_id)
    task = lock_task(session, task_id)
    if task.state == "open":
        return task
    refuse_resumption(task)
    task.state, task.failures_in_a_row, task.ended = "open", 0, None
    session.flush()
    announce(session, task.id, "round", "members", "snapshot")
    record(session, actor, "task resumed", task=task)
    return task


def close_task(session: Session, task: TaskRow, actor: Actor) -> TaskRow:
    """Close an open or failed task for good and fail its active round; return it. A closed task stays as it is.

    Raises `Problem` conflict (409) for a complete task, which has ended.
    """
    task = lock_task(session, task.id)
    if task.state == "closed":
        return task
    if task.state == "complete":
        raise Problem("conflict", "the task is complete: it has ended, and nothing can continue it")
    task.state = "closed"
    newest = last_round(session, task.id)
    if newest is not None and newest.state in ACTIVE:
        _, active = lock_round_exclusive(session, newest.id)
        fail_round(session, task, active, RoundEvent.TASK_CLOSED, "the task was closed", actor.at)
    session.flush()
    announce(session, task.id, "round", "members", "snapshot")
    record(session, actor, "task closed", task=task)
    return task


def refuse_resumption(task: TaskRow) -> None:
    """Raise `Problem` conflict (409) when a task has not failed, or no sum of its schedule is left."""
    if task.state != "failed":
        raise Problem("conflict", f"the task is {task.state}: only a failed task can be resumed")
    if task.next_sum > Schedule.model_validate(task.schedule).rounds:
        raise Problem("conflict", "no sum of the task's schedule is left: create a new task")


def refuse_extension(round_: RoundRow, now: float) -> None:
    """Raise `Problem` conflict (409) when the round has no deadline, or its deadline is over.

    A deadline that is over is not moved: clients may have seen the end of the stage, and a masked round goes on without
    those that are missing.
    """
    if round_.state not in ACTIVE:
        raise Problem("conflict", f"the round is {round_.state}: it has no deadline")
    if awaited_message(round_) is None:
        raise Problem("conflict", f"the round is {round_.state}: it does not wait for clients, so it has no deadline")
    if now >= round_.deadline:
        raise Problem("conflict", "the stage's deadline is over")


def refuse_abort(round_: RoundRow) -> None:
    """Raise `Problem` conflict (409) when a round has ended already."""
    if round_.state not in ACTIVE:
        raise Problem("conflict", f"the round is {round_.state}: there is nothing to abort")


def _lock(session: Session, task_id: str, number: int) -> tuple[TaskRow, RoundRow]:
    return lock_round_exclusive(session, round_of(session, task_id, number).id)
