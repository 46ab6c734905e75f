"""The transactions that change an open round. The transition table (`round_states`) checks each change of state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from aggregator_service.compute.jobs import BlobRef, Released, StoredState
from aggregator_service.logs import fields
from aggregator_service.round_states import ACTIVE, RoundEvent, next_state
from aggregator_service.rounds.cohorts import count_contributions, least_cohort
from aggregator_service.rounds.repeats import counts_as_failure
from aggregator_service.rounds.same_data import retire_if_too_similar
from aggregator_service.storage.bodies import delete_small_bodies, is_small
from aggregator_service.storage.database import (
    announce,
    changed_rows,
    count_dropouts,
    count_outcome,
    discard,
    in_batches,
)
from aggregator_service.storage.round_rows import (
    SERVER_AUTHOR,
    add_snapshot,
    fit_reason,
    lock_round_exclusive,
    refused_now,
)
from aggregator_service.storage.schema import ContributionRow, RoundRow, RoundStateRow, SnapshotRow, TaskRow, ViewRow
from aggregator_service.storage.stage_rows import (
    StagePart,
    awaited_message,
    clients_with,
    count_of,
    drop_chunks,
    prerequisite,
    scrub_stages,
)
from aggregator_service.tasks.plans import keeps_best, plan_round, round_spec
from aggregator_service.tasks.receipts import survivors_digest
from protocols.errors import ParameterError, ThresholdError
from protocols.layout import short_routes
from protocols.messages import Schedule
from protocols.messages.stages import RoundState
from protocols.recipes.evaluation_curve import BEST_ROUND

_LOG = logging.getLogger(__name__)

_ATTESTED: Final = 2
"""Completed rounds whose attestations are kept: clients ask for those of the newest one."""


class LostRaceError(Exception):
    """The round changed since the action began (another engine, a closed task): its result must be discarded."""


StageEnd = Callable[[Session, TaskRow, RoundRow, int, float], RoundEvent | None]
"""Ends a stage of a task's round, with the fewest clients that must be left, and the time; None: the round failed."""


class Stages(NamedTuple):
    """The stages of one kind of round."""

    ends: Mapping[str, StageEnd]
    """By state."""
    handed_out: Callable[[Session, TaskRow, RoundRow, RoundEvent], int]
    """Returns the bytes that clients fetch in the state after an event."""


def end_stage(session: Session, stages: Stages, round_id: int, now: float) -> RoundRow:
    """Move a round to its next state when its stage is over, or fail it; return the round.

    A round stays folding or unmasking until its release (`record_release`).
    """
    task, round_ = lock_round_exclusive(session, round_id)
    end = stages.ends.get(round_.state)
    if end is None or (now < round_.deadline and awaited_clients(session, round_)):
        return round_
    count_dropouts(session, round_.state, missing_clients(session, round_))
    schedule = Schedule.model_validate(task.schedule)
    try:
        event = end(session, task, round_, round_.cohort if round_.again else schedule.min_clients, now)
    except (ThresholdError, ParameterError) as error:
        fail_round(session, task, round_, RoundEvent.STAGE_MISSED, str(error), now)
        return round_
    if event is None:
        return round_  # the round has failed: few clients of a route, too similar survivors, shares that do not open
    entered = move(session, round_, event, now)
    entered.handed_out = stages.handed_out(session, task, round_, event)
    if round_.state == RoundState.FOLDING:
        announce(session, task.id, "folding")  # no client has to act: it would only poll once more
        return round_
    round_.deadline = now + (
        schedule.collect_seconds if round_.state == RoundState.COLLECTING else schedule.stage_seconds
    )
    announce(session, task.id, "round")
    _LOG.info("stage over", extra=fields(task=task.id, round=round_.number, event=event.value))
    return round_


def end_collecting(session: Session, task: TaskRow, round_: RoundRow, floor: int, now: float) -> RoundEvent | None:
    """End the only stage of a round that is neither masked nor one-shot: a `StageEnd`."""
    received = count_of(session, round_.id, "contribute")
    if received < floor:
        reason = f"{received} of {round_.cohort} clients contributed in time, but {floor} are needed"
        fail_round(session, task, round_, RoundEvent.DEADLINE_MISSED, reason, now)
        return None
    if not enforce_routes(session, task, round_, "contribute", RoundEvent.DEADLINE_MISSED, now):
        return None
    if not enforce_min_difference(session, task, round_, now):
        return None
    return RoundEvent.ALL_RECEIVED if received == round_.cohort else RoundEvent.DEADLINE_MET


