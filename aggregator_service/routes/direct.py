"""The requests that a client sends in every round, which `http.direct_routes` answers past FastAPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from fastapi import APIRouter
from fastapi.routing import APIRoute

from aggregator_service.http.direct_routes import DirectRoute, DirectRouter, direct
from aggregator_service.routes import contributions, enrolments, members, rounds, snapshots, stages

__all__ = ["DIRECT_ROUTES"]


def _of(router: APIRouter, *endpoints: Callable[..., Any]) -> list[DirectRoute]:
    routes = [cast(APIRoute, route) for route in router.routes]
    return [direct(route) for route in routes if route.endpoint in endpoints]


DIRECT_ROUTES: Final = DirectRouter(
    (
        *_of(contributions.router, contributions.put, contributions.patch),
        *_of(stages.router, stages.put, stages.roster, stages.inbox, stages.survivors, stages.confirmations),
        *_of(members.router, members.put_envelope, members.get_envelope),
        *_of(rounds.router, rounds.aggregate, rounds.cohort),
        *_of(snapshots.router, snapshots.fetch, snapshots.latest),
    ),
    (direct(enrolments.ENROLMENT, enrolments.create_directly),),
)
"""The enrolment needs no bearer token, all others do."""
