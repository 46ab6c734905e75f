"""Metrics for Prometheus."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from aggregator_service.http.authentication import Bearer, authenticate, require_operator
from aggregator_service.http.queries import QueryChecked
from aggregator_service.observability.metrics import MEDIA_TYPE
from aggregator_service.problems import Problem
from aggregator_service.routes.bodies import api_router
from aggregator_service.routes.common import guarded
from aggregator_service.services import ServicesOf

__all__ = ["router"]

router = api_router(tag="health", dependencies=[QueryChecked])


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
