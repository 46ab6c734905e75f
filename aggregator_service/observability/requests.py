"""Records each request: its id, one log line, the request metrics of `/metrics`, and a span where tracing is on.

`RequestRecorder` is an ASGI middleware outside the router, so that it also records requests that match no route, and
answers requests that fail with an unexpected exception.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, Span, SpanKind, StatusCode, Tracer
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.access.principals import Operator
from aggregator_service.logs import REQUEST_ID, fields
from aggregator_service.problem_handlers import crashed

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_TRACE_HEADERS: Final = ("traceparent", "tracestate")
_LOG = logging.getLogger(__name__)
_FIRST_ERROR: Final = 400
_REFUSED: Final = (401, 403, 429)
"""Statuses that say that the sender may not do this, or tries too often."""
_ID_HEADER: Final = b"x-request-id"
# Characters that cannot break a log line or look like something else in it. Texts with a token's prefix are excluded.
_ALLOWED: Final = re.compile(rb"^(?!hr[a-z]_)[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")

_RANDOM: Final = random.Random()  # noqa: S311
_NO_ROUTE: Final = "(no route)"
DIGEST: Final = "hushrec.digest"
"""Scope key: the SHA-256 (hex) that the request announced for its body."""
ENROLLED: Final = "hushrec.enrolled"
"""Scope key: the `Enrolment` that the request led to."""
PRINCIPAL: Final = "hushrec.principal"
"""Scope key: the `Principal` that makes the request, from when its token is known."""
_NUMBERED_BY_ROUND: Final = ("/rounds/{number}", "/snapshots/{number}")
"""Parts of the routes whose number is that of a round, and not of a sum or a committee's key."""
_TASK_ID: Final = re.compile(r"^t_[0-9a-f]{20}$")
_CLIENT_ID: Final = re.compile(r"^c_[0-9a-f]{20}$")


@dataclass
class RequestRecord:
    """Facts about one request. It holds no query, no header and no body."""

    method: str
    """One of the HTTP methods, or `OTHER`."""
    route: str = _NO_ROUTE
    """The route's path template, `_NO_ROUTE` where no route matched."""
    status: int = 0
    """0 when no response was started."""
    problem: str | None = None
    """Slug of the problem type."""
    received: int = 0
    sent: int = 0
    """Bytes of the bodies."""
    milliseconds: float = 0.0
    """From the request's headers to the end of the response."""
    task: str | None = None
    round: int | None = None
    client: str | None = None
    """Ids in the path, None where the text in the path does not have the form of an id; after an enrolment those of the
    new client, with its role."""
    role: str | None = None
    digest: str | None = None
    """SHA-256 (hex) announced for the body."""
    operator: str | None = None
    """Name of the operator's token."""
    address: str | None = None
    """Where a request came from that was refused and that no client made."""
    waited: bool = False
    """Whether it was a long poll or an event stream."""

    def complete(self, scope: Scope) -> None:
        """Fill in route, problem and ids from the ASGI scope of the finished request."""
        parameters: dict[str, str] = scope.get("path_params", {})
        self.route = getattr(scope.get("route"), "path_format", None) or _NO_ROUTE
        self.problem = scope.get("hushrec.problem")
        number = parameters.get("number") if any(part in self.route for part in _NUMBERED_BY_ROUND) else None
        if number is not None and number.isascii() and number.isdigit() and len(number) <= 10:
            self.round = int(number)
        self.task = _well_formed(_TASK_ID, parameters.get("task"))
        self.client = _well_formed(_CLIENT_ID, parameters.get("client"))
        self.digest = scope.get(DIGEST)
        self._name_operator(scope)
        enrolled = scope.get(ENROLLED)
        if enrolled is not None:
            self.task, self.client, self.role = enrolled.task_id, enrolled.client_id, enrolled.role

    def _name_operator(self, scope: Scope) -> None:
        """Fill in the operator, and the address of a refused request unless a client made it."""
        principal = scope.get(PRINCIPAL)
        self.operator = principal.name if isinstance(principal, Operator) else None
        refused = self.status in _REFUSED or (self.operator is not None and 400 <= self.status < 500)
        if refused and (principal is None or self.operator is not None):
            self.address = client_address(scope)

    @property
    def is_refused_attempt(self) -> bool:
        """Whether an operator, or somebody without a valid token, was refused; what an operator only read may fail."""
        only_read = self.method in ("GET", "HEAD") and self.status not in _REFUSED
        return self.address is not None and not (self.operator is not None and only_read)


