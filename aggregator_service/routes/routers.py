"""All routes of the HTTP API in the order in which Starlette tries them."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from aggregator_service.routes import (
    certificates,
    committee,
    contributions,
    enrolments,
    health,
    ledger,
    members,
    operators,
    rounds,
    snapshots,
    stages,
    tasks,
)

__all__ = ["API_ROUTERS"]

API_ROUTERS: Final[tuple[APIRouter, ...]] = (
    # the most frequent requests first
    contributions.router,
    rounds.router,
    stages.router,
    committee.router,
    committee.rounds_router,
    snapshots.router,
    members.router,
    certificates.router,
    enrolments.router,
    tasks.router,
    enrolments.invitations_router,
    operators.router,
    ledger.router,
    health.router,
)
"""One router a module of this package."""
