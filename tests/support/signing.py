"""Signed requests for tests that use httpx directly.

An httpx client with `SIGNED` as its auth records the token of each enrolment that it sends, and signs every later
request with such a token. A request that has a signature already is not changed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from typing import Final

import httpx
import httpx2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk.api.wire import content_digest
from protocols.codec import b64encode
from protocols.crypto.http_signature import (
    SIGNATURE_INPUT,
    SIGNED_FIELDS,
    SignedRequest,
    format_authority,
    sign_request,
)

_IDENTITIES: Final[dict[str, Ed25519PrivateKey]] = {}
_TOKENS: Final[dict[str, tuple[str, Ed25519PrivateKey]]] = {}
UNSIGNED: Final = {SIGNATURE_INPUT: ""}
"""Headers of a request that is to be sent without a signature."""


def know_identity(key: Ed25519PrivateKey) -> None:
    _IDENTITIES[b64encode(key.public_key().public_bytes_raw())] = key


def know(token: str, client_id: str, key: Ed25519PrivateKey) -> None:
    """Record the key that signs the requests with this token."""
    _TOKENS[token] = client_id, key


def enrolled_as(token: str) -> tuple[str, str, Ed25519PrivateKey]:
    """Return the client id, the token and the key for `token`: the arguments of `ApiCalls.enrolled`."""
    client_id, key = _TOKENS[token]
    return client_id, token, key


def signature_of(
    request: httpx.Request, client_id: str, key: Ed25519PrivateKey, created: int | None = None
) -> dict[str, str]:
    """Return the two signature headers of `request`. created: seconds since the epoch; now by default."""
    path, _, query = request.url.raw_path.decode("ascii").partition("?")
    authority = format_authority(request.url.scheme, request.url.raw_host.decode("ascii"), request.url.port)
    fields = {name: request.headers[name] for name in SIGNED_FIELDS if name in request.headers}
    signed = SignedRequest(request.method, authority, path, query, fields)
    return sign_request(key, client_id, signed, round(time.time()) if created is None else created)


def raw_head(url: str, method: str, path: str, token: str, *lines: str) -> bytes:
    """Return the head of a signed request, to be sent over a socket.

    url: the server's. lines: the other header lines.
    """
    headers = [line.partition(": ") for line in lines]
    request = httpx.Request(method, f"{url}{path}", headers={name: value for name, _, value in headers})
    signed = [f"{name}: {value}" for name, value in signature_of(request, *_TOKENS[token]).items()]
    fixed = [f"{method} {path} HTTP/1.1", f"Host: {request.url.netloc.decode()}", f"Authorization: Bearer {token}"]
    return "\r\n".join([*fixed, *lines, *signed, "", ""]).encode()


class Signatures(httpx.Auth, httpx2.Auth):
    """An httpx auth that signs requests. now: the server's time, for tests that move its clock."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Sign and send the request; record the token in the answer to an enrolment."""
        self._sign(request)
        response = yield request
        if request.method == "POST" and request.url.path.endswith("/v1/enrolments") and response.is_success:
            response.read()
            key, got = _IDENTITIES.get(json.loads(request.content)["identity_key"]), response.json()
            if key is not None:
                know(got["token"], got["client_id"], key)

    def _sign(self, request: httpx.Request) -> None:
        known = _TOKENS.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if known is None:
            return
        if SIGNATURE_INPUT in request.headers:
            if not request.headers[SIGNATURE_INPUT]:
                del request.headers[SIGNATURE_INPUT]
            return
        if request.headers.get("content-type") == "application/json" and "content-digest" not in request.headers:
            request.headers["content-digest"] = content_digest(request.read())
        request.headers.update(signature_of(request, *known, round(self._now())))


SIGNED: Final = Signatures()
"""The auth of httpx clients in tests."""
