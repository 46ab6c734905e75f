"""What an operator does to a round under way: give its stage more time, or end it."""

from __future__ import annotations

import logging
from typing import Final

from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.round_states import ACTIVE, RoundEvent
from aggregator_service.rounds.transactions import fail_round
from aggregator_service.storage.database import announce
from aggregator_service.storage.rounds import find_round, lock_round_exclusive
from aggregator_service.storage.schema import RoundRow, TaskRow
from aggregator_service.storage.stages import awaited_message
from protocols.messages.rounds import LONGEST_STAGE

__all__ = ["ABORTED", "abort_round", "extend_round", "refuse_abort", "refuse_extension"]

_LOG = logging.getLogger(__name__)

ABORTED: Final = "aborted by an operator"
"""The failure of a round that an operator ended."""


def extend_round(
    session: Session, task_id: str, number: int, seconds: float, operator: str, now: float
) -> tuple[TaskRow, RoundRow]:
    """Move the deadline of the stage that a round is in by `seconds`; the task and the round as they then are.

    404 unless there is such a round, 409 conflict when no stage of it waits for clients any more, 422 when more than
    the longest stage would be left. `operator`: who did it, for the log.
    """
    task, round_ = _held(session, task_id, number)
    refuse_extension(round_, now)
    left = round_.deadline + seconds - now
    if left > LONGEST_STAGE:
        most = max(0, int(LONGEST_STAGE - (round_.deadline - now)))
        raise Problem(
            "invalid-parameters",
            f"a stage has at most {LONGEST_STAGE:,} seconds before it: this one can be given {most:,} more",
        )
    round_.deadline += seconds
    session.flush()
    announce(session, task.id, "round")
    _LOG.info(
        "round extended",
        extra=fields(task=task.id, round=number, stage=round_.state, operator=operator, seconds=seconds, left=left),
    )
    return task, round_


def abort_round(session: Session, task_id: str, number: int, operator: str, now: float) -> tuple[TaskRow, RoundRow]:
    """End a round under way as failed; the task and the round as they then are. Doing so twice does nothing more.

    What clients sent is deleted, as in every round that fails, and the task goes on with its next round. Nobody failed,
    so it does not count towards the failures in a row that end a task. 404 unless there is such a round, 409 conflict
    when it has ended in another way.
    """
    task, round_ = _held(session, task_id, number)
    if round_.failure == ABORTED:
        return task, round_
    refuse_abort(round_)
    fail_round(session, task, round_, RoundEvent.ABORTED, ABORTED, now, counts=False)
    _LOG.info("round aborted", extra=fields(task=task.id, round=number, operator=operator))
    return task, round_


def refuse_extension(round_: RoundRow, now: float) -> None:
    """409 conflict when the stage's deadline cannot be moved: there is none, or it is over.

    A stage that is over stays so: its clients may have been told, and in a masked round those that are missing are
    given up on.
    """
    if round_.state not in ACTIVE:
        raise Problem("conflict", f"the round is {round_.state}: it has no deadline any more")
    if awaited_message(round_) is None:
        raise Problem("conflict", f"the round is {round_.state}: it waits for no client, so there is no deadline")
    if now >= round_.deadline:
        raise Problem("conflict", "the stage's deadline is over: the round is moving on")


def refuse_abort(round_: RoundRow) -> None:
    """409 conflict when a round has ended already."""
    if round_.state not in ACTIVE:
        raise Problem("conflict", f"the round is {round_.state}: there is nothing to abort")


def _held(session: Session, task_id: str, number: int) -> tuple[TaskRow, RoundRow]:
    found = find_round(session, task_id, number)
    if found is None:
        raise Problem("not-found", "there is no such round")
    held = lock_round_exclusive(session, found.id)
    return session.get_one(TaskRow, task_id), held
