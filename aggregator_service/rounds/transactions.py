"""The transactions of a round. Each one is all or nothing, and asks the table before it moves a round."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from aggregator_service.compute.jobs import BlobRef, Released, StoredState
from aggregator_service.logs import fields
from aggregator_service.round_states import ACTIVE, RoundEvent, next_state
from aggregator_service.rounds.cohorts import draw_cohort, enough_members, write_cohort
from aggregator_service.rounds.differencing import retire_similar, staying_cohort
from aggregator_service.storage.chunks import drop_chunks
from aggregator_service.storage.database import (
    announce,
    changed_rows,
    count_dropouts,
    count_outcome,
    discard,
)
from aggregator_service.storage.rounds import (
    last_completed,
    last_round,
    lock_round_exclusive,
    lock_task,
    received_count,
)
from aggregator_service.storage.schema import (
    ContributionRow,
    RoundRow,
    RoundStateRow,
    SnapshotRow,
    TaskRow,
    ViewRow,
)
from aggregator_service.storage.snapshots import SERVER_AUTHOR, add_snapshot, find_snapshot
from aggregator_service.storage.stages import awaited_message, count_of, prerequisite, scrub_stages
from aggregator_service.tasks.eligibility import able_members
from aggregator_service.tasks.ledger import survivors_digest
from aggregator_service.tasks.plans import plan_task, row_terms
from aggregator_service.tasks.tasks import agreed_digest
from protocols.messages import Schedule
from protocols.messages.stages import RoundState, opening_state
from protocols.sums.masked.plan import MaskedPlan

__all__ = [
    "LostRaceError",
    "close_task",
    "fail_round",
    "enforce_min_difference",
    "missing_clients",
    "move",
    "open_round",
    "record_fold",
    "record_release",
    "stop_collecting",
]

_LOG = logging.getLogger(__name__)
_BATCH: Final = 500
_REASON: Final = 400  # what the column holds
_UNSYNCHRONISED: Final = {"synchronize_session": False}


class LostRaceError(Exception):
    """Another engine, or a closed task, moved the round meanwhile: the outcome at hand must be thrown away."""


def open_round(session: Session, task: TaskRow, now: float) -> RoundRow | None:
    """The next round, when nothing stands in its way; None otherwise."""
    previous = last_round(session, task.id)
    if task.state != "open" or (previous is not None and previous.state in ACTIVE):
        return None
    schedule = Schedule.model_validate(task.schedule)
    number, sum_index = 1 if previous is None else previous.number + 1, task.completed_rounds + 1
    plan = plan_task(row_terms(task), sum_index)
    completed = last_completed(session, task.id)
    if plan.recipe.frozen_cohort and completed is not None:
        clients = staying_cohort(session, completed)
    else:
        device_group = plan.recipe.device_group_of(sum_index)
        if not enough_members(
            schedule, able_members(session, task, plan.recipe.device_groups), device_group, previous is None
        ):
            return None
        clients = draw_cohort(session, task, schedule, device_group)
    if task.opened_by == "holder" and not _holder_is_up_to_date(session, task, completed):
        return None
    interactive = plan.mechanism.interactive
    round_ = RoundRow(
        task_id=task.id,
        number=number,
        state=opening_state(interactive).value,
        sum_index=sum_index,
        seed=plan.recipe.round_spec(task.seed, number, sum_index).seed,
        model_digest=agreed_digest(session, task, sum_index, completed) if interactive else None,
        confirms=isinstance(plan.sum_plan, MaskedPlan) and plan.sum_plan.mode == "semi-malicious",
        opened_at=now,
        deadline=now + (schedule.stage_seconds if interactive else schedule.collect_seconds),
        cohort=len(clients),
        folded=0,
        survivors=0,
    )
    session.add(round_)
    session.flush()
    session.add(RoundStateRow(round_id=round_.id, state=round_.state, entered_at=now))
    write_cohort(session, round_, clients)
    announce(session, task.id, "round")
    _LOG.info("round opened", extra=fields(task=task.id, round=number, cohort=len(clients)))
    return round_


def _holder_is_up_to_date(session: Session, task: TaskRow, completed: RoundRow | None) -> bool:
    """Members cannot open a public-key sum: they need the holder's snapshot of the last one before they train on."""
    return completed is None or find_snapshot(session, task.id, completed.number) is not None


