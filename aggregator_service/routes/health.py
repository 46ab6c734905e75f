"""Whether the process lives, and whether it can work."""

from __future__ import annotations

import logging

from fastapi import APIRouter

from aggregator_service.problems import Problem, responses
from aggregator_service.services import ServicesOf

__all__ = ["router"]

_LOG = logging.getLogger(__name__)
router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Is the process alive?", responses=responses("internal-error"))
async def alive() -> dict[str, str]:
    """Always ok while the event loop turns."""
    return {"status": "ok"}


@router.get("/readyz", summary="Can it work?", responses=responses("unavailable", "internal-error"))
def ready(services: ServicesOf) -> dict[str, str]:
    """Whether database, blob store and executor answer now; nothing is written. 503 names the part that does not work.

    A cluster without workers is ready, for they may come with the work: `executor` says that they are waited for.
    """
    try:
        services.database.ping()
    except Exception as error:
        _LOG.error("not ready: the database fails with %s", type(error).__name__)
        raise Problem("unavailable", "the database does not answer", headers={"Retry-After": "5"}) from None
    try:
        services.blobs.check()
    except Exception as error:
        _LOG.error("not ready: the blob store fails with %s", type(error).__name__)
        raise Problem("unavailable", "the blob store does not work", headers={"Retry-After": "5"}) from None
    try:
        remark = services.workers.check()
    except Exception as error:
        _LOG.error("not ready: the executor fails with %s", error)
        raise Problem("unavailable", "the executor does not work", headers={"Retry-After": "5"}) from None
    return {"status": "ready"} | ({"executor": remark} if remark else {})
