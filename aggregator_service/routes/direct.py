"""The requests that a client sends in every round, which `http.direct_routes` answers past FastAPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from fastapi import APIRouter
from fastapi.routing import APIRoute

from aggregator_service.http.direct_routes import DirectRoute, direct
from aggregator_service.routes import contributions, enrolments, members, rounds, snapshots, stages

__all__ = ["DIRECT_ROUTES", "OPEN_DIRECT_ROUTES"]


def _of(router: APIRouter, *endpoints: Callable[..., Any]) -> list[DirectRoute]:
    routes = [cast(APIRoute, route) for route in router.routes]
    return [direct(route) for route in routes if route.endpoint in endpoints]


DIRECT_ROUTES: Final = (
    *_of(contributions.router, contributions.put, contributions.patch),
    *_of(stages.router, stages.put, stages.roster, stages.inbox, stages.survivors, stages.confirmations),
    *_of(members.router, members.put_envelope, members.get_envelope),
    *_of(rounds.router, rounds.aggregate),
    *_of(snapshots.router, snapshots.fetch),
)
"""Routes that need a bearer token. Each function returns a `Response`."""
OPEN_DIRECT_ROUTES: Final = (direct(enrolments.ENROLMENT, enrolments.create_directly),)
"""Routes that need no token."""