def stop_collecting(session: Session, round_id: int, now: float) -> RoundRow:
    """Move a collecting round on when everybody delivered or its time is over; the round as it then is.

    For rounds of one stage; those with several are moved on by `rounds.masked`.
    """
    round_ = lock_round_exclusive(session, round_id)
    received = received_count(session, round_id)
    if round_.state != RoundState.COLLECTING or (received < round_.cohort and now < round_.deadline):
        return round_
    count_dropouts(session, round_.state, round_.cohort - received)
    task = session.get_one(TaskRow, round_.task_id)
    floor = Schedule.model_validate(task.schedule).min_clients
    if received < floor:
        reason = f"{received} of {round_.cohort} clients delivered in time, and {floor} are needed"
        fail_round(session, task, round_, RoundEvent.DEADLINE_MISSED, reason, now)
    elif enforce_min_difference(session, task, round_, now):
        move(session, round_, RoundEvent.ALL_RECEIVED if received == round_.cohort else RoundEvent.DEADLINE_MET, now)
        announce(session, task.id, "round")
    return round_


def enforce_min_difference(session: Session, task: TaskRow, round_: RoundRow, now: float) -> bool:
    """Whether the survivors of a round may be summed up beside what was released before.

    Otherwise the round has failed, and the job goes on over fewer, or is over when they are below the floor. No client
    is at fault and each time the job gets smaller, so this does not count towards `max_failed_rounds`.
    """
    alike = retire_similar(session, task, round_)
    if alike is None:
        return True
    reason, floor = alike.reason, Schedule.model_validate(task.schedule).min_clients
    if alike.stay < floor:
        reason += f"; the job is over, since it needs at least {floor}"
        task.state = "failed"
    fail_round(session, task, round_, RoundEvent.TOO_SIMILAR, reason, now, counts=False)
    return False


def record_fold(
    session: Session, round_id: int, batch: Sequence[str], previous: BlobRef | None, folded: BlobRef
) -> None:
    """Mark the batch folded and swing the pointer, in one transaction: this is what makes the fold exactly once.

    Raises `LostRaceError` unless every contribution of the batch was still unfolded and the pointer still stood
    where the fold began.
    """
    round_ = lock_round_exclusive(session, round_id)
    if round_.state not in ACTIVE or round_.partial_key != (previous.key if previous else None):
        raise LostRaceError
    for start in range(0, len(batch), _BATCH):
        some = batch[start : start + _BATCH]
        mark = (
            update(ContributionRow)
            .where(ContributionRow.round_id == round_id, ContributionRow.client_id.in_(some))
            .where(ContributionRow.folded.is_(False))
            .values(folded=True)
        )
        if changed_rows(session, mark) != len(some):
            raise LostRaceError
    round_.state = next_state(round_.state, RoundEvent.BATCH_FOLDED).value
    discard(session, round_.partial_key)
    round_.partial_key, round_.partial_digest = folded.key, folded.digest
    round_.folded += len(batch)


def record_release(session: Session, round_id: int, partial: BlobRef, released: Released, now: float) -> RoundRow:
    """Publish the aggregate (once, unchangeable from here on), and the model state where the server has one."""
    round_ = lock_round_exclusive(session, round_id)
    if round_.state not in (RoundState.FOLDING, RoundState.UNMASKING) or round_.partial_key != partial.key:
        raise LostRaceError
    task = session.get_one(TaskRow, round_.task_id)
    schedule = Schedule.model_validate(task.schedule)
    if round_.folded < schedule.min_clients or round_.folded != received_count(session, round_id):
        raise LostRaceError  # never publish a sum below the floor, nor one that misses an acknowledged contribution
    count_dropouts(session, round_.state, missing_clients(session, round_))
    count_outcome(session, RoundEvent.RELEASED.name.lower())
    move(session, round_, RoundEvent.RELEASED, now)
    round_.survivors = round_.folded
    round_.aggregate_key, round_.aggregate_digest = released.aggregate.key, released.aggregate.digest
    round_.aggregate_bytes = released.aggregate_bytes
    round_.released_at, round_.survivors_digest = now, survivors_digest(session, round_.id)
    if released.state is not None:
        _keep_state(session, round_, released.state, released.views)
    _scrub(session, round_)
    task.completed_rounds += 1
    task.failures_in_a_row = 0
    round_.report = released.report
    if released.is_done or task.completed_rounds >= schedule.rounds:
        task.state = "complete"
    session.flush()
    announce(session, task.id, "round", "snapshot")
    return round_


