"""Who asks: operators and enrolled clients, by bearer token. Only hashes of tokens are stored or compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, cast

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.schema import ClientRow, OperatorRow, TaskRow
from aggregator_service.tokens import hash_token, matches
from protocols.messages import OperatorRole, Role

__all__ = [
    "AdminOnly",
    "Bearer",
    "Enrolled",
    "Operator",
    "OperatorOnly",
    "Principal",
    "PrincipalOf",
    "ReaderOnly",
    "address_of",
    "authenticate",
    "member_of",
    "require_operator",
    "task_of",
]

_RANKS: Final[tuple[OperatorRole, ...]] = ("read-only", "operator", "admin")

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="An operator token (`hro_...`), or a client's token from its enrolment (`hrc_...`), bound to one task.",
)


Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
"""The token of a request, if it came with one."""


@dataclass(frozen=True)
class Operator:
    """Somebody who runs the aggregator; `name` is the token's."""

    name: str
    role: OperatorRole


@dataclass(frozen=True)
class Enrolled:
    """A client of one task."""

    client_id: str
    task_id: str
    role: Role
    group: int = 0


Principal = Operator | Enrolled


def authenticate(services: ServicesOf, request: Request, credentials: Bearer) -> Principal:
    """Who asks; 401 unauthenticated for a request without a token that is known, 429 too-many-requests."""
    if credentials is None:
        services.limits.failure(address_of(request))
        raise Problem("unauthenticated", "send a token in the header Authorization: Bearer <token>")
    token_hash = hash_token(credentials.credentials)
    found = _find(services, token_hash)
    if found is None:
        services.limits.failure(address_of(request))
        raise Problem("unauthenticated", "the token is not known, or was replaced by a later enrolment")
    if isinstance(found, Enrolled) and found.role == "member":
        services.limits.client(found.client_id)
    else:
        services.limits.operator(token_hash)
    return found


def address_of(request: Request) -> str:
    """Where a request comes from: the proxy's word for it where uvicorn trusts the proxy."""
    return "" if request.client is None else request.client.host


def _find(services: Services, token_hash: str) -> Principal | None:
    if services.operator_token_hash is not None and matches(token_hash, services.operator_token_hash):
        return Operator("environment", "admin")
    with services.database.read() as session:
        client = session.scalars(select(ClientRow).where(ClientRow.token_hash == token_hash)).one_or_none()
        if client is not None and matches(token_hash, client.token_hash):
            role: Role = "holder" if client.role == "holder" else "member"
            return Enrolled(client.id, client.task_id, role, client.group)
        operator = session.scalars(select(OperatorRow).where(OperatorRow.token_hash == token_hash)).one_or_none()
        if operator is None or not matches(token_hash, operator.token_hash):
            return None
        if operator.expires_at is not None and operator.expires_at <= services.clock.now():
            raise Problem("unauthenticated", "the token has expired; an admin can rotate it")
        return Operator(operator.name, cast(OperatorRole, operator.role))


PrincipalOf = Annotated[Principal, Depends(authenticate)]


def require_operator(principal: Principal, least: OperatorRole) -> Operator:
    """The operator who asks; 403 forbidden for clients, and for operators whose role is below `least`."""
    if not isinstance(principal, Operator):
        raise Problem("forbidden", "this needs an operator's token")
    if _RANKS.index(principal.role) < _RANKS.index(least):
        raise Problem("forbidden", f"this needs an operator's token with the role {least}")
    return principal


def _at_least(least: OperatorRole) -> Any:
    def operator(principal: PrincipalOf) -> Operator:
        return require_operator(principal, least)

    return Depends(operator)


ReaderOnly, OperatorOnly, AdminOnly = _at_least("read-only"), _at_least("operator"), _at_least("admin")
"""What a route depends on that is for operators: of any role, those who may act, those who hand out tokens."""


def task_of(session: Session, principal: Principal, task_id: str) -> TaskRow:
    """The task, if there is one that this principal may see; another task's token learns nothing more than that."""
    task = session.get(TaskRow, task_id)
    if task is None or (isinstance(principal, Enrolled) and principal.task_id != task_id):
        raise Problem("not-found", "there is no such task")
    return task


def member_of(principal: Principal, task_id: str, client_id: str | None = None) -> Enrolled:
    """The client that asks: of this task (else 404) and, when the path names one, this very client (else 403)."""
    if not isinstance(principal, Enrolled):
        raise Problem("forbidden", "this needs a client's token")
    if principal.task_id != task_id:
        raise Problem("not-found", "there is no such task")
    if client_id is not None and principal.client_id != client_id:
        raise Problem("forbidden", "the token belongs to another client")
    return principal
