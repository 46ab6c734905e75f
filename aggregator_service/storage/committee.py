"""Queries of one-shot rounds: the keys of a round's committee, and what its survivors signed and sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import ClientRow, CommitteeKeyRow, ContributionRow

__all__ = [
    "StatedContribution",
    "committee_keys",
    "delete_keys_before",
    "delete_later_keys",
    "find_committee_key",
    "published_keys",
    "stated_contributions",
    "statement_bytes",
]


class StatedContribution(NamedTuple):
    """A contribution of a one-shot round. statement: encoded. key: of the blob with the whole upload."""

    client_id: str
    statement: bytes
    key: str


def find_committee_key(session: Session, task_id: str, number: int, client_id: str) -> CommitteeKeyRow | None:
    """Return the key that a member published for a round; None without one."""
    return session.get(CommitteeKeyRow, (task_id, number, client_id))


def published_keys(session: Session, task_id: str, number: int) -> Sequence[tuple[CommitteeKeyRow, ClientRow]]:
    """Return the keys that members published for a round, without revoked members, in order of enrolment."""
    query = select(CommitteeKeyRow, ClientRow).join(ClientRow, ClientRow.id == CommitteeKeyRow.client_id)
    query = query.where(CommitteeKeyRow.task_id == task_id, CommitteeKeyRow.round_number == number)
    rows = session.execute(query.where(ClientRow.revoked_at.is_(None)).order_by(ClientRow.sequence))
    return [(key, client) for key, client in rows]


def committee_keys(session: Session, round_id: int) -> list[bytes]:
    """Return the encoded keys of a round's committee, in order of the members' ids; empty once they are deleted."""
    rows = session.execute(
        select(CommitteeKeyRow.client_id, CommitteeKeyRow.body).where(CommitteeKeyRow.round_id == round_id)
    )
    return [body for _, body in sorted((client_id, body) for client_id, body in rows)]


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
    query = select(row.client_id, row.statement, row.blob_key).where(row.round_id == round_id, row.client_id > after)
    query = query.where(row.statement.is_not(None), row.blob_key.is_not(None))
    rows = session.execute(query.order_by(row.client_id).limit(limit))
    return [StatedContribution(client, statement, key) for client, statement, key in rows if statement and key]


def statement_bytes(session: Session, round_id: int) -> tuple[int, int]:
    """Return the number of statements of a round and their length in bytes."""
    row = ContributionRow
    query = select(func.count(), func.coalesce(func.sum(func.length(row.statement)), 0))
    count, length = session.execute(query.where(row.round_id == round_id, row.statement.is_not(None))).one()
    return int(count), int(length)
