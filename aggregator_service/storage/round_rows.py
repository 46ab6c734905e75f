"""Queries and locks of rounds, cohorts, contributions, refusals and snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import BindParameter, ColumnElement, Row, Select, and_, bindparam, func, or_, select, text
from sqlalchemy.orm import Session

from aggregator_service.round_states import ACTIVE, ORDER
from aggregator_service.storage.database import discard
from aggregator_service.storage.schema import (
    CohortRow,
    ContributionRow,
    DisputeRow,
    RefusalRow,
    RoundRow,
    RoundStateRow,
    SnapshotRow,
    StageMessageRow,
    TaskRow,
    ViewRow,
)
from aggregator_service.storage.stage_rows import awaited_message, clients_with, prerequisite
from protocols.messages.stages import RoundState


def lock_name(session: Session, name: str) -> None:
    """Lock `name` until the transaction ends. SQLite needs no lock: it has only one writer."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name})


_MAX_REASON: Final = 400
"""Characters that the columns `RoundRow.failure` and `TaskRow.ended` hold."""


def fit_reason(reason: str) -> str:
    """Return why a round or a task ended, cut to what its column holds."""
    return reason if len(reason) <= _MAX_REASON else f"{reason[: _MAX_REASON - 4]} ..."


# Frequent statements are built once: building one takes as long as executing it.
_TASK: Final[BindParameter[str]] = bindparam("task")
_ROUND: Final[BindParameter[int]] = bindparam("round")
_CLIENT: Final[BindParameter[str]] = bindparam("client")
_REFRESH: Final = {"populate_existing": True}
_FIND_ROUND: Final = select(RoundRow).where(RoundRow.task_id == _TASK, RoundRow.number == bindparam("number"))
_LAST_ROUND: Final = select(RoundRow).where(RoundRow.task_id == _TASK).order_by(RoundRow.number.desc()).limit(1)
_TASK_OF_ROUND: Final = select(RoundRow.task_id).where(RoundRow.id == _ROUND).scalar_subquery()
_ONE_TASK: Final = select(TaskRow).with_for_update(key_share=True).execution_options(**_REFRESH)
_LOCK_TASK: Final = _ONE_TASK.where(TaskRow.id == _TASK)
_LOCK_ITS_TASK: Final = _ONE_TASK.where(TaskRow.id == _TASK_OF_ROUND)
_ONE_ROUND: Final = select(RoundRow).where(RoundRow.id == _ROUND).execution_options(**_REFRESH)
_LOCK_ROUND: Final = _ONE_ROUND.with_for_update(key_share=True)
_SHARE_ROUND: Final = _ONE_ROUND.with_for_update(read=True)
_LOCK_PLACE: Final = (
    select(CohortRow.client_id).where(CohortRow.round_id == _ROUND, CohortRow.client_id == _CLIENT).with_for_update()
)
_IS_UNFOLDED: Final = ContributionRow.round_id == _ROUND, ContributionRow.folded.is_(False)
_UNFOLDED: Final = (
    select(
        ContributionRow.client_id,
        ContributionRow.blob_key,
        ContributionRow.blob_start,
        ContributionRow.digest,
        ContributionRow.tag,
    )
    .where(*_IS_UNFOLDED)
    .order_by(ContributionRow.stored_at, ContributionRow.client_id)
    .limit(bindparam("most"))
)
_UNFOLDED_COUNT: Final = select(func.count()).select_from(ContributionRow).where(*_IS_UNFOLDED)


def _entered(state: RoundState) -> ColumnElement[bool]:
    return RoundRow.id.in_(select(RoundStateRow.round_id).where(RoundStateRow.state == state))


_FIXED_SURVIVORS: Final = or_(_entered(RoundState.UNMASKING), and_(RoundRow.confirms, _entered(RoundState.CONFIRMING)))


def find_round(session: Session, task_id: str, number: int) -> RoundRow | None:
    """Return round `number` of a task; None when there is no such round."""
    return session.scalars(_FIND_ROUND, {"task": task_id, "number": number}).one_or_none()


def lock_task(session: Session, task_id: str) -> TaskRow:
    """Lock a task against other writers until the transaction ends; return its current row.

    Lock rows in the order task, round, client, to avoid deadlocks. (SQLite has only one writer.)
    """
    return session.scalars(_LOCK_TASK, {"task": task_id}).one()


def lock_round_exclusive(session: Session, round_id: int) -> tuple[TaskRow, RoundRow]:
    """Lock a round against other writers and clients' messages until the transaction ends.

    Returns the current rows of its task and of itself. The task is locked too: a transaction that moves a round also
    changes the task's counters and version.
    """
    task = session.scalars(_LOCK_ITS_TASK, {"round": round_id}).one()
    return task, session.scalars(_LOCK_ROUND, {"round": round_id}).one()


