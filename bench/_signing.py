"""Signatures of requests by an enrolled client, for benchmarks that call the server without the SDK."""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.crypto.http_signature import SIGNED_FIELDS, SignedRequest, format_authority, sign_request

__all__ = ["signature_of"]


def signature_of(
    key: Ed25519PrivateKey, client_id: str, method: str, url: str, headers: Mapping[str, str]
) -> dict[str, str]:
    """The two signature headers of a request, created now.

    headers: the request's other headers, in any case.
    """
    parts = urlsplit(url)
    authority = format_authority(parts.scheme, str(parts.hostname), parts.port)
    given = {name.lower(): value for name, value in headers.items()}
    fields = {name: given[name] for name in SIGNED_FIELDS if name in given}
    return sign_request(
        key, client_id, SignedRequest(method, authority, parts.path, parts.query, fields), round(time.time())
    )