PLAIN_STAGES: Final = Stages({RoundState.COLLECTING: end_collecting}, lambda *_: 0)


def enforce_routes(
    session: Session, task: TaskRow, round_: RoundRow, present: StagePart, failed: RoundEvent, now: float
) -> bool:
    """Return whether no part of a round's sum is of few clients (`protocols.layout`); otherwise fail the round.

    present: what the clients of the sum have done. failed: the event of the failure. It does not count towards
    `max_failed_rounds`: clients dropped out, and the next cohort draws other levels.
    """
    if not round_.levels:
        return True
    recipe, spec = plan_round(task, round_).recipe, round_spec(round_)
    floor = Schedule.model_validate(task.schedule).min_clients
    clients = session.scalars(clients_with(round_.id, present))
    short = short_routes((recipe.route(spec, client) for client in clients), floor)
    if short:
        reason = (
            f"{short[0]} clients are left that contribute to the same blocks of the sum, and {floor} are needed: "
            "nothing is released"
        )
        fail_round(session, task, round_, failed, reason, now, counts=False)
    return not short


def enforce_min_difference(session: Session, task: TaskRow, round_: RoundRow, now: float) -> bool:
    """Return whether a round's sum may be released beside the earlier ones; otherwise fail the round.

    The task then continues over fewer clients, or fails when fewer than `least_cohort` remain. Such a failure does not
    count towards `max_failed_rounds`: no client caused it, and the cohort gets smaller each time. A failure after which
    nobody leaves counts: of a sum that is too complex to judge, or over too few of a group of the first one.
    """
    similar = retire_if_too_similar(session, task, round_)
    if similar is None:
        return True
    reason, floor = similar.reason, least_cohort(session, task, plan_round(task, round_))
    # a sum of class `once` waits for new members, and a measurement is abandoned (`repeats`)
    if similar.remaining < floor and round_.sum_rule == "repeated" and round_.sum_data != "held-out":
        reason += f"; the task fails, since it needs at least {floor}"
        task.state = "failed"
    fail_round(session, task, round_, RoundEvent.TOO_SIMILAR, reason, now, counts=similar.counts)
    return False


def record_fold(
    session: Session, round_id: int, batch: Sequence[str], previous: BlobRef | None, folded: BlobRef
) -> None:
    """Mark the batch folded and replace the partial sum: in one transaction, so that each contribution counts once.

    Raises `LostRaceError` unless every contribution of the batch is still unfolded and `previous` is still the round's
    partial sum.
    """
    _, round_ = lock_round_exclusive(session, round_id)
    if round_.state not in ACTIVE or round_.partial_key != (previous.key if previous else None):
        raise LostRaceError
    for some in in_batches(batch):
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
    """Publish the aggregate, which never changes afterwards, and the model state where the server computes it.

    Ends the round as complete, and the task with the last round of its schedule, or when the release says so.

    Raises `LostRaceError` when the round changed since the release began.
    """
    task, round_ = lock_round_exclusive(session, round_id)
    if round_.state not in (RoundState.FOLDING, RoundState.UNMASKING) or round_.partial_key != partial.key:
        raise LostRaceError
    schedule = Schedule.model_validate(task.schedule)
    if round_.folded < schedule.min_clients or round_.folded != count_of(session, round_id, "contribute"):
        raise LostRaceError  # never publish a sum over too few clients, or without an acknowledged contribution
    count_dropouts(session, round_.state, missing_clients(session, round_))
    best = released.report.get(BEST_ROUND)
    if best is not None and task.evaluation is not None and 0 <= best < round_.number:
        task.best_round = int(best)
    if released.state is not None:
        round_.state_digest = released.state.digest
        _add_snapshot(session, task, round_, released.state, released.views)
    _delete_messages(session, round_)
    round_.survivors_digest = survivors_digest(session, round_.id)
    round_.survivors = round_.folded
    round_.aggregate_key, round_.aggregate_digest = released.aggregate.key, released.aggregate.digest
    round_.aggregate_bytes, round_.report = released.aggregate_bytes, released.report
    count_outcome(session, RoundEvent.RELEASED.name.lower())
    move(session, round_, RoundEvent.RELEASED, now)
    count_contributions(session, task, round_.id)
    round_.released_at = now
    _drop_old_attestations(session, round_)
    task.completed_rounds += 1
    task.failures_in_a_row = 0
    round_.next_size = list(released.next_size)
    if released.is_done or task.next_sum > schedule.rounds:
        task.state = "complete"
    session.flush()
    announce(session, task.id, "round", "snapshot")
    return round_


