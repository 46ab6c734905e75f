"""The list of a task's members: what each was asked for and has sent, by any of its columns.

Members are shown by their place in the order of enrolment and by the serial of their certificate, under which the
organiser knows them. What a client's values look like, such as the share that it clipped, is not in the list and no
message of the protocol says it: a figure of one member's data, outside the sum, is hidden by no mask and no noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Float, Subquery, case, cast, func, literal, null, select, union_all
from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.storage.schema import ClientRow, ContributionRow, RoundRow, StageMessageRow, TaskRow

_SHOWN: Final = 50
_ASKED_ENOUGH: Final = 3
"""Times that a member must have been asked before it counts as slow."""
MemberState = Literal["", "active", "slow", "waiting", "ended"]
Order = Literal[
    "", "asked", "-asked", "contributed", "-contributed", "share", "-share", "sent", "-sent", "seen", "-seen", "-number"
]
"""Column by which members are sorted, with a minus from the largest on; "": by number, in the order of enrolment."""


@dataclass(frozen=True)
class MemberLine:
    """One member: its number in the order of enrolment, the serial of its certificate, and what it did."""

    number: int
    serial: str
    role: str
    state: str
    asked: int
    contributed: int
    sent: int
    """Bytes of its contributions and of its messages in masked and one-shot rounds, without requests that carry no data
    of a round."""
    enrolled_at: float
    seen_at: float | None
    """When the newest of these arrived, seconds since the epoch; None without one."""

    @property
    def share(self) -> float | None:
        """Contributions for each time that it was asked; None if it never was."""
        return self.contributed / self.asked if self.asked else None


@dataclass(frozen=True)
class MemberList:
    """A page of the members that match. more: whether pages follow."""

    lines: list[MemberLine]
    page: int
    """Its number, from 1."""
    found: int
    """How many match."""
    state: MemberState
    serial: str
    order: Order

    @property
    def more(self) -> bool:
        """Whether there is a next page."""
        return self.page * _SHOWN < self.found


def member_list(
    session: Session, task: TaskRow, state: MemberState = "", serial: str = "", order: Order = "", page: int = 1
) -> MemberList:
    """Return page `page` of the members of a task, in this order; members without a value come last.

    state, serial: show only those; a serial is as `hushrec organiser list` shows it. A member is slow that contributed
    to less than half of at least three rounds that asked it. Raises `Problem` for what is no serial.
    """
    kept = _kept_messages(task.id)
    contributed = ClientRow.past_contributions + func.coalesce(kept.c.contributions, 0)
    sent = ClientRow.past_bytes + func.coalesce(kept.c.bytes, 0)
    seen = func.coalesce(kept.c.newest, ClientRow.past_seen_at)
    query = select(ClientRow, contributed, sent, seen).outerjoin(kept, kept.c.client_id == ClientRow.id)
    query = query.where(ClientRow.task_id == task.id, ClientRow.erased_at.is_(None))
    query = query.where(*_matches(task, state, contributed))
    if serial:
        query = query.where(ClientRow.subject == _subject(serial))
    columns: dict[str, ColumnElement[Any]] = {
        "": ClientRow.sequence.expression,
        "number": ClientRow.sequence.expression,
        "asked": ClientRow.times_asked.expression,
        "contributed": contributed,
        "share": case((ClientRow.times_asked > 0, cast(contributed, Float) / ClientRow.times_asked), else_=null()),
        "sent": sent,
        "seen": seen,
    }
    column = columns[order.removeprefix("-")]
    by = column.desc() if order.startswith("-") else column.asc()
    found = session.execute(select(func.count()).select_from(query.subquery())).scalar_one()
    shown = query.order_by(by.nulls_last(), ClientRow.sequence).offset((page - 1) * _SHOWN).limit(_SHOWN)
    lines = [_line(task, *row) for row in session.execute(shown)]
    return MemberList(lines, page, found, state, serial, order)


def _kept_messages(task_id: str) -> Subquery:
    """Contributions, bytes and time of the newest message by client, of those rows of the task that are kept.

    Those of tidied rounds are counted in the members' own rows (`tasks.tidying`).
    """
    given, staged = ContributionRow, StageMessageRow
    rounds = select(RoundRow.id).where(RoundRow.task_id == task_id)
    messages = union_all(
        select(
            given.client_id.label("client_id"),
            literal(1).label("one"),
            given.bytes.label("bytes"),
            given.stored_at.label("at"),
        ).where(given.round_id.in_(rounds)),
        select(staged.client_id, literal(0), staged.length, staged.stored_at).where(staged.round_id.in_(rounds)),
    ).subquery()
    counted = select(
        messages.c.client_id,
        func.sum(messages.c.one).label("contributions"),
        func.sum(messages.c.bytes).label("bytes"),
        func.max(messages.c.at).label("newest"),
    )
    return counted.group_by(messages.c.client_id).subquery()


def _matches(task: TaskRow, state: MemberState, contributed: ColumnElement[int]) -> list[ColumnElement[bool]]:
    """Return the conditions of a state."""
    ended = ClientRow.revoked_at.is_not(None)
    if state == "ended":
        return [ended]
    if state == "slow":
        return [~ended, ClientRow.times_asked >= _ASKED_ENOUGH, 2 * contributed < ClientRow.times_asked]
    if not state:
        return []
    unkeyed = ClientRow.envelope_key.is_(None) & (ClientRow.role == "member")
    waiting = unkeyed if task.needs_keyring else ClientRow.id.is_(None)
    return [~ended, waiting if state == "waiting" else ~waiting]


def _subject(serial: str) -> bytes:
    try:
        return int(serial, 16).to_bytes(8, "little")
    except (ValueError, OverflowError):
        raise Problem("invalid-parameters", "A serial has up to 16 digits and letters from a to f.") from None


def _line(task: TaskRow, row: ClientRow, contributed: int, sent: int, seen_at: float | None) -> MemberLine:
    waiting = task.needs_keyring and row.envelope_key is None and row.role == "member"
    state = "ended" if row.revoked_at is not None else "waiting for keys" if waiting else "active"
    if row.erase_asked_at is not None:
        state = "being erased"
    elif state == "active" and row.retired_in is not None:
        state = f"left in round {row.retired_in}"
    return MemberLine(
        number=row.sequence,
        serial="" if row.subject is None else f"{int.from_bytes(row.subject, 'little'):016x}",
        role=row.role,
        state=state,
        asked=row.times_asked,
        contributed=contributed,
        sent=int(sent),
        enrolled_at=row.enrolled_at,
        seen_at=seen_at or None,
    )
