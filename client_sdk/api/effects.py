"""Effects: what a program of the SDK asks its driver to do.

A *program* is a generator. It yields a `Request`, a `Pause` or a `Work`, and receives a `Response`, None or the result
of the work. The driver throws `ConnectionFailed` into it when a request gets no answer. The sync and the async SDK run
the same programs and differ only in the driver (`client_sdk.api.drivers`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeVar, cast

from client_sdk.api.signing import Signer
from protocols.crypto.digest_fields import format_digest

__all__ = [
    "LONGEST_JSON",
    "Effect",
    "Method",
    "Pause",
    "Program",
    "Request",
    "Response",
    "Sink",
    "Traffic",
    "Work",
    "content_digest",
    "digest_matches",
    "metered",
    "pause",
    "work",
]

T = TypeVar("T")
LONGEST_JSON: Final = 1 << 20
"""Largest body in bytes of a JSON answer and of an error, unless the request states another limit."""
Method = Literal["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"]


class Sink(Protocol):
    """Receives the body of a long answer piece by piece, so that the driver need not hold all of it."""

    def begin(self) -> None:
        """Forget what was added: an answer begins. A repeated request has several."""

    def add(self, piece: bytes) -> None:
        """Take the next piece of the body."""


@dataclass(frozen=True, repr=False)
class Request:
    """One HTTP request. Its repr omits the headers, which may hold a token.

    read_seconds: seconds to wait for the answer in addition to the driver's read timeout (long polls). signer: signs
    the request each time it is sent, so that every attempt has its own time; None for no signature. max_bytes: largest
    body that a successful answer may have; the driver stops reading beyond it and raises `ContractBroken`.
    sink: receives the body of a successful answer, whose own body is then empty; None keeps it in the answer.
    """

    method: Method
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    read_seconds: float = 0.0
    signer: Signer | None = None
    max_bytes: int = LONGEST_JSON
    sink: Sink | None = None

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.url} {len(self.body)} bytes>"


@dataclass(frozen=True, repr=False)
class Response:
    """One HTTP answer with its whole body. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def __repr__(self) -> str:
        return f"<Response {self.status} {len(self.body)} bytes>"


@dataclass(frozen=True)
class Pause:
    """Asks the driver to wait for `seconds`."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """Asks the driver to call `call`. The async driver does so in a thread, which keeps the event loop free."""

    call: Callable[[], Any]


Effect = Request | Pause | Work
Program = Generator[Effect, Any, T]
"""A program that returns a `T`."""


def pause(seconds: float) -> Program[None]:
    """Return a program that waits for `seconds`."""
    yield Pause(seconds)


def work(call: Callable[[], T]) -> Program[T]:
    """Return a program that runs `call` as `Work` and returns its result."""
    return cast(T, (yield Work(call)))


def content_digest(body: bytes | memoryview) -> str:
    """Return the value of a Content-Digest or Repr-Digest field for `body` (RFC 9530), with its SHA-256."""
    return format_digest(hashlib.sha256(body).digest())


def digest_matches(body: bytes, expected: bytes) -> bool:
    """Return whether the SHA-256 of `body` is `expected` (32 bytes), compared in constant time."""
    return hmac.compare_digest(hashlib.sha256(body).digest(), expected)


@dataclass
class Traffic:
    """Bytes of request bodies (`up`) and response bodies (`down`), failed attempts included, headers not."""

    up: int = 0
    down: int = 0

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(self.up - earlier.up, self.down - earlier.down)

    def copy(self) -> Traffic:
        """Return a copy of the current figures."""
        return Traffic(self.up, self.down)


def metered(program: Program[T], traffic: Traffic) -> Program[T]:
    """Run `program` and add the bytes of its request and response bodies to `traffic`."""
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
