"""The committee of a task with one-shot sums: keys that members publish ahead of rounds, and who is in a round's."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.round_states import ACTIVE
from aggregator_service.storage.database import announce
from aggregator_service.storage.round_rows import last_round, lock_task
from aggregator_service.storage.schema import (
    ClientRow,
    CommitteeKeyRow,
    ContributionRow,
    RoundRow,
    StageMessageRow,
    TaskRow,
)
from aggregator_service.tasks.joining import is_certified, organiser_of
from aggregator_service.tasks.plans import plan_task, row_terms
from protocols.codec import b64encode
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.errors import CodecError, ParameterError
from protocols.messages import CommitteeMemberView, CommitteeView
from protocols.messages.stages import COMMITTEE_KEYS_AHEAD
from protocols.sums.oneshot.committee import check_committee_key, join_keys
from protocols.sums.oneshot.wire import CommitteeKey


class StatedContribution(NamedTuple):
    """A contribution of a one-shot round."""

    client_id: str
    statement: bytes
    """Encoded."""
    key: str
    start: int
    """Of the blob with the whole upload, and where that begins in it."""


def published_keys(session: Session, task_id: str, number: int) -> Sequence[tuple[CommitteeKeyRow, ClientRow]]:
    """Return the keys that members published for a round, without revoked members, in order of enrolment."""
    query = select(CommitteeKeyRow, ClientRow).join(ClientRow, ClientRow.id == CommitteeKeyRow.client_id)
    query = query.where(CommitteeKeyRow.task_id == task_id, CommitteeKeyRow.round_number == number)
    rows = session.execute(query.where(ClientRow.revoked_at.is_(None)).order_by(ClientRow.sequence))
    return [(key, client) for key, client in rows]


def committee_keys(session: Session, round_id: int) -> list[bytes]:
    """Return the encoded keys of a round's committee, in order of the members' ids; empty once they are deleted."""
    rows = session.scalars(select(CommitteeKeyRow).where(CommitteeKeyRow.round_id == round_id))
    return [row.body for row in sorted(rows, key=lambda row: row.client_id)]


def encoded_keys(session: Session, round_: RoundRow) -> str | None:
    """Return the keys of a round's committee as `RoundView` shows them; None for a round without one."""
    return b64encode(join_keys(committee_keys(session, round_.id))) if round_.committee else None


def delete_keys_before(session: Session, task_id: str, number: int) -> None:
    """Delete the keys of all rounds before `number`."""
    older = CommitteeKeyRow.task_id == task_id, CommitteeKeyRow.round_number < number
    session.execute(delete(CommitteeKeyRow).where(*older))


def delete_later_keys(session: Session, task_id: str, number: int, clients: Sequence[str]) -> None:
    """Delete the keys that some members published for rounds after `number`."""
    later = CommitteeKeyRow.task_id == task_id, CommitteeKeyRow.round_number > number
    session.execute(delete(CommitteeKeyRow).where(*later, CommitteeKeyRow.client_id.in_(clients)))


def stated_contributions(
    session: Session, round_id: int, after: str = "", limit: int | None = None
) -> list[StatedContribution]:
    """Return contributions of a one-shot round in order of the client ids, from the one after `after` on.

    Empty once the round is over.
    """
    row = ContributionRow
    columns = row.client_id, row.statement, row.blob_key, row.blob_start
    query = select(*columns).where(row.round_id == round_id, row.client_id > after)
    query = query.where(row.statement.is_not(None), row.blob_key.is_not(None))
    rows = session.execute(query.order_by(row.client_id).limit(limit))
    return [
        StatedContribution(client, stated, key, start or 0) for client, stated, key, start in rows if stated and key
    ]


def each_statement(session: Session, round_id: int) -> Iterator[bytes]:
    """Yield what the clients of a one-shot round signed, encoded; few are in memory at a time: rounds are large."""
    row = ContributionRow
    query = select(row.statement).where(row.round_id == round_id, row.statement.is_not(None))
    for statement in session.scalars(query.execution_options(yield_per=_READ_AT_ONCE)):
        yield statement or b""


def statement_bytes(session: Session, round_id: int, after: str = "") -> tuple[int, int]:
    """Return the number of statements of a round and their length in bytes; of the clients after `after`, in order."""
    row = ContributionRow
    query = select(func.count(), func.coalesce(func.sum(func.length(row.statement)), 0))
    count, length = session.execute(
        query.where(row.round_id == round_id, row.statement.is_not(None), row.client_id > after)
    ).one()
    return int(count), int(length)


_READ_AT_ONCE: Final = 1_000
"""Statements of one fetch."""
_LOG: Final = logging.getLogger(__name__)


def committee_size(task: TaskRow) -> int:
    """Return the number of members that each round of the task needs; 0 if its mechanism has no committee."""
    return plan_task(row_terms(task)).sum_plan.committee