def _well_formed(form: re.Pattern[str], value: str | None) -> str | None:
    """Return `value` if it has the form of an id; other text from a caller is not recorded."""
    return value if value is not None and form.match(value) else None


def client_address(scope: Scope) -> str:
    """Return the IP address that a request comes from, "" if unknown.

    It is the address that a proxy names if uvicorn trusts that proxy.
    """
    client = scope.get("client")
    return "" if client is None else client[0]


class RequestRecorder:
    """Gives each request its id, gives its record to `count`, logs it, and makes its span with `tracer`."""

    def __init__(self, app: ASGIApp, *, count: Callable[[RequestRecord], None], tracer: Tracer) -> None:
        self._app, self._count = app, count
        self._tracer = None if isinstance(tracer, NoOpTracer) else tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request and record it when its response has ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _choose_id(headers.get(_ID_HEADER))
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        record = RequestRecord(method, waited=_is_long_poll(scope))
        token = REQUEST_ID.set(request_id)
        try:
            if self._tracer is None:
                await self._handle(scope, receive, send, record, request_id)
            else:
                with self._tracer.start_as_current_span(
                    method, _parent(headers), SpanKind.SERVER, record_exception=False, set_status_on_exception=False
                ) as span:
                    try:
                        await self._handle(scope, receive, send, record, request_id)
                    finally:
                        _describe_span(span, record, request_id)
        finally:
            self._count(record)
            _log(record)
            REQUEST_ID.reset(token)

    async def _handle(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord, request_id: str) -> None:
        started = time.perf_counter()
        recorded_send = _recording_send(send, record, request_id)
        try:
            await self._app(scope, _counting_receive(receive, record), recorded_send)
        except Exception as error:
            if record.status:
                raise  # the response has begun: the server can only close the connection
            await crashed(Request(scope), error)(scope, receive, recorded_send)
        finally:
            record.milliseconds = (time.perf_counter() - started) * 1000
            record.complete(scope)


def _log(record: RequestRecord) -> None:
    """Log a finished request: at debug level if it read something and succeeded, as polls do; else at info level."""
    read = record.method in ("GET", "HEAD") and record.status < _FIRST_ERROR
    level = logging.DEBUG if read else logging.INFO
    if _LOG.isEnabledFor(level):
        found = vars(record) | {"milliseconds": round(record.milliseconds, 1), "waited": None}
        _LOG.log(level, "request", extra=fields(**found))


def _is_long_poll(scope: Scope) -> bool:
    """Return whether the client decides how long the response takes: a long poll, or the dashboard's event stream."""
    return b"wait=" in scope.get("query_string", b"") or scope["path"].endswith("/live")


def _parent(headers: Mapping[bytes, bytes]) -> Context:
    """Return the caller's span (W3C Trace Context). Baggage is ignored."""
    carried = {name: headers[name.encode()].decode("latin-1") for name in _TRACE_HEADERS if name.encode() in headers}
    return propagate.extract(carried, Context()) if carried else Context()


def _counting_receive(receive: Receive, record: RequestRecord) -> Receive:
    async def counted() -> Message:
        message = await receive()
        if message["type"] == "http.request":
            record.received += len(message.get("body", b""))
        return message

    return counted


def _recording_send(send: Send, record: RequestRecord, request_id: str) -> Send:
    async def recorded(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (_ID_HEADER, request_id.encode())]
        elif message["type"] == "http.response.body":
            record.sent += len(message.get("body", b""))
        await send(message)

    return recorded


def _describe_span(span: Span, record: RequestRecord, request_id: str) -> None:
    """Set name and attributes by OpenTelemetry's conventions for HTTP servers, without path and query."""
    if not span.is_recording():
        return
    span.update_name(f"{record.method} {record.route}")
    attributes: dict[str, str | int | None] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "hushrec.request_id": request_id,
        "hushrec.task": record.task,
        "hushrec.round": record.round,
        "hushrec.problem": record.problem,
    }
    span.set_attributes({name: value for name, value in attributes.items() if value is not None})
    if record.status >= 500 or record.status == 0:
        span.set_status(StatusCode.ERROR)


def _choose_id(offered: bytes | None) -> str:
    """Return the id that a proxy or client sent, or 64 random bits in hex if it sent none or one that is not allowed.

    Ids are not secret, so the random bits need not be cryptographically secure.
    """
    if offered is not None and _ALLOWED.match(offered):
        return offered.decode("ascii")
    return f"{_RANDOM.getrandbits(64):016x}"
