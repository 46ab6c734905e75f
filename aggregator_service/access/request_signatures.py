"""Signatures (RFC 9421) of enrolled clients' requests. They prove that the token's client made the request."""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

from aggregator_service.problems import Problem
from protocols.crypto.http_signature import SIGNATURE, SIGNATURE_INPUT, SIGNED_FIELDS, SignedRequest, verify_request
from protocols.errors import SignatureError

__all__ = ["check_fresh", "check_signature"]

_FIELDS_READ: Final = {name.encode(): name for name in (SIGNATURE_INPUT, SIGNATURE, *SIGNED_FIELDS)}


def check_signature(scope: Scope, client_id: str, identity_key: bytes) -> int:
    """Verify the signature of a request and return its time, in seconds since the epoch.

    identity_key: the client's Ed25519 public key, 32 bytes. Raises `Problem`: bad-signature if the signature is missing
    or wrong, bad-digest if there is a body without Content-Digest. That the body matches its digest is checked when it
    is received.
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
        signed = SignedRequest(scope["method"], _text(scope["raw_path"]), _text(scope["query_string"]), fields)
        return verify_request(identity_key, client_id, signed, fields[SIGNATURE_INPUT], fields[SIGNATURE])
    except SignatureError as error:
        raise Problem("bad-signature", str(error)) from None


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
        elif name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
            has_body = True
    return found, has_body


def _text(text: bytes) -> str:
    return text.decode("latin-1")  # `SignedRequest` refuses characters that are not ASCII