def _add_snapshot(
    session: Session, task: TaskRow, round_: RoundRow, state: StoredState, views: Sequence[StoredState]
) -> None:
    """Add the server's snapshot and, with several device groups, the view that each group downloads.

    The snapshot of the best measured model is kept where the task ends with that one.
    """
    key = {"task_id": round_.task_id, "round_number": round_.number}
    snapshot = SnapshotRow(author=SERVER_AUTHOR, **key, **vars(state))
    add_snapshot(
        session,
        snapshot,
        [ViewRow(device_group=device_group, **key, **vars(view)) for device_group, view in enumerate(views)],
        best=task.best_round if keeps_best(task) else None,
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
    """End a round as failed: nothing is released, its contributions and its partial sum are deleted.

    reason: for operators and clients. counts: whether it may count as one of the failures in a row that end a task; see
    `repeats.counts_as_failure`.
    """
    counts = counts and counts_as_failure(session, task, round_)
    move(session, round_, event, now)
    count_outcome(session, event.name.lower())
    round_.failure = fit_reason(reason)
    _delete_messages(session, round_)
    count_contributions(session, task, round_.id)
    _drop_attestations(session, round_.id)
    task.failed_rounds += 1
    task.failures_in_a_row += counts
    if task.state == "open" and task.failures_in_a_row >= Schedule.model_validate(task.schedule).max_failed_rounds:
        task.state = "failed"
    session.flush()
    announce(session, task.id, "round")
    stated = fields(task=task.id, round=round_.number, event=event.value, reason=reason)
    _LOG.warning("round failed", extra=stated)


def missing_clients(session: Session, round_: RoundRow) -> int:
    """Number of clients that have not sent the message that the round's state waits for."""
    awaited, required = awaited_message(round_), prerequisite(round_)
    if awaited is None or required is None:
        return 0
    return count_of(session, round_.id, required) - count_of(session, round_.id, awaited)


def awaited_clients(session: Session, round_: RoundRow) -> int:
    """Number of clients whose message the round's state waits for: those that refused the round will send none."""
    missing = missing_clients(session, round_)
    return missing - refused_now(session, round_) if missing else 0


def move(session: Session, round_: RoundRow, event: RoundEvent, now: float) -> RoundStateRow:
    """Move a round to the state that the transition table gives for `event`; return the row of that state.

    Raises what `next_state` raises for an event that the state does not allow.
    """
    round_.state = next_state(round_.state, event).value
    entered = RoundStateRow(round_id=round_.id, state=round_.state, entered_at=now, handed_out=0)
    session.add(entered)
    return entered


def _delete_messages(session: Session, round_: RoundRow) -> None:
    """Delete what clients sent, and the partial sum. The rows stay, so that retries still get their receipts.

    The round's own row changes last: each statement of the session writes the changes before it.
    """
    in_round = ContributionRow.round_id == round_.id
    delete_small_bodies(session, round_.id)
    keys = select(ContributionRow.blob_key).where(in_round, ContributionRow.blob_key.is_not(None)).distinct()
    for key in session.scalars(keys):
        if key is not None and not is_small(key):
            discard(session, key)
    nothing = dict.fromkeys(("blob_key", "blob_start", "tag", "statement"))
    changed_rows(session, update(ContributionRow).where(in_round).values(nothing))
    if round_.model_digest is not None:  # an interactive round
        scrub_stages(session, round_.id)
    round_.unfinished = drop_chunks(session, round_.id)
    discard(session, round_.partial_key)
    round_.partial_key = round_.partial_digest = None


def _drop_old_attestations(session: Session, round_: RoundRow) -> None:
    """Delete the attestations of the completed round that this one displaces from the newest ones."""
    if round_.aggregate_chain is None:
        return
    older = select(RoundRow.id).where(RoundRow.task_id == round_.task_id, RoundRow.state == "complete")
    older = older.where(RoundRow.number < round_.number).order_by(RoundRow.number.desc()).offset(_ATTESTED - 1).limit(1)
    found = session.scalars(older).one_or_none()
    if found is not None:
        _drop_attestations(session, found)


def _drop_attestations(session: Session, round_id: int) -> None:
    """Delete the attestations of a round."""
    changed_rows(session, update(ContributionRow).where(ContributionRow.round_id == round_id).values(attestation=None))
