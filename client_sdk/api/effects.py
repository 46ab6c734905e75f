"""What the core yields and receives: requests, pauses and work out, responses in.

A *program* is a generator. It yields a `Request`, a `Pause` or a `Work`, and is sent a `Response`, None or the work's
result; a request that got no answer is thrown into it as `ConnectionFailed`. The drivers in `client_sdk.api.drivers`
are all that differs between the sync and the async SDK.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from client_sdk.api.signing import Signer
from protocols.crypto.digest_fields import format_digest

__all__ = [
    "Effect",
    "Method",
    "Pause",
    "Program",
    "Request",
    "Response",
    "Traffic",
    "Work",
    "content_digest",
    "digest_matches",
    "metered",
    "pause",
    "work",
]

T = TypeVar("T")
Method = Literal["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"]


@dataclass(frozen=True, repr=False)
class Request:
    """One HTTP request. `headers` may hold a token, so it has no repr of them.

    read_seconds: how long to wait for the answer beyond the driver's own timeout (long polls). signer: who signs it
    whenever it is sent, so that a later try carries its own time; None where the server asks for no signature.
    """

    method: Method
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    read_seconds: float = 0.0
    signer: Signer | None = None

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.url} {len(self.body)} bytes>"


@dataclass(frozen=True, repr=False)
class Response:
    """One HTTP answer, its body read to the end; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def __repr__(self) -> str:
        return f"<Response {self.status} {len(self.body)} bytes>"


@dataclass(frozen=True)
class Pause:
    """Wait for `seconds`."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """Heavy computation: the async driver runs it in a thread, so that the event loop stays free."""

    call: Callable[[], Any]


Effect = Request | Pause | Work
Program = Generator[Effect, Any, T]
"""What every call of the core is; `T` is what it returns."""


def pause(seconds: float) -> Program[None]:
    """A program that only waits."""
    yield Pause(seconds)


def work(call: Callable[[], T]) -> Program[T]:
    """A program that only computes."""
    return cast(T, (yield Work(call)))


def content_digest(body: bytes | memoryview) -> str:
    """The value of a Content-Digest or Repr-Digest field (RFC 9530): sha-256 as a structured-field byte sequence."""
    return format_digest(hashlib.sha256(body).digest())


def digest_matches(body: bytes, expected: bytes) -> bool:
    """Whether sha-256 of `body` is `expected`, compared in constant time."""
    return hmac.compare_digest(hashlib.sha256(body).digest(), expected)


@dataclass
class Traffic:
    """Bytes of bodies, as they were sent and received; headers are not counted. Failed tries are."""

    up: int = 0
    down: int = 0

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(self.up - earlier.up, self.down - earlier.down)

    def copy(self) -> Traffic:
        """The figures as they are now."""
        return Traffic(self.up, self.down)


def metered(program: Program[T], traffic: Traffic) -> Program[T]:
    """`program`, with the bytes of its requests and answers added to `traffic`."""
    try:
        effect = next(program)
        while True:
            if isinstance(effect, Request):
                traffic.up += len(effect.body)
            try:
                reply = yield effect
            except GeneratorExit:
                program.close()
                raise
            except BaseException as error:
                effect = program.throw(error)
                continue
            if isinstance(reply, Response):
                traffic.down += len(reply.body)
            effect = program.send(reply)
    except StopIteration as done:
        return cast(T, done.value)
