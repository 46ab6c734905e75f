"""Members as the key holder and operators see them, and revocation."""

from __future__ import annotations

import logging

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.access.tokens import hash_token, new_token
from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.storage.database import announce, discard, void_token
from aggregator_service.storage.schema import ClientRow
from protocols.codec import b64encode
from protocols.messages import Member, MemberPage

__all__ = ["is_keyed", "member_page", "revoke_member"]

_LOG = logging.getLogger(__name__)


def is_keyed(client: ClientRow) -> bool:
    """Whether an envelope is stored for the client: only then is it asked in rounds of a task with a keyring."""
    return client.envelope_key is not None


def member_page(session: Session, task_id: str, after: int, limit: int, unkeyed: bool) -> MemberPage:
    """Return a page of members in order of enrolment.

    after: sequence number of the last member of the previous page. unkeyed: only members that wait for an envelope.
    """
    query = select(ClientRow).where(ClientRow.task_id == task_id, ClientRow.sequence > after)
    if unkeyed:
        query = query.where(
            ClientRow.envelope_key.is_(None), ClientRow.role != "holder", ClientRow.revoked_at.is_(None)
        )
    rows = session.scalars(query.order_by(ClientRow.sequence).limit(limit + 1)).all()
    shown = rows[:limit]
    return MemberPage(
        members=[_member(row) for row in shown], next=str(shown[-1].sequence) if len(rows) > limit else None
    )


def _member(row: ClientRow) -> Member:
    return Member.model_validate(
        {
            "client_id": row.id,
            "role": row.role,
            "identity_key": b64encode(row.identity_key),
            "mailbox_key": b64encode(row.mailbox_key),
            "certificate": None if row.certificate is None else b64encode(row.certificate),
            "keyed": is_keyed(row),
            "revoked": row.revoked_at is not None,
            "group": row.device_group,
        }
    )


def revoke_member(session: Session, task_id: str, client_id: str, now: float) -> Member:
    """Revoke a membership for good: void its token, delete its envelope, keep it out of later cohorts.

    Its contributions stay in the sums, and it keeps a keyring that it has opened. Raises `Problem` not-found (404) for
    an unknown client.
    """
    query = select(ClientRow).where(ClientRow.id == client_id, ClientRow.task_id == task_id).with_for_update()
    client = session.scalars(query).one_or_none()
    if client is None:
        raise Problem("not-found", "there is no such member")
    if client.revoked_at is None:
        client.revoked_at = now
        void_token(session, client.token_hash)
        client.token_hash = hash_token(new_token("hrc"))  # a new token that nobody gets
        discard(session, client.envelope_key)
        client.envelope_key = client.envelope_digest = client.envelope_bytes = None
        session.flush()
        announce(session, task_id, "members", "round", "tokens")
        _LOG.info("membership revoked", extra=fields(task=task_id, client=client_id))
    return _member(client)
