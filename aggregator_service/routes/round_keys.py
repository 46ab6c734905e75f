"""The key holder's part of a round: publish the round's key before it opens, and refuse a sum that cannot be right."""

from __future__ import annotations

import logging
from typing import Final

from fastapi import Request
from fastapi.responses import Response
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.principals import Principal
from aggregator_service.http.authentication import HolderIs, PrincipalOf, task_of
from aggregator_service.http.digests import content_digest, content_length
from aggregator_service.http.routing import api_router
from aggregator_service.logs import fields
from aggregator_service.polling.round_views import round_view
from aggregator_service.problems import Problem
from aggregator_service.rounds.decrypting import refuse_sum
from aggregator_service.routes.common import (
    IfNoneMatch,
    RoundNumber,
    TaskId,
    binary_request,
    binary_response,
    bytes_response,
    guarded,
)
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.rounds import find_round
from aggregator_service.storage.schema import ClientRow
from aggregator_service.tasks.round_keys import find_round_key, public_key_bytes, store_round_key
from aggregator_service.uploads.receive import receive_small_body
from protocols.crypto.round_key import round_key_document_bytes
from protocols.messages import RoundView, SumRefusal

__all__ = ["router"]

_LOG: Final = logging.getLogger(__name__)
router = api_router("/v1/tasks/{task}/rounds/{number}", tag="round keys")


@router.put(
    "/key",
    status_code=201,
    summary="Publish a round's key",
    response_class=Response,
    openapi_extra=binary_request("The round's public key, signed by the key holder; the plan gives its length."),
    responses={
        201: {"description": "Published."},
        200: {"description": "The same key was published before."},
        **guarded("bad-digest", "body-too-short", "body-too-long", "conflict", "length-required", "upload-timeout"),
    },
)
async def put_key(
    services: ServicesOf, holder: HolderIs, request: Request, task: TaskId, number: RoundNumber
) -> Response:
    """The key holder publishes the key of one of the next two rounds (ckks in public mode). The first one stands.

    A round opens only when its key is published.
    """
    length = content_length(request, exact=await run_in_threadpool(_document_bytes, services, holder, task))
    digest = content_digest(request)
    document = await receive_small_body(services.settings, request, length, digest)

    def store() -> bool:
        def write(session: Session) -> bool:
            identity_key = session.get_one(ClientRow, holder.client_id).identity_key
            return store_round_key(session, task, number, document, identity_key)

        return services.database.transact(write)

    return Response(status_code=201 if await run_in_threadpool(store) else 200)


@router.get(
    "/key",
    summary="Fetch a round's key",
    response_class=Response,
    responses={
        **binary_response("The round's public key, signed by the key holder."),
        304: {"description": "Not modified."},
        **guarded(),
    },
)
def get_key(
    services: ServicesOf,
    principal: PrincipalOf,
    task: TaskId,
    number: RoundNumber,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the key of a round; 404 before it is published, and when later rounds have replaced it."""
    with services.database.read() as session:
        task_of(session, principal, task)
        row = find_round_key(session, task, number)
        if row is None:
            raise Problem("not-found", "there is no key of this round, or it is no longer kept")
        return bytes_response(row.body, row.digest, if_none_match)


@router.post(
    "/sum-refusal",
    summary="Refuse a sum",
    responses=guarded("bad-request", "body-too-long", "conflict", "upload-timeout"),
)
def refuse_opened(
    services: ServicesOf, holder: HolderIs, task: TaskId, number: RoundNumber, refusal: SumRefusal
) -> RoundView:
    """The key holder refuses to publish what it opened: the round fails, and the task continues. Idempotent.

    409 unless the round is in the state decrypting.
    """

    def write(session: Session) -> RoundView:
        row, found = task_of(session, holder, task), find_round(session, task, number)
        if found is None:
            raise Problem("not-found", "there is no such round")
        now = services.clock.now()
        return round_view(session, row, refuse_sum(session, found.id, refusal.reason, now), holder, now)

    view = services.database.transact(write)
    _LOG.warning("the key holder refused a sum", extra=fields(task=task, round=number))
    return view


def _document_bytes(services: Services, principal: Principal, task_id: str) -> int:
    with services.database.read() as session:
        length = public_key_bytes(task_of(session, principal, task_id))
    if length is None:
        raise Problem("conflict", "this task has no keys of single rounds")
    return round_key_document_bytes(length)
