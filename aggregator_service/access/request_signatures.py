"""Signatures (RFC 9421) of enrolled clients' requests. They prove that the token's client made the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from starlette.types import Scope

from aggregator_service.problems import Problem
from protocols.crypto.http_signature import (
    SIGNATURE,
    SIGNATURE_INPUT,
    SIGNED_FIELDS,
    SignedRequest,
    format_authority,
    verify_request,
)
from protocols.errors import SignatureError

__all__ = [
    "DIGEST_READ",
    "METHOD_SENT",
    "SIGNED_REQUEST",
    "check_fresh",
    "check_signature",
    "own_authorities",
    "signed_request",
]

DIGEST_READ: Final = "hushrec.digest_read"
"""Scope key: the header Content-Digest as it was before the body was read, which the body is checked against."""
METHOD_SENT: Final = "hushrec.method"
"""Scope key: the method that the client sent and signed, where the request is routed as another."""
SIGNED_REQUEST: Final = "hushrec.signed_request"
"""Scope key: the `SignedRequest` whose signature was verified."""
_FIELDS_READ: Final = {name.encode(): name for name in (SIGNATURE_INPUT, SIGNATURE, "host", *SIGNED_FIELDS)}
_UNKNOWN_HOST: Final = (
    "the address of the request is not one of this server's: if clients use it, the server's operator adds it to "
    "HUSHREC_PUBLIC_ORIGINS"
)


def check_signature(
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


def check_fresh(created: int, now: float, window: int) -> None:
    """Raise `Problem` stale-signature if the signature's time `created` is more than `window` seconds from `now`."""
    off = created - round(now)
    if abs(off) <= window:
        return
    raise Problem(
        "stale-signature",
        f"the request was signed {abs(off)} seconds {'after' if off > 0 else 'before'} the server's time; "
        f"at most {window} are allowed; check the client's clock",
        server_time=round(now),
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
    signed: SignedRequest | None = scope.get(SIGNED_REQUEST)
    return signed
