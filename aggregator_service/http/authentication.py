"""Authentication: operators send a bearer token, enrolled clients a bearer token and a signature (RFC 9421).

Only hashes of tokens are stored or compared. Every route that needs a token depends on `authenticate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from aggregator_service.access.audit_trail import Actor
from aggregator_service.access.principals import (
    Enrolled,
    Operator,
    Principal,
    environment_operator,
    find_client,
    find_operator,
    hash_token,
    member_of,
)
from aggregator_service.http.fields import check_query
from aggregator_service.observability.requests import PRINCIPAL, client_address
from aggregator_service.problems import Problem
from aggregator_service.services import Services, ServicesOf, services_of
from protocols.crypto.http_signature import (
    SIGNATURE,
    SIGNATURE_INPUT,
    SIGNED_FIELDS,
    SignedRequest,
    format_authority,
    verify_request,
)
from protocols.errors import SignatureError
from protocols.messages import OperatorRole

DIGEST_READ: Final = "hushrec.digest_read"
"""Scope key: the header Content-Digest as it was before the body was read, which the body is checked against."""
METHOD_SENT: Final = "hushrec.method"
"""Scope key: the method that the client sent and signed, where the request is routed as another."""
_SIGNED_REQUEST: Final = "hushrec.signed_request"
"""Scope key: the `SignedRequest` whose signature was verified."""
_AUTHENTICATED: Final = "hushrec.authenticated"
"""Scope key: the `Principal`, once the whole request was found to be its own."""
_FIELDS_READ: Final = {name.encode(): name for name in (SIGNATURE_INPUT, SIGNATURE, "host", *SIGNED_FIELDS)}
_UNKNOWN_HOST: Final = (
    "the address of the request is not one of this server's: if clients use it, the server's operator adds it to "
    "HUSHREC_PUBLIC_ORIGINS"
)
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


async def authenticate(request: Request) -> Principal:
    """Return the principal that makes a request.

    Raises `Problem`: unauthenticated without a known token; bad-signature, bad-digest or stale-signature if an enrolled
    client has not signed the request, or not recently; too-many-requests; unavailable if an enrolled client makes the
    request and the clock of this server is wrong. Raises `RequestValidationError` for a query
    that the route does not know, after all others.
    """
    known: Principal | None = request.scope.get(_AUTHENTICATED)
    if known is not None:  # another dependency of the route has asked
        return known
    services, credentials = services_of(request), await _bearer(request)
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
        raise Problem(
            "unauthenticated", "the token is unknown, a later enrolment has replaced it, or the membership was revoked"
        )
    request.scope[PRINCIPAL] = principal
    if isinstance(principal, Enrolled):
        services.clocks.refuse_too_far()
    _verify_request(services, request.scope, principal, token_hash)
    check_query(request)
    request.scope[_AUTHENTICATED] = principal
    return principal


def _verify_request(services: Services, scope: Scope, principal: Principal, token_hash: str) -> None:
    """Check that a request with this token is signed and recent, if `principal` must sign, and count it.

    token_hash: SHA-256 of the principal's token, hex. Raises `Problem`: bad-signature, bad-digest, stale-signature,
    too-many-requests. A bad or stale signature counts as a failed attempt of the sender's address, and not as a request
    of the client: whoever sends its old requests again does not use up its rate.
    """
    if isinstance(principal, Enrolled) and services.settings.signatures == "required":
        try:
            public = services.settings.public_authorities
            created, signed = _check_signature(scope, principal.client_id, principal.identity_key, public)
            now = round(services.clock.now())
            services.clocks.saw_client(principal.client_id, created - now)
            _check_fresh(created, now, services.settings.signature_window)
            scope[_SIGNED_REQUEST] = signed
        except Problem:
            services.limits.failure(client_address(scope))
            raise
    if isinstance(principal, Enrolled) and principal.role == "member":
        services.limits.client(principal.client_id)
    else:
        services.limits.operator(token_hash)


async def _load_principal(services: Services, token_hash: str) -> Principal | None:
    """Read from the database whose token this is, and cache a client.

    token_hash: SHA-256 of the token, hex. Returns None if the token is unknown. Raises `Problem` unauthenticated if an
    operator's token has expired.
    """
    environment = environment_operator(services.operator_token_hash, token_hash)
    if environment is not None:
        return environment
    start = services.task_cache.read_start()
    found = await services.lookups.run(lambda: find_client(services.database, token_hash))
    if found is None:
        return await run_in_threadpool(_find_operator, services, token_hash)
    client, version = found
    services.task_cache.remember(start, token_hash, client, version)
    return client


def _find_operator(services: Services, token_hash: str) -> Operator | None:
    try:
        with services.database.read() as session:
            return find_operator(session, token_hash, services.clock.now())
    except Problem:  # it has expired
        services.clocks.refuse_too_far()
        raise


# --- signatures (RFC 9421) --------------------------------------------------------------------------------------------


def _check_signature(
    scope: Scope, client_id: str, identity_key: bytes, public: Sequence[str]
) -> tuple[int, SignedRequest]:
    """Verify the signature of a request; return its time, in seconds since the epoch, and what it covers.

    identity_key: the client's Ed25519 public key, 32 bytes. public: see `own_authorities`. Raises `Problem`:
    bad-signature if the signature is missing, wrong or for another server, bad-digest if there is a body without
    Content-Digest. That the body matches its digest is checked when it is received.
    """
    try:
        fields, has_body = _fields(scope)
        if SIGNATURE_INPUT not in fields or SIGNATURE not in fields:
            raise SignatureError(
                "the headers Signature-Input and Signature are missing; sign the request with the enrolled identity key"
            )
        if has_body and "content-digest" not in fields:
            raise Problem(
                "bad-digest", "a request with a body needs the header Content-Digest, covered by the signature"
            )
        if has_body and fields["content-digest"] != scope.get(DIGEST_READ, ""):
            raise Problem("bad-digest", "the header Content-Digest was not there before the body was read")
        return _verify(scope, fields, client_id, identity_key, own_authorities(scope, public))
    except SignatureError as error:
        raise Problem("bad-signature", str(error)) from None


def own_authorities(scope: Scope, public: Sequence[str]) -> Sequence[str]:
    """Return the authorities (`host[:port]`) that requests to this server are signed for.

    public: the authorities of the setting `public_origins`. Without them, the address and port at which this connection
    arrived, and localhost if it is a loopback address. The header Host is not used: its sender chooses it.
    """
    if public:
        return public
    host, port = scope.get("server") or ("", None)
    return () if port is None else _authorities_at(scope["scheme"], host, port)  # None: a Unix socket


@lru_cache(maxsize=64)  # this server's own addresses
def _authorities_at(scheme: str, host: str, port: int) -> Sequence[str]:
    try:
        address = ip_address(host)
    except ValueError:  # not an address: an ASGI server without sockets
        return (format_authority(scheme, host, port),)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    names = (str(address), "localhost") if address.is_loopback else (str(address),)
    return tuple(format_authority(scheme, name, port) for name in names)


def _verify(
    scope: Scope, fields: Mapping[str, str], client_id: str, identity_key: bytes, own: Sequence[str]
) -> tuple[int, SignedRequest]:
    """Verify a signature made for one of the authorities `own`; the one in the header Host is tried first."""
    method, host = scope.get(METHOD_SENT, scope["method"]), fields.get("host", "").lower()
    # `SignedRequest` refuses characters that are not ASCII
    path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    failure = SignatureError("this server has no public address")
    for authority in [host, *[name for name in own if name != host]] if host in own else own:
        signed = SignedRequest(method, authority, path, query, fields)
        try:
            created = verify_request(identity_key, client_id, signed, fields[SIGNATURE_INPUT], fields[SIGNATURE])
            return created, signed
        except SignatureError as error:
            failure = error
    if host not in own:
        raise SignatureError(f"{failure}; {_UNKNOWN_HOST}")
    raise failure


def _check_fresh(created: int, now: int, window: int) -> None:
    """Raise `Problem` stale-signature if the signature's time `created` is more than `window` seconds from `now`."""
    off = created - now
    if abs(off) <= window:
        return
    raise Problem(
        "stale-signature",
        f"the request was signed {abs(off)} seconds {'after' if off > 0 else 'before'} the server's time; "
        f"at most {window} are allowed; check the client's clock",
        server_time=now,
        skew_seconds=off,
    )


