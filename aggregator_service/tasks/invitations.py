"""List and revoke invitations, for the routes and the command line. Their tokens are shown only once."""

from __future__ import annotations

import logging

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.storage.schema import InvitationRow
from protocols.messages import InvitationPage, InvitationView

__all__ = ["invitation_page", "invitation_view", "revoke_invitation"]

_LOG = logging.getLogger(__name__)


def invitation_view(row: InvitationRow, now: float) -> InvitationView:
    """Return the view of an invitation for operators; now: seconds since the epoch."""
    return InvitationView.model_validate(
        {
            "invitation_id": row.id,
            "role": row.role,
            "state": _state(row, now),
            "uses": row.uses,
            "used": row.used,
            "age_seconds": max(0.0, now - row.created_at),
            "expires_seconds": max(0.0, row.expires_at - now),
        }
    )


def _state(row: InvitationRow, now: float) -> str:
    if row.revoked_at is not None:
        return "revoked"
    if row.used >= row.uses:
        return "used up"
    return "expired" if row.expires_at <= now else "open"


def invitation_page(session: Session, task_id: str, after: str | None, limit: int, now: float) -> InvitationPage:
    """Return a page of a task's invitations in order of creation.

    after: id of the last invitation of the previous page. Raises `Problem` not-found when it does not exist.
    """
    order = InvitationRow.created_at, InvitationRow.id
    query = select(InvitationRow).where(InvitationRow.task_id == task_id)
    if after is not None:
        last = _find(session, task_id, after)
        query = query.where(tuple_(*order) > (last.created_at, last.id))
    rows = session.scalars(query.order_by(*order).limit(limit + 1)).all()
    shown = [invitation_view(row, now) for row in rows[:limit]]
    return InvitationPage(invitations=shown, next=rows[limit - 1].id if len(rows) > limit else None)


def revoke_invitation(session: Session, task_id: str, invitation_id: str, now: float) -> InvitationView:
    """Revoke an invitation; clients that enrolled with it remain members. A second call changes nothing.

    Raises `Problem` not-found (404) for an unknown invitation.
    """
    row = _find(session, task_id, invitation_id, lock=True)
    if row.revoked_at is None:
        row.revoked_at = now
        session.flush()
        _LOG.info("invitation revoked", extra=fields(task=task_id, invitation=row.id, used=row.used))
    return invitation_view(row, now)


def _find(session: Session, task_id: str, invitation_id: str, *, lock: bool = False) -> InvitationRow:
    query = select(InvitationRow).where(InvitationRow.id == invitation_id, InvitationRow.task_id == task_id)
    row = session.scalars(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise Problem("not-found", "there is no such invitation")
    return row
