"""Effects: what a program of the SDK asks its driver to do.

A *program* is a generator. It yields a `Request`, a `Pause`, a `Failed`, a `Work` or a `Turn`, and receives a
`Response`, None, whether to wait for the server, the result of the work, or None. The driver throws `ConnectionFailed`
into it when a request gets no answer. The sync and the async SDK run the same programs and differ only in the driver
(`client_sdk.api.http`), which signs the requests of an enrolled client (`Signer`). What sees the effects of a whole
program on their way to the driver is a `Layer`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol, TypeVar, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client_sdk.errors import ApiError, ConnectionFailed
from protocols.crypto.http_signature import format_digest

_LOG = logging.getLogger(__name__)
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
    """One HTTP request. Its repr omits the headers, which may hold a token."""

    method: Method
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    read_seconds: float = 0.0
    """Seconds to wait for the answer in addition to the driver's read timeout (long polls)."""
    signer: Signer | None = None
    """Signs the request each time it is sent, so that every attempt has its own time; None for no signature."""
    max_bytes: int = LONGEST_JSON
    """Largest body that a successful answer may have; the driver stops reading beyond it and raises `ContractBroken`.
    """
    sink: Sink | None = None
    """Receives the body of a successful answer, whose own body is then empty; None keeps it in the answer."""

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

    @property
    def media_type(self) -> str:
        """The media type of the body in lower case, without parameters; "" for none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_page(self) -> bool:
        """Whether status and headers show that something else than the aggregator answered, such as a proxy.

        The aggregator's errors are problem documents; it sends neither redirects nor, to clients, HTML.
        """
        if self.status >= HTTPStatus.BAD_REQUEST:
            return self.media_type != "application/problem+json"
        if self.status >= HTTPStatus.MULTIPLE_CHOICES:
            return self.status != HTTPStatus.NOT_MODIFIED
        return self.media_type == "text/html"


@dataclass(frozen=True)
class Pause:
    """Asks the driver to wait for `seconds`."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """Asks the driver to call `call`. The async driver does so in a thread, which keeps the event loop free."""

    call: Callable[[], Any]


@dataclass(frozen=True)
class Failed:
    """Says that a request failed and can be repeated. A layer that waits for the server replies True, drivers False."""

    error: ConnectionFailed | ApiError


@dataclass(frozen=True)
class Turn:
    """Gives the application its turn: `what` is a round that asks for its update, or the outcome of one.

    A driver that runs a program to its end goes on at once; `turns` hands `what` to its caller.
    """

    what: object


Effect = Request | Pause | Failed | Work | Turn
Program = Generator[Effect, Any, T]
"""A program that returns a `T`."""


def work(call: Callable[[], T]) -> Program[T]:
    """Return a program that runs `call` as `Work` and returns its result."""
    return cast(T, (yield Work(call)))


def content_digest(body: bytes | memoryview) -> str:
    """Return the value of a Content-Digest or Repr-Digest field for `body` (RFC 9530), with its SHA-256."""
    return format_digest(hashlib.sha256(body).digest())


class Layer(Protocol):
    """Sees the effects of a program and their replies. An error that it raises ends the program; see `through`."""

    def on_effect(self, effect: Effect) -> Effect:
        """Return the effect that is performed in place of `effect`."""

    def on_reply(self, effect: Effect, reply: object) -> object:
        """Return what the program receives in place of `reply`."""


def through(program: Program[T], layer: Layer) -> Program[T]:
    """Run `program` with its effects and their replies passing through `layer`.

    The driver's errors are thrown into `program`. An error of the layer is not: it closes `program`.
    """
    try:
        effect = next(program)
        while True:
            passed = layer.on_effect(effect)
            try:
                reply = yield passed
            except Exception as error:  # the program re-raises what it does not handle
                effect = program.throw(error)
            else:
                effect = program.send(layer.on_reply(effect, reply))
    except StopIteration as done:
        return cast(T, done.value)
    finally:
        program.close()


@dataclass
class Traffic:
    """Bytes of request bodies (`up`) and response bodies (`down`), failed attempts included, headers not.

    As a layer it counts those of a program.
    """

    up: int = 0
    down: int = 0

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(self.up - earlier.up, self.down - earlier.down)

    def on_effect(self, effect: Effect) -> Effect:
        """Count the body of a request."""
        if isinstance(effect, Request):
            self.up += len(effect.body)
        return effect

    def on_reply(self, _effect: Effect, reply: object) -> object:
        """Count the body of an answer."""
        if isinstance(reply, Response):
            self.down += len(reply.body)
        return reply


# --- the signature of a request: made each time it is sent, with the server's time -----------------------------------

LARGEST_OFFSET: Final = 26 * 3600
"""Largest correction of this client's clock in seconds: the largest error of a wrong time zone. A server that could
move the clock further could obtain signatures for a later day."""


class ServerTime:
    """The server's clock: `offset` is the number of seconds that it is ahead of this machine's clock, 0 at first."""

    def __init__(self) -> None:
        self.offset = 0
        self._last_now = 0.0

    def at(self, now: float) -> int:
        """Return the server's time for the local time `now`, both in seconds since the epoch."""
        self._last_now = now
        return max(0, round(now) + self.offset)

    def is_plausible(self, server_time: int) -> bool:
        """Whether the server's time at the last request is within `LARGEST_OFFSET` of this machine's."""
        return abs(server_time - round(self._last_now)) <= LARGEST_OFFSET

    def learn(self, server_time: int) -> bool:
        """Set the offset from the server's time at the last request, and log it.

        Returns False, and changes nothing, when the offset is the same or exceeds `LARGEST_OFFSET`.
        """
        offset = server_time - round(self._last_now)
        if offset == self.offset or not self.is_plausible(server_time):
            return False
        self.offset = offset
        _LOG.warning(
            "this machine's clock is %d s %s the server's: requests are signed with the server's time; set the clock",
            abs(offset),
            "behind" if offset > 0 else "ahead of",
        )
        return True


@dataclass(frozen=True, repr=False)
class Signer:
    """What a driver signs requests with, as one client of one task. Its repr omits the key."""

    client_id: str
    key: Ed25519PrivateKey
    time: ServerTime

    def __repr__(self) -> str:
        return f"<Signer {self.client_id}>"
