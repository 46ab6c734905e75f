"""What is told of each request: one log line, the figures of `/metrics`, and a span where spans are recorded.

An ASGI middleware around everything else, so that it also sees the requests that never reach a route, and answers those
that failed in a way nobody foresaw.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, NoOpTracer, Span, SpanKind, StatusCode, Tracer
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service import request_ids
from aggregator_service.logs import fields
from aggregator_service.observability.metrics import Metrics
from aggregator_service.observability.request_record import Seen
from aggregator_service.problems import crashed

__all__ = ["RequestWatch", "tell"]

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_TRACE: Final = ("traceparent", "tracestate")
_LOG = logging.getLogger(__name__)
_UNCHANGED: Final = 304
_NO_SPAN: Final = nullcontext(INVALID_SPAN)


def tell(metrics: Metrics, seen: Seen) -> None:
    """Count a request that is over, and log it; of what has not changed since, thousands ask: that is for debugging."""
    metrics.request(seen)
    level = logging.DEBUG if seen.status == _UNCHANGED else logging.INFO
    if _LOG.isEnabledFor(level):
        _LOG.log(level, "request", extra=_fields(seen))


class RequestWatch:
    """Gives each request its id, and tells of it when it is over."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, tracer: Tracer) -> None:
        self._app, self._metrics, self._tracer = app, metrics, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = request_ids.choose(headers.get(request_ids.HEADER))
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        seen = Seen(method, waited=_waits(scope))
        token = request_ids.current.set(request_id)
        started = time.perf_counter()
        with self._span(method, headers) as span:
            noted = _noting(send, seen, request_id)
            try:
                await self._app(scope, _counting(receive, seen), noted)
            except Exception as error:
                if seen.status:
                    raise  # the answer has begun: all that is left is to cut the connection
                await crashed(Request(scope), error)(scope, receive, noted)
            finally:
                seen.settle(scope, time.perf_counter() - started)
                _describe(span, seen, request_id)
                tell(self._metrics, seen)
                request_ids.current.reset(token)

    def _span(self, method: str, headers: Mapping[bytes, bytes]) -> AbstractContextManager[Span]:
        if isinstance(self._tracer, NoOpTracer):
            return _NO_SPAN
        return self._tracer.start_as_current_span(
            method, _parent(headers), SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        )


def _waits(scope: Scope) -> bool:
    """Whether the answer takes as long as it is asked to: a long poll, or the events of a page."""
    return b"wait=" in scope.get("query_string", b"") or scope["path"].endswith("/live")


def _parent(headers: Mapping[bytes, bytes]) -> Context:
    """The span that the caller made, by W3C trace context; baggage is not taken."""
    carried = {name: headers[name.encode()].decode("latin-1") for name in _TRACE if name.encode() in headers}
    return propagate.extract(carried, Context()) if carried else Context()


def _counting(receive: Receive, seen: Seen) -> Receive:
    async def counted() -> Message:
        message = await receive()
        if message["type"] == "http.request":
            seen.received += len(message.get("body", b""))
        return message

    return counted


def _noting(send: Send, seen: Seen, request_id: str) -> Send:
    async def noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            seen.status = message["status"]
            message = {**message, "headers": [*message.get("headers", []), (request_ids.HEADER, request_id.encode())]}
        elif message["type"] == "http.response.body":
            seen.sent += len(message.get("body", b""))
        await send(message)

    return noted


def _describe(span: Span, seen: Seen, request_id: str) -> None:
    """Names and attributes of OpenTelemetry's conventions for HTTP servers, without the path and the query."""
    if not span.is_recording():
        return
    span.update_name(f"{seen.method} {seen.route}")
    attributes: dict[str, str | int | None] = {
        "http.request.method": seen.method,
        "http.route": seen.route,
        "http.response.status_code": seen.status,
        "hushrec.request_id": request_id,
        "hushrec.task": seen.task,
        "hushrec.round": seen.round,
        "hushrec.problem": seen.problem,
    }
    span.set_attributes({name: value for name, value in attributes.items() if value is not None})
    if seen.status >= 500 or seen.status == 0:
        span.set_status(StatusCode.ERROR)


def _fields(seen: Seen) -> dict[str, Any]:
    return fields(
        method=seen.method,
        route=seen.route,
        status=seen.status,
        problem=seen.problem,
        received=seen.received,
        sent=seen.sent,
        milliseconds=round(seen.seconds * 1000, 1),
        task=seen.task,
        round=seen.round,
        client=seen.client,
    )
