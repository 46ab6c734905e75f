"""Authentication: operators send a bearer token, enrolled clients a bearer token and a signature.

Only hashes of tokens are stored or compared. Every route that needs a token depends on `authenticate`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from aggregator_service.access.principals import (
    Enrolled,
    Operator,
    Principal,
    environment_operator,
    find_principal,
    hash_token,
    member_of,
)
from aggregator_service.access.request_signatures import SIGNED_REQUEST, check_fresh, check_signature
from aggregator_service.http.fields import check_query
from aggregator_service.problems import Problem
from aggregator_service.services import Services, ServicesOf
from protocols.messages import OperatorRole

__all__ = [
    "AdminOnly",
    "Bearer",
    "CommitteeMemberIs",
    "HolderIs",
    "MemberIs",
    "OperatorIs",
    "OperatorOnly",
    "PrincipalOf",
    "ReaderOnly",
    "authenticate",
    "client_address",
    "committee_member",
    "require_operator",
]

_RANKS: Final[tuple[OperatorRole, ...]] = ("read-only", "operator", "admin")

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="An operator token (`hro_...`), or a client's token from its enrolment (`hrc_...`), bound to one task. "
    "A client also signs each request (RFC 9421) with its Ed25519 identity key, in the headers `Signature-Input` and "
    "`Signature`; `docs/http-api.md` lists what it covers.",
)

Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
"""The bearer token of a request; None if the request has none."""


async def authenticate(services: ServicesOf, request: Request, credentials: Bearer) -> Principal:
    """Return the principal that makes a request.

    Raises `Problem`: unauthenticated without a known token; bad-signature, bad-digest or stale-signature if an enrolled
    client has not signed the request, or not recently; too-many-requests. Raises `RequestValidationError` for a query
    that the route does not know, after all others.
    """
    if credentials is None:
        services.limits.failure(client_address(request.scope))
        raise Problem("unauthenticated", "send a token in the header Authorization: Bearer <token>")
    if len(request.headers.getlist("authorization")) > 1:
        services.limits.failure(client_address(request.scope))
        raise Problem("unauthenticated", "the request has more than one Authorization header; send one")
    token_hash = hash_token(credentials.credentials)
    principal = services.task_cache.client(token_hash) or await _load_principal(services, token_hash)
    if principal is None:
        services.limits.failure(client_address(request.scope))
        raise Problem("unauthenticated", "the token is unknown, or a later enrolment has replaced it")
    _verify_request(services, request.scope, principal, token_hash)
    check_query(request)
    return principal


def _verify_request(services: Services, scope: Scope, principal: Principal, token_hash: str) -> None:
    """Check that a request with this token is signed and recent, if `principal` must sign, and count it.

    token_hash: SHA-256 of the principal's token, hex. Raises `Problem`: bad-signature, bad-digest, too-many-requests,
    stale-signature. A bad signature counts as a failed attempt of the sender's address.
    """
    created = None
    if isinstance(principal, Enrolled) and services.settings.signatures == "required":
        try:
            public = services.settings.public_authorities
            created, signed = check_signature(scope, principal.client_id, principal.identity_key, public)
            scope[SIGNED_REQUEST] = signed
        except Problem:
            services.limits.failure(client_address(scope))
            raise
    if isinstance(principal, Enrolled) and principal.role == "member":
        services.limits.client(principal.client_id)
    else:
        services.limits.operator(token_hash)
    if created is not None:  # after the count: the client did sign this request, even if it is an old recording
        check_fresh(created, services.clock.now(), services.settings.signature_window)


def client_address(scope: Scope) -> str:
    """Return the IP address that a request comes from, "" if unknown.

    It is the address that a proxy names if uvicorn trusts that proxy.
    """
    client = scope.get("client")
    return "" if client is None else client[0]


async def _load_principal(services: Services, token_hash: str) -> Principal | None:
    """Read from the database whose token this is, and cache a client.

    token_hash: SHA-256 of the token, hex. Returns None if the token is unknown. Raises `Problem` unauthenticated if an
    operator's token has expired.
    """
    environment = environment_operator(services.operator_token_hash, token_hash)
    if environment is not None:
        return environment
    mark = services.task_cache.mark()
    found = await run_in_threadpool(_find, services, token_hash)
    if isinstance(found, tuple):
        client, version = found
        services.task_cache.remember(mark, token_hash, client, version)
        return client
    return found


def _find(services: Services, token_hash: str) -> tuple[Enrolled, int] | Operator | None:
    with services.database.read() as session:
        return find_principal(session, token_hash, services.clock.now())


PrincipalOf = Annotated[Principal, Depends(authenticate)]
"""The principal that makes the request."""


def require_operator(principal: Principal, least: OperatorRole) -> Operator:
    """Return `principal` if it is an operator whose role is at least `least`; otherwise raise `Problem` forbidden."""
    if not isinstance(principal, Operator):
        raise Problem("forbidden", "this request needs an operator's token")
    if _RANKS.index(principal.role) < _RANKS.index(least):
        raise Problem("forbidden", f"this request needs an operator's token with the role {least} or higher")
    return principal


def _require_role(least: OperatorRole) -> Any:
    async def operator(principal: PrincipalOf) -> Operator:
        return require_operator(principal, least)

    return Depends(operator)


ReaderOnly, OperatorOnly, AdminOnly = _require_role("read-only"), _require_role("operator"), _require_role("admin")
"""Dependencies of routes for operators: with any role, with at least the role operator, with the role admin."""

OperatorIs = Annotated[Operator, OperatorOnly]
"""The operator who acts, for routes that record the name."""


async def _require_member(principal: PrincipalOf, request: Request) -> Enrolled:
    return member_of(principal, request.path_params["task"])


MemberIs = Annotated[Enrolled, Depends(_require_member)]
"""The caller, a client of the task that the path names: checked before the body."""


async def _require_holder(member: MemberIs) -> Enrolled:
    if member.role != "holder":
        raise Problem("forbidden", "only the key holder may do this")
    return member


HolderIs = Annotated[Enrolled, Depends(_require_holder)]
"""The caller, the key holder of the task that the path names: checked before the body."""


def committee_member(member: Enrolled) -> Enrolled:
    """Return `member` if it is in the committee of its task; otherwise raise `Problem` forbidden."""
    if member.role != "committee":
        raise Problem("forbidden", "only members of the committee may do this")
    return member


async def _require_committee(member: MemberIs) -> Enrolled:
    return committee_member(member)


CommitteeMemberIs = Annotated[Enrolled, Depends(_require_committee)]
"""The caller, in the committee of the task that the path names: checked before the body."""