def _fields(scope: Scope) -> tuple[dict[str, str], bool]:
    """Return the signature fields and the fields they may cover, by name, and whether the request has a body.

    Raises `SignatureError` if one of these fields comes twice.
    """
    found: dict[str, str] = {}
    has_body = False
    for name, value in scope["headers"]:
        known = _FIELDS_READ.get(name)
        if known is not None:
            if known in found:
                raise SignatureError(f"the request has more than one header {known}")
            found[known] = value.decode("latin-1").strip(" \t")
        elif name == b"content-length" and value != b"0":
            has_body = True
    return found, has_body


def signed_request(scope: Scope) -> SignedRequest | None:
    """Return what the verified signature of a client's request covers; None where signatures are not required."""
    signed: SignedRequest | None = scope.get(_SIGNED_REQUEST)
    return signed


# --- who may use a route ----------------------------------------------------------------------------------------------


Made = TypeVar("Made")


class Authenticated(SecurityBase, Generic[Made]):
    """A dependency that authenticates a request, and returns what `make` makes of it and its principal.

    One dependency in place of two or three: each costs as much time as reading the request's headers.
    """

    def __init__(self, make: Callable[[Request, Principal], Made]) -> None:
        self.model, self.scheme_name, self._make = _bearer.model, _bearer.scheme_name, make

    async def __call__(self, request: Request) -> Made:
        """Raise as `authenticate`, and what `make` raises."""
        return self._make(request, await authenticate(request))


