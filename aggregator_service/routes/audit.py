"""The audit trail of operators' actions and of refused attempts. Any operator may read it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query

from aggregator_service.access.audit_trail import Wanted, audit_page
from aggregator_service.http.authentication import ReaderOnly
from aggregator_service.routes.common import api_router, guarded
from aggregator_service.services import ServicesOf
from protocols.messages import AuditPage

router = api_router("/v1/audit", tag="operators", dependencies=[ReaderOnly])


@router.get("", summary="Show the audit trail", responses=guarded())
def list_all(
    services: ServicesOf,
    after: Annotated[int, Query(description="`next` of the last page.", ge=0, le=2**31 - 1)] = 0,
    limit: Annotated[int, Query(description="Largest number of entries in the page.", ge=1, le=1000)] = 100,
    operator: Annotated[str, Query(description="Return only entries of this operator.", max_length=200)] = "",
    task: Annotated[
        str, Query(description="Return only entries of the task with this name or id.", max_length=63)
    ] = "",
    outcome: Annotated[
        Literal["", "done", "refused"], Query(description="Return only actions, or only refused attempts.")
    ] = "",
) -> AuditPage:
    """Return what operators did and which attempts were refused, oldest first. Reading it leaves no entry."""
    with services.database.read() as session:
        return audit_page(session, Wanted(operator, task, outcome), limit, after=after)
