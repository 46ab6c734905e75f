"""Routes for membership certificates: renewal by members, revocation lists."""

from __future__ import annotations

import hashlib

from fastapi import Response
from sqlalchemy.orm import Session

from aggregator_service.access.principals import task_of
from aggregator_service.http.authentication import MemberIs, OperatorOnly, PrincipalOf
from aggregator_service.problems import Problem
from aggregator_service.routes.bodies import RawBodyOf, api_router
from aggregator_service.routes.common import (
    IfNoneMatch,
    TaskId,
    binary_request,
    binary_response,
    bytes_response,
    guarded,
)
from aggregator_service.services import ServicesOf
from aggregator_service.storage.schema import TaskRow
from aggregator_service.tasks.certificates import renew_certificate, store_revocations
from protocols.crypto.certificates import CERTIFICATE_BYTES, LONGEST_REVOCATIONS

__all__ = ["router"]

router = api_router("/v1/tasks/{task}", tag="certificates")


@router.put(
    "/members/me/certificate",
    summary="Renew one's certificate",
    response_class=Response,
    openapi_extra=binary_request("The new membership certificate, 81 bytes."),
    responses=guarded("bad-digest", "body-too-short", "body-too-long", "conflict", "length-required", "upload-timeout"),
)
async def renew(services: ServicesOf, member: MemberIs, raw: RawBodyOf, task: TaskId) -> Response:
    """Replace the calling client's membership certificate by a newer one from the organiser."""

    def write(session: Session, body: bytes) -> bool:
        renew_certificate(session, task, member.client_id, body, services.clock.now())
        return False

    return await raw.store(write, exact=CERTIFICATE_BYTES)


@router.put(
    "/revocations",
    dependencies=[OperatorOnly],
    summary="Publish the organiser's revocation list",
    response_class=Response,
    openapi_extra=binary_request("The revocation list, signed by the organiser."),
    responses=guarded(
        "bad-request", "bad-digest", "body-too-short", "body-too-long", "conflict", "length-required", "upload-timeout"
    ),
)
async def publish(services: ServicesOf, principal: PrincipalOf, raw: RawBodyOf, task: TaskId) -> Response:
    """Store the organiser's revocation list and revoke the members on it."""

    def write(session: Session, body: bytes) -> bool:
        store_revocations(session, task_of(session, principal, task), body, services.clock.now())
        return False

    return await raw.store(write, most=LONGEST_REVOCATIONS)


@router.get(
    "/revocations",
    summary="Download the revocation list",
    response_class=Response,
    responses={
        **binary_response("The revocation list, signed by the organiser."),
        304: {"description": "Not modified."},
        **guarded(),
    },
)
def show(services: ServicesOf, principal: PrincipalOf, task: TaskId, if_none_match: IfNoneMatch = None) -> Response:
    """Return the organiser's newest revocation list; 404 if none is stored."""
    with services.database.read() as session:
        row: TaskRow = task_of(session, principal, task)
        body = row.revocations
    if body is None:
        raise Problem("not-found", "no revocation list is stored for this task")
    return bytes_response(body, hashlib.sha256(body).hexdigest(), if_none_match)