def lock_round_shared(session: Session, round_id: int, client_id: str) -> RoundRow:
    """Lock a round in share mode for a message of one client of its cohort; return its current row.

    Until the transaction ends the round does not change state, and another request of this client waits. Other clients
    can hold the lock at the same time.
    """
    round_ = session.scalars(_SHARE_ROUND, {"round": round_id}).one()
    session.execute(_LOCK_PLACE, {"round": round_id, "client": client_id})
    return round_


def last_round(session: Session, task_id: str) -> RoundRow | None:
    """Return the newest round of a task; None when it has none."""
    return session.scalars(_LAST_ROUND, {"task": task_id}).one_or_none()


def last_completed(session: Session, task_id: str) -> RoundRow | None:
    """Return the newest round that released an aggregate; None when there is none."""
    query = select(RoundRow).where(RoundRow.task_id == task_id, RoundRow.state == "complete")
    return session.scalars(query.order_by(RoundRow.number.desc()).limit(1)).one_or_none()


def last_over_same_data(session: Session, task_id: str, data: str | None, *, summed: bool) -> RoundRow | None:
    """Return the newest round of a task whose sum was of class `repeated` over `data`; None when there is none.

    summed: one for which `summed_clause` holds; False: one in which clients were asked to contribute.
    """
    query = select(RoundRow).where(
        RoundRow.task_id == task_id, RoundRow.sum_rule == "repeated", RoundRow.sum_data == data
    )
    query = query.where(summed_clause() if summed else _entered(RoundState.COLLECTING))
    return session.scalars(query.order_by(RoundRow.number.desc()).limit(1)).one_or_none()


def has_fixed_survivors(session: Session, round_: RoundRow) -> bool:
    """Whether clients, or members of the committee, may have agreed to the round's set of survivors.

    They agree to no other set for the same data, whether the sum is released or not. A masked round fixes its set when
    it hands it out. In a one-shot round a signature binds nobody, but the summed shares do.
    """
    query = select(RoundRow.id).where(RoundRow.id == round_.id, _FIXED_SURVIVORS)
    return session.execute(query).first() is not None


def summed_clause() -> ColumnElement[bool]:
    """Return the condition for rounds whose contributions count as summed: released, or failed with a fixed set."""
    failed = and_(RoundRow.state == RoundState.FAILED, _FIXED_SURVIVORS)
    return or_(RoundRow.state == RoundState.COMPLETE, failed)


def list_rounds(session: Session, task_id: str, after: int, limit: int, state: str | None) -> Sequence[RoundRow]:
    """Return at most `limit` rounds with a number above `after`, by number; only those in `state` if it is given."""
    query = select(RoundRow).where(RoundRow.task_id == task_id, RoundRow.number > after)
    if state is not None:
        query = query.where(RoundRow.state == state)
    return session.scalars(query.order_by(RoundRow.number).limit(limit)).all()


def entered_states(session: Session, *round_ids: int) -> list[RoundStateRow]:
    """Return the rows of the states that rounds were in, in order. The last one of a round is its current state."""
    rows = session.scalars(select(RoundStateRow).where(RoundStateRow.round_id.in_(round_ids)))
    return sorted(rows, key=lambda row: (row.entered_at, ORDER.index(row.state)))


def cohort_clients(session: Session, round_id: int) -> list[str]:
    """Return the client ids of a cohort, sorted."""
    query = select(CohortRow.client_id).where(CohortRow.round_id == round_id).order_by(CohortRow.client_id)
    return list(session.scalars(query))


def find_contribution(session: Session, round_id: int, client_id: str) -> ContributionRow | None:
    """Return the row of a client's contribution; None when there is none. Its blob may be deleted already."""
    return session.get(ContributionRow, (round_id, client_id))


def unfolded(
    session: Session, round_id: int, limit: int
) -> Sequence[Row[str, str | None, int | None, str, bytes | None]]:
    """Return client id, key and start of the body, digest and tag of at most `limit` contributions not folded.

    The oldest first.
    """
    return session.execute(_UNFOLDED, {"round": round_id, "most": limit}).all()


def waiting_contributions() -> Select[int]:
    """Return the query of the number of contributions that the active rounds have not folded."""
    query = select(func.count()).select_from(ContributionRow).join(RoundRow)
    return query.where(RoundRow.state.in_(ACTIVE), ContributionRow.folded.is_(False))


def unfolded_count(session: Session, round_id: int) -> int:
    """Number of contributions that are not folded."""
    return session.execute(_UNFOLDED_COUNT, {"round": round_id}).scalar_one()


def unfolded_among(session: Session, round_id: int, clients: Sequence[str]) -> int:
    """Number of these clients' contributions that are stored and not folded."""
    query = select(func.count()).select_from(ContributionRow).where(*_IS_UNFOLDED)
    some = query.where(ContributionRow.client_id.in_(clients))
    return session.execute(some, {"round": round_id}).scalar_one()


