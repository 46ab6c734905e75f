"""Enrolment and invitations: operators invite clients, and a client with an invitation gets an id and a token."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path, Query, Request, Response

from aggregator_service.access.principals import existing_task, hash_token
from aggregator_service.http.authentication import ActorOf, ReaderOnly
from aggregator_service.http.fields import QueryChecked
from aggregator_service.observability.requests import ENROLLED, client_address
from aggregator_service.problems import responses
from aggregator_service.routes.common import TaskId, api_router, guarded
from aggregator_service.services import ServicesOf
from aggregator_service.tasks.joining import check_signature, enrol, invited_task
from aggregator_service.tasks.membership import invitation_page, revoke_invitation
from aggregator_service.tasks.task_views import create_invitation, task_view
from protocols.messages import (
    Enrolment,
    EnrolmentRequest,
    Invitation,
    InvitationPage,
    InvitationRequest,
    InvitationView,
    TaskView,
)

router = api_router("/v1/enrolments", tag="enrolment", dependencies=[QueryChecked])
_PROBLEMS = ("forbidden", "gone", "invalid-parameters", "too-many-requests", "internal-error", "unavailable")
invitations_router = api_router("/v1/tasks/{task}/invitations", tag="tasks")


@router.get(
    "/task",
    summary="Show the task of an invitation",
    responses=responses(*_PROBLEMS),
)
def preview(
    services: ServicesOf,
    http: Request,
    authorization: Annotated[
        str, Header(description="`Bearer` and the invitation.", max_length=100, pattern=r"^Bearer hri_\S+$")
    ],
) -> TaskView:
    """Return the task that an invitation is for, so that a client can judge it before it uses the invitation."""
    services.clocks.refuse_too_far()
    now = services.clock.now()
    with services.limits.attempt(client_address(http.scope)), services.database.read() as session:
        task = invited_task(session, authorization.removeprefix("Bearer "), now)
        return task_view(session, task, services.settings.signatures, now)


@router.post(
    "",
    status_code=201,
    summary="Enrol a client",
    responses={
        200: {
            "model": Enrolment,
            "description": "The identity key was enrolled before: it gets a new token, and the old one is void.",
        },
        **responses(*_PROBLEMS, "not-found", "conflict"),
    },
)
async def create(services: ServicesOf, http: Request, request: EnrolmentRequest, response: Response) -> Enrolment:
    """Register an Ed25519 identity key and the sealing key of a mailbox. The token is shown only in this response."""
    services.clocks.refuse_too_far()
    start, now = services.task_cache.read_start(), services.clock.now()
    with services.limits.attempt(client_address(http.scope)):
        check_signature(request)
        admitted = await services.member_writes.run(lambda session: enrol(session, request, now))
    enrolment = http.scope[ENROLLED] = admitted.enrolment
    # its first requests follow at once
    services.task_cache.remember(start, hash_token(enrolment.token), admitted.client, admitted.version)
    response.status_code = 201 if admitted.is_new else 200
    return enrolment


# --- invitations ------------------------------------------------------------------------------------------------------

_ID_PATTERN = r"^i_[0-9a-f]{1,38}$"
InvitationId = Annotated[str, Path(description="Invitation id.", max_length=40, examples=["i_4c6e8a0b2d4f6a8c0e2b"])]


@invitations_router.post(
    "",
    status_code=201,
    summary="Invite clients",
    responses=guarded("conflict"),
)
def invite(services: ServicesOf, actor: ActorOf, task: TaskId, request: InvitationRequest) -> Invitation:
    """Create an invitation for one or more clients. It is shown only in this response; the server keeps its hash."""
    return services.database.transact(
        lambda session: create_invitation(session, existing_task(session, task), request, actor)
    )


@invitations_router.get("", name="list_all", summary="List invitations", dependencies=[ReaderOnly], responses=guarded())
def list_invitations(
    services: ServicesOf,
    task: TaskId,
    after: Annotated[
        str | None, Query(description="`next` of the last page.", pattern=_ID_PATTERN, examples=["i_4c6e8a0b2d4f6a"])
    ] = None,
    limit: Annotated[int, Query(description="Largest number of invitations in the page.", ge=1, le=1000)] = 100,
) -> InvitationPage:
    """Return invitations, oldest first, with their remaining uses and lifetime, without the invitation codes."""
    with services.database.read() as session:
        return invitation_page(session, existing_task(session, task).id, after, limit, services.clock.now())


@invitations_router.delete("/{invitation}", summary="Revoke an invitation", responses=guarded())
def revoke(services: ServicesOf, actor: ActorOf, task: TaskId, invitation: InvitationId) -> InvitationView:
    """Revoke an invitation: nobody can enrol with it. Clients that have enrolled remain members. Idempotent."""
    return services.database.transact(lambda session: revoke_invitation(session, task, invitation, actor))