def store_committee_key(
    session: Session, task_id: str, number: int, client_id: str, document: bytes, now: float
) -> bool:
    """Store a member's key of a round that has not opened; return whether it is new.

    document: an encoded `CommitteeKey`. Raises `Problem`: conflict (409) when the task is over or has no committee,
    when another key of this member and round is stored, or another member published this key, and for a round other
    than the next `COMMITTEE_KEYS_AHEAD`; bad-request (400) when the member did not sign the key for this round, or when
    it carries other keys or another certificate than the member's.
    """
    task = lock_task(session, task_id)
    if not committee_size(task):
        raise Problem("conflict", "this task's mechanism has no committee")
    key = _checked_key(task, number, session.get_one(ClientRow, client_id), document, now)
    digest = hashlib.sha256(document).hexdigest()
    known = session.get(CommitteeKeyRow, (task_id, number, client_id))
    if known is not None:
        if not hmac.compare_digest(known.digest, digest):
            raise Problem("conflict", "another key of this member was published for the round and stays")
        return False
    newest = last_round(session, task_id)
    last = 0 if newest is None else newest.number
    if task.state != "open":
        raise Problem("conflict", "the task is over: no round needs a key any more")
    if not last < number <= last + COMMITTEE_KEYS_AHEAD:
        raise Problem("conflict", f"keys are published for the next {COMMITTEE_KEYS_AHEAD} rounds only")
    others = (CommitteeKey.decode(row.body) for row, _ in published_keys(session, task_id, number))
    if any(hmac.compare_digest(other.round_key, key.round_key) for other in others):
        # every client would refuse a committee in which a key occurs twice
        raise Problem("conflict", "another member published the same key for this round: generate a new one")
    session.add(
        CommitteeKeyRow(task_id=task_id, round_number=number, client_id=client_id, digest=digest, body=document)
    )
    session.flush()
    announce(session, task_id, "round")
    _LOG.info("committee key stored", extra=fields(task=task_id, round=number, client=client_id, digest=digest))
    return True


def _checked_key(task: TaskRow, number: int, client: ClientRow, document: bytes, now: float) -> CommitteeKey:
    try:
        key = CommitteeKey.decode(document)
        check_committee_key(task.id, number, key)
    except (CodecError, ParameterError) as error:
        raise Problem("bad-request", str(error)) from error
    own = (client.id, client.identity_key, client.mailbox_key, client.certificate or NO_CERTIFICATE)
    if (key.member_id, key.identity_key, key.mailbox_key, key.certificate) != own:
        raise Problem("bad-request", "the key carries another id, other keys or another certificate than the member's")
    if not is_certified(organiser_of(task), *own[1:], client.role, now):
        raise Problem("forbidden", "the member's certificate has expired or was revoked: renew it first")
    return key


def choose_committee(session: Session, task: TaskRow, number: int, now: float) -> list[CommitteeKeyRow] | None:
    """Return the keys of a round's committee: of the first members by enrolment that published one.

    Members whose certificate is not valid at `now` are left out. None when too few have published a key.
    """
    able = _able_keys(session, task, number, now)
    needed = committee_size(task)
    return able[:needed] if len(able) >= needed else None


def _able_keys(session: Session, task: TaskRow, number: int, now: float) -> list[CommitteeKeyRow]:
    return [
        row
        for row, client in published_keys(session, task.id, number)
        if is_certified(
            organiser_of(task),
            client.identity_key,
            client.mailbox_key,
            CommitteeKey.decode(row.body).certificate,
            client.role,
            now,
        )
    ]


def awaited_committee(session: Session, task: TaskRow, now: float) -> str | None:
    """Return what the next round waits for, in plain words; None when it does not wait for the committee."""
    needed = committee_size(task)
    if task.state != "open" or not needed:
        return None
    newest = last_round(session, task.id)
    if newest is not None and newest.state in ACTIVE:
        return None
    number = _next_number(newest)
    present = len(_able_keys(session, task, number, now))
    if present >= needed:
        return None
    return f"the committee: {present} of {needed} members have published keys for round {number}"


def committee_view(session: Session, task: TaskRow) -> CommitteeView:
    """Return the members of a task's committee and what they have published.

    Raises `Problem` not-found (404) for a task without a committee.
    """
    plan = plan_task(row_terms(task)).sum_plan
    if not plan.committee:
        raise Problem("not-found", "this task's mechanism has no committee")
    newest = last_round(session, task.id)
    members = select(ClientRow.id).where(ClientRow.task_id == task.id, ClientRow.role == "committee")
    members = members.where(ClientRow.revoked_at.is_(None)).order_by(ClientRow.sequence)
    keys: dict[str, list[int]] = defaultdict(list)
    in_round: set[str] = set()
    published = select(CommitteeKeyRow).where(CommitteeKeyRow.task_id == task.id)
    for row in session.scalars(published.order_by(CommitteeKeyRow.round_number)):
        if newest is None or row.round_number >= newest.number:
            keys[row.client_id].append(row.round_number)
        if newest is not None and row.round_id == newest.id:
            in_round.add(row.client_id)
    answered = _answered(session, newest)
    return CommitteeView(
        needed=plan.committee,
        threshold=plan.answers_needed(0),
        next_round=_next_number(newest),
        members=[
            CommitteeMemberView(
                client_id=client_id,
                keys=keys[client_id],
                in_round=client_id in in_round,
                answered=answered[client_id],
            )
            for client_id in session.scalars(members)
        ],
    )


def _answered(session: Session, round_: RoundRow | None) -> dict[str, list[str]]:
    """Return the messages of a round that its committee has sent, by member."""
    found: dict[str, list[str]] = defaultdict(list)
    if round_ is not None:
        sent = select(StageMessageRow.client_id, StageMessageRow.stage).where(StageMessageRow.round_id == round_.id)
        for client_id, stage in session.execute(sent.order_by(StageMessageRow.stored_at)):
            found[client_id].append(stage)
    return found


def _next_number(newest: RoundRow | None) -> int:
    return 1 if newest is None else newest.number + 1
