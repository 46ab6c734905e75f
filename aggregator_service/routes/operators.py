"""Operators' tokens, for admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from aggregator_service.access.operator_tokens import create_operator, list_operators, revoke_operator, rotate_operator
from aggregator_service.http.authentication import AdminOnly
from aggregator_service.routes.common import guarded
from aggregator_service.services import ServicesOf
from protocols.messages import OperatorPage, OperatorRequest, OperatorToken, OperatorView

__all__ = ["router"]

router = APIRouter(prefix="/v1/operators", tags=["operators"], dependencies=[AdminOnly])

OperatorName = Annotated[str, Path(description="Name of the token.", max_length=63, examples=["grafana"])]


@router.post(
    "",
    status_code=201,
    summary="Make an operator's token",
    responses=guarded("bad-request", "conflict", "body-too-long", "upload-timeout"),
)
def create(services: ServicesOf, request: OperatorRequest) -> OperatorToken:
    """A named token with a role and, if wanted, an end. It is shown once; the server keeps a hash."""
    with services.database.write() as session:
        return create_operator(session, request, services.clock.now())


@router.get("", summary="List operators' tokens", responses=guarded())
def list_all(services: ServicesOf) -> OperatorPage:
    """Names, roles and ages; no token."""
    with services.database.read() as session:
        return list_operators(session, services.clock.now())


@router.post("/{name}/rotation", summary="Rotate an operator's token", responses=guarded())
def rotate(services: ServicesOf, name: OperatorName) -> OperatorToken:
    """Another token under the same name and role, good for as long as the old one was at first, which is void."""
    with services.database.write() as session:
        return rotate_operator(session, name, services.clock.now())


@router.delete("/{name}", summary="Revoke an operator's token", responses=guarded())
def revoke(services: ServicesOf, name: OperatorName) -> OperatorView:
    """It is void at once."""
    with services.database.write() as session:
        return revoke_operator(session, name, services.clock.now())
