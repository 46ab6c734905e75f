"""What all calls of the HTTP API share: address, token, signer, and requests with typed answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from re import fullmatch
from typing import Final, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ValidationError

from client_sdk.api.environment import is_loopback
from client_sdk.api.retry import RetryPolicy, send
from client_sdk.api.upload import DEFAULT_CHUNK_BYTES
from client_sdk.api.wire import (
    LONGEST_JSON,
    Method,
    Program,
    Request,
    Response,
    ServerTime,
    Signer,
    Sink,
    content_digest,
)
from client_sdk.errors import ContractBroken, DigestMismatch, NotFound
from protocols.crypto.http_signature import parse_digest
from protocols.errors import CodecError, ParameterError
from protocols.messages.stages import OCTETS
from protocols.parameter_text import fault_text

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
LONGEST_WAIT: Final = 30.0
"""Longest `wait` of a long poll that the API accepts, in seconds."""
LONGEST_ENTRY: Final = 4096
"""Longest entry of a page (a round, a sum, a member, an invitation), in bytes."""


@dataclass(frozen=True, repr=False)
class ApiRequests:
    """The requests of one client or operator. Each call returns a program; see `client_sdk.api.wire`.

    Calls raise the `ApiError` of the problem document, `ContractBroken` for an answer that the API does not allow,
    `ConnectionFailed` without an answer, and `GaveUp` after the last retry.
    """

    url: str
    """Address of the server."""
    token: str | None = None
    """Bearer token; None before enrolment."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """When a failed request is repeated."""
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    """Contributions longer than this are uploaded in chunks."""
    signer: Signer | None = None
    """Signs the requests of an enrolled client; None for operators."""
    time: ServerTime = field(default_factory=ServerTime)
    """The server's clock, shared with every `signer` made by `enrolled`."""
    allow_http: bool = False
    """Whether `url` may begin with http:// when its host is not this machine; `ParameterError` otherwise."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", base_url(self.url))
        if not self.allow_http:
            require_encryption(self.url)
        if self.token is not None:
            check_secret(self.token, "token or code")
        if self.chunk_bytes < 1:
            raise ParameterError(f"chunk_bytes must be at least 1, got {self.chunk_bytes}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def enrolled(self, client_id: str, token: str, key: Ed25519PrivateKey) -> Self:
        """Return the calls of an enrolled client, with its `token` and signed with its Ed25519 `key`."""
        return replace(self, token=token, signer=Signer(client_id, key, self.time))

    def _authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def _request(
        self,
        method: Method,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        wait: float = 0.0,
        max_bytes: int = LONGEST_JSON,
        sink: Sink | None = None,
        query: Mapping[str, str | int | None] | None = None,
    ) -> Request:
        """Return a request; wait: seconds of a long poll. The values of `query` that are not None are in its URL."""
        all_headers = {**self._authorization(), **(headers or {})}
        asked = {**(query or {}), "wait": long_poll(wait)}
        given = {name: value for name, value in asked.items() if value is not None}
        url = f"{self.url}{path}?{urlencode(given)}" if given else self.url + path
        return Request(method, url, all_headers, body, wait, self.signer, max_bytes, sink)

    def _get(
        self, path: str, model: type[M], wait: float = 0.0, max_bytes: int = LONGEST_JSON, **query: str | int | None
    ) -> Program[M]:
        return self._answer(self._request("GET", path, wait=wait, max_bytes=max_bytes, query=query), model)

    def _delete(self, path: str, model: type[M]) -> Program[M]:
        return self._answer(self._request("DELETE", path), model)

    def _post(self, path: str, body: BaseModel | None, model: type[M], idempotent: bool = False) -> Program[M]:
        encoded, headers = b"", dict[str, str]()
        if body is not None:
            encoded = body.model_dump_json().encode()
            headers = {"content-type": "application/json", "content-digest": content_digest(encoded)}
        return self._answer(self._request("POST", path, headers, encoded), model, idempotent)

    def _answer(self, request: Request, model: type[M], idempotent: bool | None = None) -> Program[M]:
        response = yield from send(request, self.retry, idempotent)
        return parse_answer(request, response, model)

    def _put(self, path: str, body: bytes, media_type: str = OCTETS) -> Program[Response]:
        headers = {"content-type": media_type, "content-digest": content_digest(body)}
        return send(self._request("PUT", path, headers, body), self.retry)

    def _bytes(
        self, path: str, max_bytes: int, length: int | None = None, digest: str | None = None, wait: float = 0.0
    ) -> Program[bytes]:
        """Download at most `max_bytes`, checked as in `checked_bytes`."""
        request = self._request("GET", path, wait=wait, max_bytes=max_bytes)
        response = yield from send(request, self.retry)
        return checked_bytes(request, response, length, digest)


def or_none(program: Program[T]) -> Program[T | None]:
    """Return the result of `program`, None where the server has no such thing."""
    try:
        return (yield from program)
    except NotFound:
        return None


def check_secret(secret: str, what: str, longest: int | None = None) -> None:
    """Raise `ParameterError`, which does not repeat `secret`, if no server can have given it: a header cannot hold it.

    what: its name for the user, such as invitation. longest: characters that it has at most.
    """
    wrong = None
    if not fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", secret):
        wrong = "has characters that are not ASCII, or spaces around it" if secret.strip() else "is empty"
    elif longest is not None and len(secret) > longest:
        wrong = f"has more than {longest} characters"
    if wrong is not None:
        raise ParameterError(f"the {what} {wrong}: pass it as it was given to you, in full")


def path_of_task(task_id: str, *rest: str | int) -> str:
    """Return the path of a task, or of what `rest` names in it, percent-encoded."""
    return "/".join(["/v1/tasks", quote(task_id, safe=""), *(quote(str(part), safe="") for part in rest)])


def long_poll(seconds: float) -> float | None:
    """Return the `wait` of a long poll, None for no wait; `ParameterError` for one that the API does not accept."""
    if not 0.0 <= seconds <= LONGEST_WAIT:
        raise ParameterError(f"a long poll must wait 0 to {LONGEST_WAIT:g} seconds, got {seconds}")
    return seconds or None


# --- checks of the address of a server or an organiser, before anything is sent to it --------------------------------


def base_url(url: str) -> str:
    """Return `url` without a trailing slash; `ParameterError` unless it is http(s) without credentials and query."""
    form = "the server's address must have the form https://host[:port][/path]"
    try:
        parts = urlsplit(url)
    except ValueError:  # such as a bracket without its pair
        raise ParameterError(form) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or fullmatch(r"\S+", url) is None:
        raise ParameterError(form)
    try:
        in_range = parts.port != 0
    except ValueError:
        in_range = False
    if not in_range:
        raise ParameterError("the port of the server's address must be a number from 1 to 65535")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ParameterError(
            "the server's address names no possible host: a part between dots is empty or too long"
        ) from None
    if parts.username is not None or parts.password is not None:
        raise ParameterError("the server's address must not contain credentials; pass the token separately")
    if parts.query or parts.fragment:
        raise ParameterError("the server's address must not contain a query or a fragment")
    return url.rstrip("/")


def require_encryption(url: str) -> None:
    """Raise `ParameterError` if `url` begins with http:// and its host is not this machine."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ParameterError(
            f"{parts.scheme}://{parts.netloc} is not encrypted: anyone on the way could read tokens and contributions. "
            "Use https://, or, on a network that you trust, --allow-http or ClientOptions(allow_http=True)"
        )


