"""Delete what nobody needs of a task's older rounds: their aggregates, and the rows of their members.

Of a round that is older than the newest `keep` ones:

- Its aggregate is deleted, unless a client may need it; its digest and length stay.
- The rows of its members (cohort, contributions, messages, refusals, disputes) are deleted. Their counts stay in
  `RoundRow.tally`, and those of each member in its own row.
- Contributions to a sum of class `once` or `repeated` stay while no later sum has the same survivors: guards compare
  them (`rounds.cohorts`). So they do in a task with a privacy block: a member has few of them, and a device that
  lost its records counts there what it has spent.
- The row of its snapshot is deleted, once its bytes are.
- Its own row stays, with the digests of survivors, aggregate and model, and when it entered each state: the ledger of
  released sums, and what explains a round that failed. That is .5 to 1 kB, and `Schedule.rounds` bounds their number.

A client that was away absorbs the aggregates that it missed, or downloads the newest snapshot that it may use and
absorbs those after it, whichever is less to download (`client_sdk.model.sync`). So aggregates stay from the oldest kept
snapshot on, all of them while there is none, and as many as a client would rather download than a snapshot.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from sqlalchemy import Select, delete, exists, func, select, update
from sqlalchemy.orm import Session, aliased

from aggregator_service.round_states import TERMINAL
from aggregator_service.storage.database import changed_rows, discard
from aggregator_service.storage.round_rows import last_round, lock_task, message_counts, refusals_by_reason
from aggregator_service.storage.schema import (
    ClientRow,
    CohortRow,
    ContributionRow,
    DisputeRow,
    RefusalRow,
    RoundRow,
    SnapshotRow,
    StageMessageRow,
    TaskRow,
    ViewRow,
)
from protocols.messages.stages import RoundState

_REQUEST_COST: Final = 16_384
"""Bytes that clients count a request as when they choose what to download (`client_sdk.model.sync`)."""
_SPARE: Final = 3
"""Aggregates beyond that number: a client takes a moment between its choice and its downloads."""
_ROUNDS_AT_ONCE: Final = 50


def is_due(session: Session, task: TaskRow, keep: int) -> bool:
    """Return whether a task has rounds to tidy up; `keep` as in `tidy_task`. Only reads."""
    newest = last_round(session, task.id)
    return newest is not None and newest.number - keep > task.tidied_upto


def tidy_task(session: Session, task_id: str, keep: int) -> bool:
    """Delete what is due of a task's older rounds; return whether more is left to do.

    keep: number of the newest rounds of which everything is kept. At most 50 rounds are tidied in one transaction.
    """
    task = lock_task(session, task_id)
    newest = last_round(session, task_id)
    if newest is None:
        return False
    _delete_aggregates(session, task, keep)
    edge = newest.number - keep
    due = select(RoundRow).where(RoundRow.task_id == task_id, RoundRow.state.in_(TERMINAL))
    due = due.where(RoundRow.number > task.tidied_upto, RoundRow.number <= edge).order_by(RoundRow.number)
    rounds = list(session.scalars(due.limit(_ROUNDS_AT_ONCE)))
    if not rounds:
        return False
    ids = [round_.id for round_ in rounds]
    counts, refusals = message_counts(session, ids), refusals_by_reason(session, ids)
    for round_ in rounds:
        round_.tally = {"parts": counts.get(round_.id, {}), "refusals": refusals.get(round_.id, {})}
    session.flush()
    trained = [round_.id for round_ in rounds if round_.sum_data is None]
    judged = [round_.id for round_ in rounds if round_.sum_data is not None]
    for row in (CohortRow, RefusalRow, DisputeRow):
        changed_rows(session, delete(row).where(row.round_id.in_(ids)))
    if task.privacy is None:  # a device that lost its records counts there what it has spent
        _delete_contributions(session, trained)
    _delete_messages(session, trained)
    # a frozen cohort may be the roster of a round that failed: its messages stay until a sum was released
    released = [round_.id for round_ in rounds if round_.id in judged and round_.state == RoundState.COMPLETE]
    _delete_messages(session, released)
    _delete_contributions(session, list(session.scalars(_repeated_later(judged))))
    task.tidied_upto = rounds[-1].number
    for old in (ViewRow, SnapshotRow):
        of_older = old.task_id == task_id, old.round_number <= task.tidied_upto
        changed_rows(session, delete(old).where(*of_older, old.blob_key.is_(None)))
    session.flush()
    return len(rounds) == _ROUNDS_AT_ONCE


def _repeated_later(rounds: list[int]) -> Select[int]:
    """Select those of the rounds whose sum a later one repeats over the same survivors: sets that shrink are equal."""
    later = aliased(RoundRow)
    same = exists().where(
        later.task_id == RoundRow.task_id,
        later.sum_data == RoundRow.sum_data,
        later.sum_rule == RoundRow.sum_rule,
        later.survivors == RoundRow.survivors,
        later.state == RoundState.COMPLETE,
        later.number > RoundRow.number,
    )
    return select(RoundRow.id).where(
        RoundRow.id.in_(rounds), RoundRow.sum_rule == "repeated", RoundRow.state == RoundState.COMPLETE, same
    )


def _delete_contributions(session: Session, rounds: list[int]) -> None:
    """Delete the rows of contributions, after counting them for their members."""
    for round_id in rounds:
        of_round = ContributionRow.round_id == round_id
        counted = update(ClientRow).where(ClientRow.id == ContributionRow.client_id, of_round)
        newer = {"past_seen_at": ContributionRow.stored_at}  # rounds are tidied in their order
        added = {
            "past_contributions": ClientRow.past_contributions + 1,
            "past_bytes": ClientRow.past_bytes + ContributionRow.bytes,
        }
        changed_rows(session, counted.values(**added, **newer))
        changed_rows(session, delete(ContributionRow).where(of_round))


def _delete_messages(session: Session, rounds: list[int]) -> None:
    """Delete the rows of messages of stages, after counting their bytes for their members."""
    within = StageMessageRow.round_id.in_(rounds)
    sent = select(StageMessageRow.client_id, func.sum(StageMessageRow.length).label("bytes")).where(within)
    of_member = sent.group_by(StageMessageRow.client_id).subquery()
    counted = update(ClientRow).where(ClientRow.id == of_member.c.client_id)
    changed_rows(session, counted.values(past_bytes=ClientRow.past_bytes + of_member.c.bytes))
    changed_rows(session, delete(StageMessageRow).where(within))


def _delete_aggregates(session: Session, task: TaskRow, keep: int) -> None:
    """Delete the aggregates that no client needs any more; they are deleted after the commit."""
    complete = select(RoundRow).where(RoundRow.task_id == task.id, RoundRow.state == RoundState.COMPLETE)
    newest = session.scalars(complete.order_by(RoundRow.number.desc()).limit(1)).first()
    snapshots = select(SnapshotRow).where(SnapshotRow.task_id == task.id, SnapshotRow.blob_key.is_not(None))
    usable = [
        row
        for row in session.scalars(snapshots.order_by(SnapshotRow.round_number))
        if row.round_number not in (0, task.best_round)
    ]
    if newest is None or not usable:
        return
    length = (newest.aggregate_bytes or 0) + _REQUEST_COST
    preferred = ceil((max(row.bytes for row in usable) + _REQUEST_COST) / length) + _SPARE
    numbers = complete.with_only_columns(RoundRow.number).order_by(RoundRow.number.desc())
    oldest = session.scalars(numbers.offset(max(keep, preferred) - 1).limit(1)).first()
    if oldest is None:
        return
    edge = min(oldest, usable[0].round_number)
    old = complete.where(RoundRow.number < edge, RoundRow.aggregate_key.is_not(None))
    for round_ in session.scalars(old).all():
        discard(session, round_.aggregate_key)
        round_.aggregate_key = None
    session.flush()
