"""Rounds, cohorts and contributions in the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import BindParameter, bindparam, func, select
from sqlalchemy.orm import Session

from aggregator_service.round_states import ORDER
from aggregator_service.storage.locks import hold_alone
from aggregator_service.storage.schema import CohortRow, ContributionRow, RoundRow, RoundStateRow, SnapshotRow, TaskRow
from protocols.messages.stages import RoundState

__all__ = [
    "cohort_clients",
    "find_contribution",
    "find_round",
    "hold_data_set",
    "lock_round_shared",
    "in_cohort",
    "last_completed",
    "last_round",
    "list_completed",
    "list_judged",
    "list_rounds",
    "lock_round_exclusive",
    "lock_task",
    "newest_snapshot",
    "entered_states",
    "received_count",
    "unfolded",
    "unfolded_count",
]

# What each request and each step of the engine asks is put together once: building it costs as much as running it.
_TASK: Final[BindParameter[str]] = bindparam("task")
_ROUND: Final[BindParameter[int]] = bindparam("round")
_CLIENT: Final[BindParameter[str]] = bindparam("client")
_ANEW: Final = {"populate_existing": True}
_FIND_ROUND: Final = select(RoundRow).where(RoundRow.task_id == _TASK, RoundRow.number == bindparam("number"))
_LAST_ROUND: Final = select(RoundRow).where(RoundRow.task_id == _TASK).order_by(RoundRow.number.desc()).limit(1)
_TASK_OF_ROUND: Final = select(RoundRow.task_id).where(RoundRow.id == _ROUND)
_LOCK_TASK: Final = (
    select(TaskRow).where(TaskRow.id == _TASK).with_for_update(key_share=True).execution_options(**_ANEW)
)
_ONE_ROUND: Final = select(RoundRow).where(RoundRow.id == _ROUND).execution_options(**_ANEW)
_LOCK_ROUND: Final = _ONE_ROUND.with_for_update(key_share=True)
_HOLD_ROUND: Final = _ONE_ROUND.with_for_update(read=True)
_HOLD_PLACE: Final = (
    select(CohortRow.client_id).where(CohortRow.round_id == _ROUND, CohortRow.client_id == _CLIENT).with_for_update()
)
_RECEIVED: Final = select(func.count()).select_from(ContributionRow).where(ContributionRow.round_id == _ROUND)
_LEFT: Final = ContributionRow.round_id == _ROUND, ContributionRow.folded.is_(False)
_UNFOLDED: Final = (
    select(ContributionRow.client_id, ContributionRow.blob_key, ContributionRow.digest)
    .where(*_LEFT)
    .order_by(ContributionRow.stored_at, ContributionRow.client_id)
    .limit(bindparam("most"))
)
_UNFOLDED_COUNT: Final = select(func.count()).select_from(ContributionRow).where(*_LEFT)


def find_round(session: Session, task_id: str, number: int) -> RoundRow | None:
    """Round `number` of a task."""
    return session.scalars(_FIND_ROUND, {"task": task_id, "number": number}).one_or_none()


def lock_task(session: Session, task_id: str) -> TaskRow:
    """A task as it is now, held against other writers until the transaction ends (SQLite has only one anyway).

    Rows are locked in the order task, round, client: whoever keeps to it deadlocks with nobody.
    """
    return session.scalars(_LOCK_TASK, {"task": task_id}).one()


def lock_round_exclusive(session: Session, round_id: int) -> RoundRow:
    """A round as it is now, held against other writers, and against clients' messages, until the transaction ends.

    Its task is held too: what moves a round counts it there, and wakes those who wait.
    """
    lock_task(session, session.scalars(_TASK_OF_ROUND, {"round": round_id}).one())
    return session.scalars(_LOCK_ROUND, {"round": round_id}).one()


def lock_round_shared(session: Session, round_id: int, client_id: str) -> RoundRow:
    """A round as it is now, that cannot move on until the transaction ends: for a message of one of its cohort.

    Other clients may hold it at the same time; another request of this client waits.
    """
    round_ = session.scalars(_HOLD_ROUND, {"round": round_id}).one()
    session.execute(_HOLD_PLACE, {"round": round_id, "client": client_id})
    return round_


def last_round(session: Session, task_id: str) -> RoundRow | None:
    """The newest round of a task."""
    return session.scalars(_LAST_ROUND, {"task": task_id}).one_or_none()


def last_completed(session: Session, task_id: str) -> RoundRow | None:
    """The newest round that released an aggregate."""
    query = select(RoundRow).where(RoundRow.task_id == task_id, RoundRow.state == "complete")
    return session.scalars(query.order_by(RoundRow.number.desc()).limit(1)).one_or_none()


def list_completed(session: Session, task_id: str) -> Sequence[RoundRow]:
    """Every round that released an aggregate, in order."""
    query = select(RoundRow).where(RoundRow.task_id == task_id, RoundRow.state == "complete")
    return session.scalars(query.order_by(RoundRow.number)).all()


def list_judged(session: Session, task_id: str) -> Sequence[RoundRow]:
    """Rounds whose survivors are known and whose sum was released, or is about to be, one for each set of survivors.

    For jobs with a frozen cohort: their sets only shrink, so that the number of survivors tells them apart.
    """
    settled = (RoundState.FOLDING, RoundState.CONFIRMING, RoundState.UNMASKING, RoundState.COMPLETE)
    query = select(RoundRow).where(RoundRow.task_id == task_id, RoundRow.state.in_(settled)).order_by(RoundRow.number)
    rows = session.scalars(query).all()
    return list({row.survivors if row.state == RoundState.COMPLETE else -row.id: row for row in rows}.values())


def hold_data_set(session: Session, label: str) -> None:
    """Be alone with the jobs of one label until the transaction ends."""
    hold_alone(session, f"data_set {label}")


def list_rounds(session: Session, task_id: str, after: int, limit: int, state: str | None) -> Sequence[RoundRow]:
    """Rounds numbered over `after`, in order."""
    query = select(RoundRow).where(RoundRow.task_id == task_id, RoundRow.number > after)
    if state is not None:
        query = query.where(RoundRow.state == state)
    return session.scalars(query.order_by(RoundRow.number).limit(limit)).all()


def entered_states(session: Session, round_id: int) -> list[RoundStateRow]:
    """The states that a round has been in, in order; the last one is that it is in."""
    rows = session.scalars(select(RoundStateRow).where(RoundStateRow.round_id == round_id))
    return sorted(rows, key=lambda row: (row.entered_at, ORDER.index(row.state)))


def cohort_clients(session: Session, round_id: int) -> list[str]:
    """Client ids of a cohort, sorted."""
    query = select(CohortRow.client_id).where(CohortRow.round_id == round_id).order_by(CohortRow.client_id)
    return list(session.scalars(query))


def in_cohort(session: Session, round_id: int, client_id: str) -> bool:
    """Whether a client is asked in this round."""
    return session.get(CohortRow, (round_id, client_id)) is not None


def find_contribution(session: Session, round_id: int, client_id: str) -> ContributionRow | None:
    """The stored contribution of a client, its bytes perhaps scrubbed."""
    return session.get(ContributionRow, (round_id, client_id))


def received_count(session: Session, round_id: int) -> int:
    """Contributions stored."""
    return session.execute(_RECEIVED, {"round": round_id}).scalar_one()


def unfolded(session: Session, round_id: int, limit: int) -> Sequence[tuple[str, str | None, str]]:
    """At most `limit` contributions that no partial holds yet, oldest first: client, blob and digest."""
    rows = session.execute(_UNFOLDED, {"round": round_id, "most": limit}).all()
    return [(client, key, digest) for client, key, digest in rows]


def unfolded_count(session: Session, round_id: int) -> int:
    """Contributions that no partial holds yet."""
    return session.execute(_UNFOLDED_COUNT, {"round": round_id}).scalar_one()


def newest_snapshot(session: Session, task_id: str, at_least: int = 0) -> SnapshotRow | None:
    """The newest snapshot that is kept, of round `at_least` or later."""
    query = select(SnapshotRow).where(
        SnapshotRow.task_id == task_id, SnapshotRow.blob_key.is_not(None), SnapshotRow.round_number >= at_least
    )
    return session.scalars(query.order_by(SnapshotRow.round_number.desc()).limit(1)).one_or_none()
