"""The stages of masked rounds: clients send a message (PUT) and fetch what the stage before it produced (GET)."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.principals import Principal
from aggregator_service.http.authentication import PrincipalOf
from aggregator_service.http.digests import check_length, content_digest, content_length
from aggregator_service.http.media_types import check_media_type
from aggregator_service.http.routing import api_router
from aggregator_service.routes.common import (
    ClientId,
    IfNoneMatch,
    RoundNumber,
    TaskId,
    binary_request,
    binary_response,
    bytes_response,
    guarded,
    receipt_response,
)
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.stages import Handout
from aggregator_service.uploads.outcomes import Stored
from aggregator_service.uploads.receive import receive_small_body
from aggregator_service.uploads.stage_messages import admit_to_stage, handed_out, same_or_conflict, store_message
from protocols.messages import UploadReceipt
from protocols.messages.media_types import OCTETS, STAGE_TYPES, handout_type
from protocols.messages.stages import StageMessage
from protocols.task_binding import ROUND_BINDING

__all__ = ["router"]

router = api_router("/v1/tasks/{task}/rounds/{number}", tag="stages")

StageName = Annotated[StageMessage, Path(description="Kind of message.", examples=["advertise"])]
_HANDED_OUT: Final = {304: {"description": "Not modified."}, **guarded("not-in-cohort")}


@router.put(
    "/stages/{stage}/{client}",
    status_code=201,
    summary="Send the message of a stage",
    response_model=UploadReceipt,
    openapi_extra=binary_request(
        "The message, of exactly the length that the stage and the roster determine.",
        (OCTETS, *STAGE_TYPES.values()),
        optional={"Round-Binding": "Advertisements: what they are bound to, for the text of a refusal."},
    ),
    responses={
        201: {"description": "The message is stored durably."},
        200: {"model": UploadReceipt, "description": "The same message was stored before."},
        **guarded(
            "bad-contribution",
            "bad-digest",
            "body-too-long",
            "body-too-short",
            "contribution-conflict",
            "length-required",
            "not-in-cohort",
            "round-closed",
            "upload-timeout",
        ),
    },
)
async def put(
    services: ServicesOf,
    principal: PrincipalOf,
    request: Request,
    task: TaskId,
    number: RoundNumber,
    stage: StageName,
    client: ClientId,
) -> Response:
    """Send the message of a stage. Idempotent: the same bytes get the same receipt, other bytes a conflict."""
    admission = await run_in_threadpool(admit_to_stage, services, principal, task, number, stage, client)
    check_media_type(request, STAGE_TYPES[stage])
    length = content_length(request)
    digest = content_digest(request)
    if admission.stored is not None:
        return receipt_response(same_or_conflict(admission, admission.stored, digest), 200)
    body = await receive_small_body(services.settings, request, check_length(length, admission.length), digest)
    binding = request.headers.get(ROUND_BINDING, "")
    outcome = await run_in_threadpool(store_message, services, admission, body, digest, binding)
    return receipt_response(outcome.receipt, 201 if isinstance(outcome, Stored) else 200)


def _answer(
    services: Services, principal: Principal, task: str, number: int, kind: Handout, if_none_match: str | None
) -> Response:
    found = handed_out(services, principal, task, number, kind)
    return bytes_response(found.body, found.digest, if_none_match, handout_type(kind))


@router.get(
    "/roster",
    summary="Fetch the roster",
    response_class=Response,
    responses={
        **binary_response("The clients that take part, with their keys.", handout_type("roster")),
        **_HANDED_OUT,
    },
)
def roster(
    services: ServicesOf,
    principal: PrincipalOf,
    task: TaskId,
    number: RoundNumber,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the roster to the clients in it, from the state sharing on. All clients get the same bytes."""
    return _answer(services, principal, task, number, "roster", if_none_match)


@router.get(
    "/inbox",
    summary="Fetch the neighbours' shares",
    response_class=Response,
    responses={
        **binary_response("The clients that shared, and the shares sealed for this client.", handout_type("inbox")),
        **_HANDED_OUT,
    },
)
def inbox(
    services: ServicesOf,
    principal: PrincipalOf,
    task: TaskId,
    number: RoundNumber,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the sealed shares for the asking client, if it has shared, from the state collecting on."""
    return _answer(services, principal, task, number, "inbox", if_none_match)


@router.get(
    "/survivors",
    summary="Fetch the set of survivors",
    response_class=Response,
    responses={
        **binary_response("The survivors: one bit for each member of the roster.", handout_type("survivors")),
        **_HANDED_OUT,
    },
)
def survivors(
    services: ServicesOf,
    principal: PrincipalOf,
    task: TaskId,
    number: RoundNumber,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the set of survivors, from the end of the state collecting on."""
    return _answer(services, principal, task, number, "survivors", if_none_match)


@router.get(
    "/confirmations",
    summary="Fetch the neighbours' confirmations",
    response_class=Response,
    responses={
        **binary_response("The members' signatures.", handout_type("confirmations")),
        **_HANDED_OUT,
    },
)
def confirmations(
    services: ServicesOf,
    principal: PrincipalOf,
    task: TaskId,
    number: RoundNumber,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the neighbours' signatures to clients that confirmed, from the state unmasking on; semi-malicious only."""
    return _answer(services, principal, task, number, "confirmations", if_none_match)
