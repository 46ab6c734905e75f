"""Enrolment: a client presents an invitation and its signed public keys, and gets an id and a token."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Request, Response

from aggregator_service.access.tokens import hash_token
from aggregator_service.http.authentication import client_address
from aggregator_service.http.fields import QueryChecked
from aggregator_service.observability.request_record import ENROLLED
from aggregator_service.problems import Problem, responses
from aggregator_service.routes.bodies import api_router
from aggregator_service.services import Services, ServicesOf
from aggregator_service.tasks.enrolments import check_signature, enrol, invited_task
from aggregator_service.tasks.tasks import task_view
from protocols.messages import Enrolment, EnrolmentRequest, TaskView

__all__ = ["router"]

router = api_router("/v1/enrolments", tag="enrolment", dependencies=[QueryChecked])


@router.get(
    "/task",
    summary="Show the task of an invitation",
    responses=responses(
        "forbidden", "gone", "invalid-parameters", "too-many-requests", "internal-error", "unavailable"
    ),
)
def preview(
    services: ServicesOf,
    http: Request,
    authorization: Annotated[
        str, Header(description="`Bearer` and the invitation.", max_length=100, pattern=r"^Bearer hri_\S+$")
    ],
) -> TaskView:
    """Return the task that an invitation is for, so that a client can judge it before it uses the invitation."""
    address = client_address(http.scope)
    services.limits.attempt(address)
    try:
        with services.database.read() as session:
            task = invited_task(session, authorization.removeprefix("Bearer "), services.clock.now())
            return task_view(session, task, services.settings.signatures)
    except Problem:
        services.limits.failure(address)
        raise


@router.post(
    "",
    status_code=201,
    summary="Enrol a client",
    responses={
        200: {
            "model": Enrolment,
            "description": "The identity key was enrolled before: it gets a new token, and the old one is void.",
        },
        **responses(
            "bad-request",
            "forbidden",
            "conflict",
            "gone",
            "body-too-long",
            "upload-timeout",
            "invalid-parameters",
            "too-many-requests",
            "internal-error",
            "unavailable",
        ),
    },
)
async def create(services: ServicesOf, http: Request, request: EnrolmentRequest, response: Response) -> Enrolment:
    """Register an Ed25519 identity key and an X25519 mailbox key. The token is shown only in this response."""
    enrolment, is_new = await _enrol(services, client_address(http.scope), request)
    http.scope[ENROLLED] = enrolment
    response.status_code = 201 if is_new else 200
    return enrolment


async def _enrol(services: Services, address: str, request: EnrolmentRequest) -> tuple[Enrolment, bool]:
    """Enrol a client; return the enrolment and whether the client is new. address: the client's, for the limits."""
    services.limits.attempt(address)  # before a transaction is opened
    mark, now = services.task_cache.mark(), services.clock.now()
    try:
        check_signature(request)
        admitted = await services.member_writes.run(lambda session: enrol(session, request, now))
    except Problem:
        services.limits.failure(address)
        raise
    # its first requests follow at once
    services.task_cache.remember(mark, hash_token(admitted.enrolment.token), admitted.client, admitted.version)
    return admitted.enrolment, admitted.is_new
