"""The ledger of released sums: all of a task's for operators, its own for each client."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query, Response

from aggregator_service.access.principals import member_of, task_of
from aggregator_service.http.authentication import PrincipalOf, ReaderOnly
from aggregator_service.http.fields import TAGGED, TaggedJson
from aggregator_service.routes.bodies import api_router
from aggregator_service.routes.common import IfNoneMatch, TaskId, guarded
from aggregator_service.services import ServicesOf
from aggregator_service.tasks.ledger import client_ledger, task_ledger
from protocols.messages import LedgerPage

__all__ = ["router"]

router = api_router("/v1/tasks/{task}", tag="ledger")

_LIMIT: Final = 100
After = Annotated[int, Query(description="Return only sums of rounds with a larger number.", ge=0, le=2**31 - 1)]
Limit = Annotated[int, Query(description="Largest number of sums in the page.", ge=1, le=1000)]


@router.get("/ledger", summary="List released sums", dependencies=[ReaderOnly], responses=guarded())
def of_task(
    services: ServicesOf, principal: PrincipalOf, task: TaskId, after: After = 0, limit: Limit = _LIMIT
) -> LedgerPage:
    """Return the released sums in order of rounds, each with the number and the digest of its survivors."""
    with services.database.read() as session:
        return task_ledger(session, task_of(session, principal, task), after, limit)


@router.get(
    "/members/me/ledger",
    summary="List the sums that contain one's data",
    response_model=LedgerPage,
    responses={**TAGGED, **guarded()},
)
def of_client(
    services: ServicesOf,
    principal: PrincipalOf,
    task: TaskId,
    after: After = 0,
    limit: Limit = _LIMIT,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the released sums that include the client's contributions, with the digest of each contribution."""
    member = member_of(principal, task)
    with services.database.read() as session:
        page = client_ledger(session, task_of(session, principal, task), member.client_id, after, limit)
    return TaggedJson(page.model_dump_json().encode()).response(if_none_match)
