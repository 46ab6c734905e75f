"""Invitations of a task: create, list, revoke."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from sqlalchemy.orm import Session

from aggregator_service.http.authentication import OperatorOnly, ReaderOnly
from aggregator_service.problems import Problem
from aggregator_service.routes.bodies import api_router
from aggregator_service.routes.common import TaskId, guarded
from aggregator_service.services import ServicesOf
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.members import invitation_page, revoke_invitation
from aggregator_service.tasks.tasks import create_invitation
from protocols.messages import Invitation, InvitationPage, InvitationRequest, InvitationView

__all__ = ["router"]

router = api_router("/v1/tasks/{task}/invitations", tag="tasks")

_ID_PATTERN = r"^i_[0-9a-f]{1,38}$"
InvitationId = Annotated[str, Path(description="Invitation id.", max_length=40, examples=["i_4c6e8a0b2d4f6a8c0e2b"])]


@router.post(
    "",
    status_code=201,
    summary="Invite clients",
    dependencies=[OperatorOnly],
    responses=guarded("bad-request", "conflict", "body-too-long", "upload-timeout"),
)
def invite(services: ServicesOf, task: TaskId, request: InvitationRequest) -> Invitation:
    """Create an invitation for one or more clients. It is shown only in this response; the server keeps its hash."""
    with services.database.write() as session:
        return create_invitation(session, _task(session, task), request, services.clock.now())


@router.get("", summary="List invitations", dependencies=[ReaderOnly], responses=guarded())
def list_all(
    services: ServicesOf,
    task: TaskId,
    after: Annotated[
        str | None, Query(description="`next` of the last page.", pattern=_ID_PATTERN, examples=["i_4c6e8a0b2d4f6a"])
    ] = None,
    limit: Annotated[int, Query(description="Largest number of invitations in the page.", ge=1, le=1000)] = 100,
) -> InvitationPage:
    """Return invitations, oldest first, with their remaining uses and lifetime, without the invitation codes."""
    with services.database.read() as session:
        return invitation_page(session, _task(session, task).id, after, limit, services.clock.now())


@router.delete("/{invitation}", summary="Revoke an invitation", dependencies=[OperatorOnly], responses=guarded())
def revoke(services: ServicesOf, task: TaskId, invitation: InvitationId) -> InvitationView:
    """Revoke an invitation: nobody can enrol with it. Clients that have enrolled remain members. Idempotent."""
    with services.database.write() as session:
        return revoke_invitation(session, task, invitation, services.clock.now())


def _task(session: Session, task_id: str) -> TaskRow:
    row = session.get(TaskRow, task_id)
    if row is None:
        raise Problem("not-found", "there is no such task")
    return row
