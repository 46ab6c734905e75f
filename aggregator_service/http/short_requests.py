"""Short requests of direct routes, answered without ASGI messages and middlewares.

A client's visit consists of them: enrolment, envelope, contribution of some kilobytes. ASGI messages and ten
middlewares cost a fifth of the processor time of such a request. `ShortRequests` recognises requests in which none of
these middlewares would do anything: a body with a known, short length and no header that concerns the connection, a
proxy or another origin. `short_cycle` collects the body first, so nothing is left to read after a refusal.

The response is that of the application, and so are its log line and metrics. All other requests go to the application.
"""

from __future__ import annotations

import time
from typing import Any, Final, cast

from fastapi import Response
from opentelemetry.trace import NoOpTracer
from starlette.responses import FileResponse, StreamingResponse
from starlette.types import ASGIApp, Scope

from aggregator_service import request_ids
from aggregator_service.http.direct_routes import DirectCall, DirectRouter
from aggregator_service.http.fast_responses import needs_application
from aggregator_service.http.response_bytes import ResponseWriter
from aggregator_service.http.security_headers import SecurityHeaders
from aggregator_service.http.short_cycle import ShortCycle, whole_body
from aggregator_service.observability.metrics import Metrics
from aggregator_service.observability.request_record import STARTED, RequestRecord
from aggregator_service.observability.requests import RequestRecorder, count_and_log
from aggregator_service.problem_handlers import crashed

__all__ = ["SHORT_BYTES", "ShortRequests"]

SHORT_BYTES: Final = 64 * 1024
"""Longest body of a short request, and of a response in one write: uvicorn's limit of what it buffers."""
_JSON: Final = b"application/json"
_STREAMED: Final = (StreamingResponse, FileResponse)


class ShortRequests:
    """Answers short requests of the routes of `router`, and counts and logs them as `RequestRecorder` does.

    app: the application, whose state and exception handlers the routes use. json_limit: see `BodyGuard`.
    """

    def __init__(
        self, app: Any, router: DirectRouter, metrics: Metrics, writer: ResponseWriter, *, json_limit: int
    ) -> None:
        self._app, self._router, self._metrics, self._writer = app, router, metrics, writer
        self._json_limit = json_limit

    def find(self, scope: Scope) -> DirectCall | None:
        """Return the call that answers a request of HTTP/1.1; None if the application has to answer."""
        headers = dict(scope["headers"])
        if needs_application(headers) or b"transfer-encoding" in headers:
            return None
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 6 or int(length) > SHORT_BYTES:
            return None
        if scope["method"] == "POST" and not self._is_plain_json(headers, int(length)):
            return None
        return self._router.find(scope)

    def _is_plain_json(self, headers: dict[bytes, bytes], length: int) -> bool:
        """Whether `BodyGuard` would pass a JSON body on as it is."""
        return (
            0 < length <= self._json_limit
            and headers.get(b"content-type") == _JSON
            and b"content-digest" not in headers
        )

    async def answer(self, call: DirectCall, cycle: ShortCycle) -> bytes | ASGIApp:
        """Answer a request whose body has arrived: with the bytes of the response, or with what sends it.

        Run it in a task of its own: the request id stays in the task's context.
        """
        request, scope = cycle.request, cycle.request.scope
        offered = next((value for name, value in scope["headers"] if name == request_ids.HEADER), None)
        request_id = request_ids.choose(offered)
        request_ids.current.set(request_id)
        scope["app"] = self._app
        try:
            response = await call.response(request)
        except Exception as error:
            response = crashed(request, error)
        if response is None or isinstance(response, _STREAMED) or len(response.body) > SHORT_BYTES:
            scope["headers"].append((request_ids.HEADER, request_id.encode()))  # the recorder takes the last one
            return cast(ASGIApp, self._app) if response is None else self._recorded(response)
        body, received = bytes(response.body), len(whole_body(request) or b"")
        record = RequestRecord(scope["method"], status=response.status_code, received=received, sent=len(body))
        record.complete(scope, time.perf_counter() - scope[STARTED])
        count_and_log(self._metrics, record)
        own, server = response.raw_headers, cycle.default_headers
        return self._writer.response(record.status, own, body, request_id, server, close=not cycle.keep_alive)

    def _recorded(self, response: Response) -> ASGIApp:
        """Return what sends a response that is long or not in memory, and records the request at its end."""
        recorder = RequestRecorder(response, metrics=self._metrics, tracer=NoOpTracer())
        return SecurityHeaders(recorder, hsts_seconds=self._writer.hsts_seconds)
