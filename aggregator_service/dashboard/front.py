"""`/`: what this server is, as a page for people and as links for programs."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from aggregator_service.dashboard.pages import page
from aggregator_service.routes.bodies import CheckedRoute
from aggregator_service.services import ServicesOf

__all__ = ["router"]

router = APIRouter(include_in_schema=False, route_class=CheckedRoute)


@router.get("/")
def front(services: ServicesOf, request: Request) -> Response:
    """Return a page where the request accepts HTML, otherwise JSON with the paths of the API and the dashboard."""
    vary = {"Vary": "Accept"}
    if "text/html" in request.headers.get("accept", ""):
        answer: Response = page(request, "front", services.clock.now(), prefix=str(request.scope.get("root_path", "")))
        answer.headers.update(vary)
        return answer
    prefix = str(request.scope.get("root_path", ""))
    paths = {"openapi": f"{prefix}/openapi.json", "dashboard": f"{prefix}/dashboard", "health": f"{prefix}/healthz"}
    return JSONResponse({"service": "hushrec aggregator", **paths}, headers=vary)
