"""Signed requests of enrolled clients: a token says who asks, a signature (RFC 9421) that it was really that client."""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

from aggregator_service.problems import Problem
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SIGNED_FIELDS, SignedRequest, verify_request
from protocols.errors import SignatureError

__all__ = ["check_fresh", "check_signature"]

_READ: Final = {name.encode(): name for name in (SIGNATURE_INPUT, SIGNATURE, *SIGNED_FIELDS)}


def check_signature(scope: Scope, client_id: str, identity_key: bytes) -> int:
    """When the client with this Ed25519 key signed the request, in seconds since the epoch; else 401 bad-signature.

    400 bad-digest for a body without a digest to sign. That the body matches its digest is checked as it arrives.
    """
    try:
        fields, has_body = _fields(scope)
        if SIGNATURE_INPUT not in fields or SIGNATURE not in fields:
            raise SignatureError(
                "clients sign their requests with the key they enrolled: the headers Signature-Input and Signature are "
                "missing"
            )
        if has_body and "content-digest" not in fields:
            raise Problem("bad-digest", "a body needs the header Content-Digest, covered by the signature")
        signed = SignedRequest(scope["method"], _ascii(scope["raw_path"]), _ascii(scope["query_string"]), fields)
        return verify_request(identity_key, client_id, signed, fields[SIGNATURE_INPUT], fields[SIGNATURE])
    except SignatureError as error:
        raise Problem("bad-signature", str(error)) from None


def check_fresh(created: int, now: float, window: int) -> None:
    """401 stale-signature when `created` is over `window` seconds from `now`: a recording, or a clock that is off."""
    off = created - round(now)
    if abs(off) <= window:
        return
    raise Problem(
        "stale-signature",
        f"the request was signed {abs(off)} seconds {'after' if off > 0 else 'before'} the server's time, and "
        f"{window} are allowed: is the client's clock right?",
        server_time=round(now),
        skew_seconds=off,
    )


def _fields(scope: Scope) -> tuple[dict[str, str], bool]:
    """The fields that a signature has to do with, none of which may come twice; and whether there is a body."""
    found: dict[str, str] = {}
    has_body = False
    for name, value in scope["headers"]:
        known = _READ.get(name)
        if known is not None:
            if known in found:
                raise SignatureError(f"the header {known} comes twice")
            found[known] = value.decode("latin-1").strip(" \t")
        elif name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            has_body = True
    return found, has_body


def _ascii(text: bytes) -> str:
    return text.decode("latin-1")  # what is not ASCII is refused where it is signed
