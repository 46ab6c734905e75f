"""The stages of masked and one-shot rounds: clients send a message (PUT) and fetch what the stage before made (GET)."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Request
from fastapi.responses import Response

from aggregator_service.http.fields import check_media_type
from aggregator_service.routes.common import (
    AnswerOf,
    ClientId,
    RawBodyOf,
    RoundNumber,
    TaskId,
    api_router,
    binary_request,
    binary_response,
    guarded,
    receipt_response,
)
from aggregator_service.uploads.messages import (
    Fetched,
    admit_to_stage_cached,
    already_stored,
    handed_out_cached,
    store_message,
)
from protocols.messages import UploadReceipt
from protocols.messages.stages import OCTETS, STAGE_TYPES, StageMessage, handout_type
from protocols.task_terms import ROUND_BINDING

router = api_router("/v1/tasks/{task}/rounds/{number}", tag="stages")

StageName = Annotated[StageMessage, Path(description="Kind of message.", examples=["advertise"])]
_REFUSALS: Final = ("contribution-conflict", "length-required", "not-in-cohort", "round-closed")


@router.put(
    "/stages/{stage}/{client}",
    status_code=201,
    summary="Send the message of a stage",
    response_model=UploadReceipt,
    openapi_extra=binary_request(
        "The message, of exactly the length that the stage and the roster determine.",
        *(OCTETS, *STAGE_TYPES.values()),
        optional={"Round-Binding": "Advertisements: what they are bound to, for the text of a refusal."},
    ),
    responses={
        201: {"description": "The message is stored durably."},
        200: {"model": UploadReceipt, "description": "The same message was stored before."},
        **guarded("bad-contribution", "body-too-short", *_REFUSALS),
    },
)
async def put(
    request: Request,
    raw: RawBodyOf,
    task: TaskId,
    number: RoundNumber,
    stage: StageName,
    client: ClientId,
) -> Response:
    """Send the message of a stage. Idempotent: the same bytes get the same receipt, other bytes a conflict."""
    services = raw.services
    admission = await admit_to_stage_cached(services, raw.principal, task, number, stage, client)
    check_media_type(request, STAGE_TYPES[stage])
    _, digest = raw.announced()
    if admission.stored is not None:
        return receipt_response(already_stored(admission, admission.stored, digest))
    body = await raw.receive(exact=admission.length)
    binding = request.headers.get(ROUND_BINDING, "")
    return receipt_response(await store_message(services, admission, body, digest, binding))


def _add_route(kind: Fetched, summary: str, body: str, text: str) -> None:
    """Add the route of what clients fetch in a masked round. summary, body, text: for the OpenAPI document."""

    async def fetch(task: TaskId, number: RoundNumber, answer: AnswerOf) -> Response:
        body, digest = await handed_out_cached(answer.services, answer.principal, task, number, kind)
        return answer.bytes(body, digest, handout_type(kind))

    described = binary_response(body, "not-in-cohort", media_type=handout_type(kind))
    router.add_api_route(f"/{kind}", fetch, name=kind, summary=summary, description=text, **described)


_add_route(
    "roster",
    "Fetch the roster",
    "The clients that take part, with their keys.",
    "Return the roster to the clients in it, from the state sharing on. All clients get the same bytes.",
)
_add_route(
    "inbox",
    "Fetch the neighbours' shares",
    "The clients that shared, and the shares sealed for this client.",
    "Return the sealed shares for the asking client, if it has shared, from the state collecting on.",
)
