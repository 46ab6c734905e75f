"""Records each request: one log line, the request metrics of `/metrics`, and a span where tracing is on.

`RequestRecorder` is an ASGI middleware outside the router, so that it also records requests that match no route, and
answers requests that fail with an unexpected exception.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Final

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, Span, SpanKind, StatusCode, Tracer
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service import request_ids
from aggregator_service.logs import fields
from aggregator_service.observability.metrics import Metrics
from aggregator_service.observability.request_record import RequestRecord
from aggregator_service.problems import crashed

__all__ = ["RequestRecorder"]

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_TRACE_HEADERS: Final = ("traceparent", "tracestate")
_LOG = logging.getLogger(__name__)
_NOT_MODIFIED: Final = 304


class RequestRecorder:
    """Gives each request its id, counts it in `metrics`, logs it, and makes its span with `tracer`."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, tracer: Tracer) -> None:
        self._app, self._metrics = app, metrics
        self._tracer = None if isinstance(tracer, NoOpTracer) else tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request and record it when its response has ended."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = request_ids.choose(headers.get(request_ids.HEADER))
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        record = RequestRecord(method, waited=_is_long_poll(scope))
        token = request_ids.current.set(request_id)
        try:
            if self._tracer is None:
                await self._handle(scope, receive, send, record, request_id)
            else:
                with _span(self._tracer, method, headers) as span:
                    try:
                        await self._handle(scope, receive, send, record, request_id)
                    finally:
                        _describe_span(span, record, request_id)
        finally:
            self._metrics.request(record)
            _log(record)
            request_ids.current.reset(token)

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
            record.complete(scope, time.perf_counter() - started)


def _span(tracer: Tracer, method: str, headers: Mapping[bytes, bytes]) -> AbstractContextManager[Span]:
    return tracer.start_as_current_span(
        method, _parent(headers), SpanKind.SERVER, record_exception=False, set_status_on_exception=False
    )


def _log(record: RequestRecord) -> None:
    """Log a finished request: 304 responses at debug level, because most polls get one; all others at info level."""
    level = logging.DEBUG if record.status == _NOT_MODIFIED else logging.INFO
    found = fields(
        method=record.method,
        route=record.route,
        status=record.status,
        problem=record.problem,
        received=record.received,
        sent=record.sent,
        milliseconds=round(record.seconds * 1000, 1),
        task=record.task,
        round=record.round,
        client=record.client,
        role=record.role,
        digest=record.digest,
    )
    _LOG.log(level, "request", extra=found)


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
            message["headers"] = [*message.get("headers", ()), (request_ids.HEADER, request_id.encode())]
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