PrincipalOf = Annotated[Principal, Depends(Authenticated(lambda _, principal: principal))]
"""The principal that makes the request."""


def require_operator(principal: Principal, least: OperatorRole) -> Operator:
    """Return `principal` if it is an operator whose role is at least `least`; otherwise raise `Problem` forbidden."""
    if not isinstance(principal, Operator):
        raise Problem("forbidden", "this request needs an operator's token")
    if _RANKS.index(principal.role) < _RANKS.index(least):
        raise Problem("forbidden", f"this request needs an operator's token with the role {least} or higher")
    return principal


def _require_role(least: OperatorRole) -> Any:
    async def operator(services: ServicesOf, principal: PrincipalOf) -> Operator:
        found = require_operator(principal, least)
        if least != "read-only":
            services.clocks.refuse_too_far()  # what the request would store has times
        return found

    return Depends(operator)


ReaderOnly, OperatorOnly, AdminOnly = _require_role("read-only"), _require_role("operator"), _require_role("admin")
"""Dependencies of routes for operators: with any role, with at least the role operator, with the role admin."""


def _acting(least: OperatorRole) -> Any:
    checked = _require_role(least)

    async def actor(services: ServicesOf, request: Request, operator: Operator = checked) -> Actor:
        return Actor(operator.name, "api", client_address(request.scope), services.clock.now())

    return Depends(actor)


ActorOf = Annotated[Actor, _acting("operator")]
"""The operator who acts, with at least the role operator, for the audit trail."""
AdminOf = Annotated[Actor, _acting("admin")]
"""The admin who acts, for the audit trail."""


async def _require_member(principal: PrincipalOf, request: Request) -> Enrolled:
    return member_of(principal, request.path_params["task"])


MemberOf = Annotated[Enrolled, Depends(_require_member)]
"""The caller, a client of the task that the path names: checked before the body."""


async def _require_holder(member: MemberOf) -> Enrolled:
    if member.role != "holder":
        raise Problem("forbidden", "only the key holder may do this")
    return member


HolderOf = Annotated[Enrolled, Depends(_require_holder)]
"""The caller, the key holder of the task that the path names: checked before the body."""


def committee_member(member: Enrolled) -> Enrolled:
    """Return `member` if it is in the committee of its task; otherwise raise `Problem` forbidden."""
    if member.role != "committee":
        raise Problem("forbidden", "only members of the committee may do this")
    return member


async def _require_committee(member: MemberOf) -> Enrolled:
    return committee_member(member)


CommitteeMemberOf = Annotated[Enrolled, Depends(_require_committee)]
"""The caller, in the committee of the task that the path names: checked before the body."""