def newest_snapshot(session: Session, task_id: str, at_least: int = 0, before: int | None = None) -> SnapshotRow | None:
    """Return the newest snapshot whose bytes are kept, of round `at_least` or later and before round `before`.

    None when there is none.
    """
    query = select(SnapshotRow).where(
        SnapshotRow.task_id == task_id, SnapshotRow.blob_key.is_not(None), SnapshotRow.round_number >= at_least
    )
    if before is not None:
        query = query.where(SnapshotRow.round_number < before)
    return session.scalars(query.order_by(SnapshotRow.round_number.desc()).limit(1)).one_or_none()


def add_refusal(session: Session, round_id: int, client_id: str, reason: str) -> bool:
    """Store a client's refusal of a round; return whether it is its first. The first reason stays."""
    if session.get(RefusalRow, (round_id, client_id)) is not None:
        return False
    session.add(RefusalRow(round_id=round_id, client_id=client_id, reason=reason))
    session.flush()
    return True


def refusals_by_reason(session: Session, round_ids: Iterable[int]) -> dict[int, dict[str, int]]:
    """Return the number of clients that refused each round, by reason; rounds without refusals are left out."""
    count = select(RefusalRow.round_id, RefusalRow.reason, func.count()).where(RefusalRow.round_id.in_(list(round_ids)))
    found: dict[int, dict[str, int]] = {}
    grouped = count.group_by(RefusalRow.round_id, RefusalRow.reason).order_by(RefusalRow.reason)
    for round_id, reason, clients in session.execute(grouped):
        found.setdefault(round_id, {})[reason] = clients
    return found


def message_counts(session: Session, round_ids: Iterable[int]) -> dict[int, dict[str, tuple[int, int]]]:
    """Return clients and bytes by message of the rounds that have any; a message is `contribute`, or of a stage."""
    ids, found = list(round_ids), dict[int, dict[str, tuple[int, int]]]()
    whole = select(ContributionRow.round_id, func.count(), func.sum(ContributionRow.bytes))
    whole = whole.where(ContributionRow.round_id.in_(ids)).group_by(ContributionRow.round_id)
    for round_id, clients, size in session.execute(whole):
        found.setdefault(round_id, {})["contribute"] = (clients, int(size))
    row = StageMessageRow
    staged = select(row.round_id, row.stage, func.count(), func.sum(row.length)).where(row.round_id.in_(ids))
    for round_id, stage, clients, size in session.execute(staged.group_by(row.round_id, row.stage)):
        found.setdefault(round_id, {})[stage] = (clients, int(size))
    return found


def refused_now(session: Session, round_: RoundRow) -> int:
    """Number of clients that the current stage waits for and that send no message.

    They have refused the round; or they are members of the committee that cannot open a share of the proposed set.
    """
    awaited, required = awaited_message(round_), prerequisite(round_)
    if awaited is None or required is None:
        return 0
    if round_.committee and awaited == "confirm":
        who = DisputeRow.reporter
        query = select(func.count(who.distinct())).where(DisputeRow.round_id == round_.id)
        query = query.where(DisputeRow.owner.in_(clients_with(round_.id, "contribute")))
    else:
        who = RefusalRow.client_id
        query = select(func.count(who)).where(RefusalRow.round_id == round_.id)
    query = query.where(who.in_(clients_with(round_.id, required)), who.not_in(clients_with(round_.id, awaited)))
    return session.execute(query).scalar_one()


KEPT_SNAPSHOTS: Final = 2
"""Snapshots of a task whose bytes are kept."""
SERVER_AUTHOR: Final = "server"
"""Author of the snapshots that the server computes."""


def find_snapshot(session: Session, task_id: str, number: int) -> SnapshotRow | None:
    """Return the snapshot of a round, None without one. Its `blob_key` is None when its bytes are no longer kept."""
    return session.get(SnapshotRow, (task_id, number))


def seen_by(session: Session, snapshot: SnapshotRow, device_group: int | None) -> SnapshotRow | ViewRow:
    """Return what the members of `device_group` download of a snapshot: their view of it.

    Returns the snapshot itself when it has no views, or when `device_group` is None.
    """
    key = snapshot.task_id, snapshot.round_number, device_group
    return (None if device_group is None else session.get(ViewRow, key)) or snapshot


def add_snapshot(
    session: Session, snapshot: SnapshotRow, views: Sequence[ViewRow] = (), best: int | None = None
) -> None:
    """Add a snapshot with the views of the device groups; after the commit, delete the bytes of older ones.

    The newest `KEPT_SNAPSHOTS` are kept, that of round `best`, and that of round 0, from which clients replay.
    """
    session.add(snapshot)
    session.flush()
    session.add_all(views)
    session.flush()
    kept = select(SnapshotRow).where(SnapshotRow.task_id == snapshot.task_id, SnapshotRow.blob_key.is_not(None))
    for old in session.scalars(kept.order_by(SnapshotRow.round_number.desc()).offset(KEPT_SNAPSHOTS)).all():
        if old.round_number in (0, best):
            continue
        its_views = ViewRow.task_id == old.task_id, ViewRow.round_number == old.round_number
        for row in (old, *session.scalars(select(ViewRow).where(*its_views))):
            discard(session, row.blob_key)
            row.blob_key = None