def _keep_state(session: Session, round_: RoundRow, state: StoredState, views: Sequence[StoredState]) -> None:
    """The server's own snapshot, and what each group downloads of it where there are several."""
    of_it = {"task_id": round_.task_id, "round_number": round_.number}
    snapshot = SnapshotRow(author=SERVER_AUTHOR, **of_it, **vars(state))
    add_snapshot(
        session,
        snapshot,
        [ViewRow(device_group=device_group, **of_it, **vars(view)) for device_group, view in enumerate(views)],
    )


def fail_round(
    session: Session,
    task: TaskRow,
    round_: RoundRow,
    event: RoundEvent,
    reason: str,
    now: float,
    *,
    counts: bool = True,
) -> None:
    """End a round without releasing anything; its contributions and partial are scrubbed.

    `counts`: towards the failures in a row that end the task.
    """
    move(session, round_, event, now)
    count_outcome(session, event.name.lower())
    round_.failure = reason if len(reason) <= _REASON else f"{reason[: _REASON - 4]} ..."
    _scrub(session, round_)
    task.failed_rounds += 1
    task.failures_in_a_row += counts
    if task.state == "open" and task.failures_in_a_row >= Schedule.model_validate(task.schedule).max_failed_rounds:
        task.state = "failed"
    session.flush()
    announce(session, task.id, "round")
    _LOG.warning("round failed", extra=fields(task=task.id, round=round_.number, event=event.value))


def close_task(session: Session, task: TaskRow, now: float) -> None:
    """End a task for good; a round under way fails. Nothing happens when the task is over already."""
    task = lock_task(session, task.id)
    if task.state != "open":
        return
    task.state = "closed"
    newest = last_round(session, task.id)
    if newest is not None and newest.state in ACTIVE:
        fail_round(
            session, task, lock_round_exclusive(session, newest.id), RoundEvent.TASK_CLOSED, "the task was closed", now
        )
    session.flush()
    announce(session, task.id, "round", "members", "snapshot")
    _LOG.info("task closed", extra=fields(task=task.id))


def missing_clients(session: Session, round_: RoundRow) -> int:
    """How many clients have not delivered yet what the current stage waits for."""
    taken, asked = awaited_message(round_), prerequisite(round_)
    if taken is None or asked is None:
        return 0
    return count_of(session, round_.id, asked) - count_of(session, round_.id, taken)


def move(session: Session, round_: RoundRow, event: RoundEvent, now: float) -> RoundStateRow:
    """The round's next state, as the table has it, and when it was entered."""
    round_.state = next_state(round_.state, event).value
    phase = RoundStateRow(round_id=round_.id, state=round_.state, entered_at=now, handed_out=0)
    session.add(phase)
    return phase


def _scrub(session: Session, round_: RoundRow) -> None:
    """Let go of every byte that clients sent and of the partial; the rows stay, so that retries are still answered."""
    held = ContributionRow.round_id == round_.id
    for key in session.scalars(select(ContributionRow.blob_key).where(held, ContributionRow.blob_key.is_not(None))):
        discard(session, key)
    session.execute(update(ContributionRow).where(held).values(blob_key=None), execution_options=_UNSYNCHRONISED)
    round_.unfinished = drop_chunks(session, round_.id)
    discard(session, round_.partial_key)
    round_.partial_key = round_.partial_digest = None
    scrub_stages(session, round_.id)
