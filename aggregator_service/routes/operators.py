"""Operators' tokens: create, list, rotate, revoke. Only admins may."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from aggregator_service.access.principals import create_operator, list_operators, revoke_operator, rotate_operator
from aggregator_service.http.authentication import AdminOf, AdminOnly
from aggregator_service.routes.common import api_router, guarded
from aggregator_service.services import ServicesOf
from protocols.messages import OperatorPage, OperatorRequest, OperatorToken, OperatorView

router = api_router("/v1/operators", tag="operators", dependencies=[AdminOnly])

OperatorName = Annotated[str, Path(description="Name of the token.", max_length=63, examples=["grafana"])]


@router.post(
    "",
    status_code=201,
    summary="Create an operator's token",
    responses=guarded("conflict"),
)
def create(services: ServicesOf, actor: AdminOf, request: OperatorRequest) -> OperatorToken:
    """Create a named token with a role and an optional lifetime. It is shown only here; the server keeps its hash."""
    return services.database.transact(lambda session: create_operator(session, request, actor))


@router.get("", summary="List operators' tokens", responses=guarded())
def list_all(services: ServicesOf) -> OperatorPage:
    """Return names, roles, ages and remaining lifetimes, without the tokens."""
    with services.database.read() as session:
        return list_operators(session, services.clock.now())


@router.post("/{name}/rotation", summary="Rotate an operator's token", responses=guarded())
def rotate(services: ServicesOf, actor: AdminOf, name: OperatorName) -> OperatorToken:
    """Replace a token: the new one has the same name, role and full lifetime; the old one is void at once."""
    return services.database.transact(lambda session: rotate_operator(session, name, actor))


@router.delete("/{name}", summary="Revoke an operator's token", responses=guarded())
def revoke(services: ServicesOf, actor: AdminOf, name: OperatorName) -> OperatorView:
    """Revoke a token. It is void at once."""
    return services.database.transact(lambda session: revoke_operator(session, name, actor))
