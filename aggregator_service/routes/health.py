"""Liveness, readiness, and metrics for Prometheus."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from aggregator_service.http.authentication import Bearer, authenticate, require_operator
from aggregator_service.http.fields import QueryChecked
from aggregator_service.observability.metrics import MEDIA_TYPE
from aggregator_service.problems import Problem, responses
from aggregator_service.routes.bodies import api_router
from aggregator_service.routes.common import guarded
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.blobs import BlobsUnavailableError, store_trouble
from aggregator_service.storage.database_causes import database_cause

__all__ = ["router"]

_LOG = logging.getLogger(__name__)
router = api_router(tag="health", dependencies=[QueryChecked])


def _answers(title: str, *slugs: str) -> dict[int | str, dict[str, Any]]:
    """Describe the answers of a route. They need no model: what follows a start is often a request of these routes."""
    schema = {"type": "object", "additionalProperties": {"type": "string"}, "title": title}
    return {200: {"content": {"application/json": {"schema": schema}}}, **responses(*slugs)}


@router.get(
    "/healthz", summary="Is the process alive?", responses=_answers("Response Alive Healthz Get", "internal-error")
)
async def alive() -> JSONResponse:
    """Return ok while the process answers requests."""
    return JSONResponse({"status": "ok"})


@router.get(
    "/readyz",
    summary="Is the server ready?",
    responses=_answers("Response Ready Readyz Get", "unavailable", "internal-error"),
)
async def ready(services: ServicesOf) -> JSONResponse:
    """Check database, blob store and executor without writing anything. 503 names the part that fails.

    A Dask cluster without workers counts as ready, because it may start workers on demand; `executor` then says that
    workers are missing. In the process that drives the rounds, `rounds` says why some cannot go on. Concurrent requests
    share one check, and its result is kept for a second.
    """
    found = await services.readiness.get(lambda: _check(services))
    if isinstance(found, Problem):
        raise found.with_traceback(None)
    return JSONResponse(found)


def _check(services: Services) -> dict[str, str] | Problem:
    try:
        services.database.ping()
    except Exception as error:
        _LOG.error("not ready: %s", database_cause(error))
        return Problem("unavailable", "the database does not answer", headers={"Retry-After": "5"})
    try:
        services.blobs.check()
    except Exception as error:
        _LOG.error("not ready: %s", error if isinstance(error, BlobsUnavailableError) else type(error).__name__)
        return Problem("unavailable", store_trouble(error), headers={"Retry-After": "5"})
    try:
        remark = services.workers.check()
    except Exception as error:
        _LOG.error("not ready: executor check failed: %s", error)
        return Problem("unavailable", "the executor does not work", headers={"Retry-After": "5"})
    remarks = {"executor": remark, "rounds": services.engine.remark}
    return {"status": "ready"} | {name: text for name, text in remarks.items() if text}


@router.get(
    "/metrics",
    summary="Read the metrics",
    response_class=Response,
    responses={
        200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **guarded(),
    },
)
async def read(services: ServicesOf, request: Request, credentials: Bearer) -> Response:
    """Return the metrics. The setting `metrics` decides who may read them: operators, everyone, or nobody (404)."""
    if services.settings.metrics == "off":
        raise Problem("not-found", "metrics are switched off on this server")
    if services.settings.metrics == "token":
        require_operator(await authenticate(services, request, credentials), "read-only")
    text = await run_in_threadpool(services.metrics.text)  # it queries the database
    return Response(text, headers={"Content-Type": MEDIA_TYPE})
