"""The page of the audit trail, and its export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from aggregator_service.access.audit_trail import Wanted, audit_page, newest_entries
from aggregator_service.dashboard.access import HOME, VisitorOf
from aggregator_service.dashboard.pages import PageRoute, page
from aggregator_service.services import ServicesOf
from aggregator_service.storage.database import Database

router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)

_SHOWN: Final = 25
_EXPORTED: Final = 1000
"""Entries that are read from the database at once."""

Name = Annotated[str, Query(max_length=200)]
Outcome = Annotated[Literal["", "done", "refused"], Query()]
Before = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@router.get("/audit")
def audit_trail(
    services: ServicesOf,
    request: Request,
    _visitor: VisitorOf,
    operator: Name = "",
    task: Name = "",
    outcome: Outcome = "",
    before: Before = None,
) -> Response:
    """Show the newest entries, or those before entry `before`."""
    wanted = Wanted(operator.strip(), task.strip(), outcome)
    with services.database.read() as session:
        found = newest_entries(session, wanted, _SHOWN + 1, before)
    older = found[_SHOWN - 1].id if len(found) > _SHOWN else None
    days = services.settings.audit_days
    return page(request, "audit", entries=found[:_SHOWN], wanted=wanted, older=older, newest=before is None, days=days)


@router.get("/audit.jsonl")
def export_trail(
    services: ServicesOf, _visitor: VisitorOf, operator: Name = "", task: Name = "", outcome: Outcome = ""
) -> Response:
    """Return all entries as a file: one JSON object a line, as `hushrec-server audit --json` prints them."""
    headers = {"Content-Disposition": 'attachment; filename="audit.jsonl"', "Cache-Control": "no-store"}
    lines = _lines(services.database, Wanted(operator.strip(), task.strip(), outcome))
    return StreamingResponse(lines, media_type="application/jsonl", headers=headers)


def _lines(database: Database, wanted: Wanted) -> Iterator[str]:
    after: int | None = 0
    while after is not None:
        with database.read() as session:
            found = audit_page(session, wanted, _EXPORTED, after=after)
        yield "".join(f"{entry.model_dump_json()}\n" for entry in found.entries)
        after = found.next