# --- checks of the answers of the API: JSON against its message class, bytes against length and digests --------------


def parse_answer(request: Request, response: Response, model: type[M]) -> M:
    """Return the JSON body as a `model`; raise `ContractBroken` if it is not a valid one."""
    try:
        return model.model_validate_json(response.body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        fault = f"{where}: {fault_text(first)}"
        detail = f"the answer is not a valid {model.__name__} ({fault}); check the server's version"
        raise ContractBroken(request.method, request.url, response.status, detail) from None


def checked_bytes(request: Request, response: Response, length: int | None, digest: str | None) -> bytes:
    """Return the body; raise `ContractBroken` or `DigestMismatch` unless it has the given length and digests.

    digest: in hex, lower case, as every message announces it; None for what is announced without one.
    """
    where = (request.method, request.url, response.status)
    if length is not None and len(response.body) != length:
        raise ContractBroken(*where, f"expected {length} bytes, got {len(response.body)}")
    try:
        carried = parse_digest(response.headers.get("content-digest", ""))
    except CodecError as error:
        raise ContractBroken(*where, str(error)) from error
    if carried is None and digest is None:
        raise ContractBroken(*where, "the download has no sha-256 digest")
    found = hashlib.sha256(response.body).digest()
    if carried is not None and found != carried:
        raise DigestMismatch(*where, "the body does not match its Content-Digest")
    if digest is not None and found.hex() != digest:
        raise DigestMismatch(*where, "the body does not match the announced digest")
    return response.body
