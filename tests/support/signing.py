"""Signed requests for raw httpx clients: whoever enrolled through `signed_enrolment` signs, nobody else does.

A client of httpx that has `SIGNED` as its auth learns the token of each enrolment that it sends, and signs what goes
out with such a token, whatever test sends it. A request that carries a signature already is left as it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from typing import Final

import httpx
import httpx2
import requests
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk.api.effects import content_digest
from protocols.codec import b64encode
from protocols.crypto.http_signature import SIGNATURE_INPUT, SIGNED_FIELDS, SignedRequest, sign_request
from protocols.errors import SignatureError

__all__ = [
    "SIGNED",
    "UNSIGNED",
    "Signatures",
    "enrolled_as",
    "know",
    "know_identity",
    "raw_head",
    "sign_prepared",
    "signature_of",
]

_IDENTITIES: Final[dict[str, Ed25519PrivateKey]] = {}
_TOKENS: Final[dict[str, tuple[str, Ed25519PrivateKey]]] = {}
UNSIGNED: Final = {SIGNATURE_INPUT: ""}
"""Headers of a request that shall go out without a signature."""


def know_identity(key: Ed25519PrivateKey) -> None:
    """Sign for whoever enrols this identity key."""
    _IDENTITIES[b64encode(key.public_key().public_bytes_raw())] = key


def know(token: str, client_id: str, key: Ed25519PrivateKey) -> None:
    """Sign what goes out with this token."""
    _TOKENS[token] = client_id, key


def enrolled_as(token: str) -> tuple[str, str, Ed25519PrivateKey]:
    """Client id, token and key of whoever has this token: what `ApiCalls.enrolled` takes."""
    client_id, key = _TOKENS[token]
    return client_id, token, key


def signature_of(
    request: httpx.Request, client_id: str, key: Ed25519PrivateKey, created: int | None = None
) -> dict[str, str]:
    """The two headers that sign a request as it is; created: seconds since the epoch, now by default."""
    path, _, query = request.url.raw_path.decode("ascii").partition("?")
    fields = {name: request.headers[name] for name in SIGNED_FIELDS if name in request.headers}
    signed = SignedRequest(request.method, path, query, fields)
    return sign_request(key, client_id, signed, round(time.time()) if created is None else created)


def raw_head(method: str, path: str, token: str, *lines: str) -> bytes:
    """The head of a signed request, to be sent over a socket; lines: its other headers."""
    headers = [line.partition(": ") for line in lines]
    request = httpx.Request(method, f"http://test{path}", headers={name: value for name, _, value in headers})
    signed = [f"{name}: {value}" for name, value in signature_of(request, *_TOKENS[token]).items()]
    fixed = [f"{method} {path} HTTP/1.1", "Host: test", f"Authorization: Bearer {token}"]
    return "\r\n".join([*fixed, *lines, *signed, "", ""]).encode()


def sign_prepared(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """What clients of requests (schemathesis) are given as their auth. What cannot be signed goes out as it is."""
    known = _TOKENS.get(str(request.headers.get("Authorization", "")).removeprefix("Bearer "))
    path, _, query = request.path_url.partition("?")
    given = {name.lower(): str(value) for name, value in request.headers.items()}
    if known is None or SIGNATURE_INPUT in given:
        return request
    if given.get("content-type") == "application/json" and request.body and "content-digest" not in given:
        body = request.body if isinstance(request.body, bytes) else str(request.body).encode()
        given["content-digest"] = request.headers["Content-Digest"] = content_digest(body)
    fields = {name: given[name] for name in SIGNED_FIELDS if name in given}
    with suppress(SignatureError):
        client_id, key = known
        signed = SignedRequest(str(request.method), path, query, fields)
        request.headers.update(sign_request(key, client_id, signed, round(time.time())))
    return request


class Signatures(httpx.Auth, httpx2.Auth):
    """now: the server's time, where a test moves its clock."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Sign, send, and look at what an enrolment was answered."""
        self._sign(request)
        response = yield request
        if _is_enrolment(request, response):
            response.read()
            _learn(request, response)

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """As `sync_auth_flow`."""
        self._sign(request)
        response = yield request
        if _is_enrolment(request, response):
            await response.aread()
            _learn(request, response)

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
"""What raw clients of httpx are given as their auth."""


def _is_enrolment(request: httpx.Request, response: httpx.Response) -> bool:
    return request.method == "POST" and request.url.path.endswith("/v1/enrolments") and response.is_success


def _learn(request: httpx.Request, response: httpx.Response) -> None:
    sent, got = json.loads(request.content), response.json()
    key = _IDENTITIES.get(sent["identity_key"])
    if key is not None:
        know(got["token"], got["client_id"], key)
