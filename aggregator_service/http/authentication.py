"""Who asks: operators by bearer token, enrolled clients by bearer token and signature. Only hashes of tokens are stored
or compared.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, cast

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.principals import Enrolled, Operator, Principal
from aggregator_service.access.request_signatures import check_fresh, check_signature
from aggregator_service.access.tokens import hash_token, matches
from aggregator_service.problems import Problem
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.schema import ClientRow, OperatorRow, TaskRow
from protocols.messages import OperatorRole, Role

__all__ = [
    "AdminOnly",
    "Bearer",
    "OperatorIs",
    "OperatorOnly",
    "PrincipalOf",
    "ReaderOnly",
    "address_of",
    "authenticate",
    "count_request",
    "member_of",
    "require_operator",
    "task_of",
]

_RANKS: Final[tuple[OperatorRole, ...]] = ("read-only", "operator", "admin")

_CLIENT_WITH: Final = (
    select(
        ClientRow.id,
        ClientRow.task_id,
        ClientRow.role,
        ClientRow.device_group.label("device_group"),
        ClientRow.identity_key,
        ClientRow.token_hash,
        TaskRow.version,
    )
    .join(TaskRow, TaskRow.id == ClientRow.task_id)
    .where(ClientRow.token_hash == bindparam("token_hash"))
)

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="An operator token (`hro_...`), or a client's token from its enrolment (`hrc_...`), bound to one task. "
    "A client also signs each request (RFC 9421) with its Ed25519 identity key, in the headers `Signature-Input` and "
    "`Signature`; `docs/http-api.md` says over what.",
)


Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
"""The token of a request, if it came with one."""


async def authenticate(services: ServicesOf, request: Request, credentials: Bearer) -> Principal:
    """Who asks. 401: unauthenticated for a request without a token that is known, bad-signature and stale-signature for
    one that its client has not signed, or not just now; 429 too-many-requests.
    """
    if credentials is None:
        services.limits.failure(address_of(request))
        raise Problem("unauthenticated", "send a token in the header Authorization: Bearer <token>")
    if len(request.headers.getlist("authorization")) > 1:
        services.limits.failure(address_of(request))
        raise Problem("unauthenticated", "the header Authorization comes twice: which of the two asks?")
    token_hash = hash_token(credentials.credentials)
    found = services.task_cache.client(token_hash) or await load_principal(services, token_hash)
    if found is None:
        services.limits.failure(address_of(request))
        raise Problem("unauthenticated", "the token is not known, or was replaced by a later enrolment")
    signed = _signed_at(services, request, found)
    count_request(services, found, token_hash)
    if signed is not None:  # after the count: it is the client's own request, though it may be a recording
        check_fresh(signed, services.clock.now(), services.settings.signature_window)
    return found


def count_request(services: Services, principal: Principal, token_hash: str) -> None:
    """Against the rate of whoever asks; 429 too-many-requests."""
    if isinstance(principal, Enrolled) and principal.role == "member":
        services.limits.client(principal.client_id)
    else:
        services.limits.operator(token_hash)


def _signed_at(services: Services, request: Request, principal: Principal) -> int | None:
    """When an enrolled client signed the request; None for others, and where signatures are off."""
    if not isinstance(principal, Enrolled) or services.settings.signatures == "off":
        return None
    try:
        return check_signature(request.scope, principal.client_id, principal.identity_key)
    except Problem:
        services.limits.failure(address_of(request))
        raise


def address_of(request: Request) -> str:
    """Where a request comes from: the proxy's word for it where uvicorn trusts the proxy."""
    return "" if request.client is None else request.client.host


async def load_principal(services: Services, token_hash: str) -> Principal | None:
    """Whose token this is, by the database; a client is remembered."""
    if services.operator_token_hash is not None and matches(token_hash, services.operator_token_hash):
        return Operator("environment", "admin")
    mark = services.task_cache.mark()
    found = await run_in_threadpool(_find, services, token_hash)
    if isinstance(found, tuple):
        client, version = found
        services.task_cache.remember(mark, token_hash, client, version)
        return client
    return found


def _find(services: Services, token_hash: str) -> tuple[Enrolled, int] | Operator | None:
    """A client and the version of its task, or an operator."""
    with services.database.read() as session:
        found = session.execute(_CLIENT_WITH, {"token_hash": token_hash}).one_or_none()
        if found is not None and matches(token_hash, found.token_hash):
            role: Role = "holder" if found.role == "holder" else "member"
            return Enrolled(found.id, found.task_id, role, found.device_group, found.identity_key), found.version
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
    async def operator(principal: PrincipalOf) -> Operator:
        return require_operator(principal, least)

    return Depends(operator)


ReaderOnly, OperatorOnly, AdminOnly = _at_least("read-only"), _at_least("operator"), _at_least("admin")
"""What a route depends on that is for operators: of any role, those who may act, those who hand out tokens."""

OperatorIs = Annotated[Operator, OperatorOnly]
"""Who acts, for routes that write it down."""


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
