"""HTTP/1.1 connections on which some requests are answered at once, past the application.

These are requests whose response is ready in memory, as soon as their headers have arrived (`fast_responses`), and
short ones of direct routes, when their body has (`short_requests`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, cast

from aggregator_service.http.bounded_protocol import BoundedHttp, Census
from aggregator_service.http.fast_responses import ImmediateResponses
from aggregator_service.http.short_cycle import BODY_SECONDS, ShortCycle
from aggregator_service.http.short_requests import ShortRequests

__all__ = ["ShortHttp", "http_protocol"]

_LOG = logging.getLogger(__name__)


class ShortHttp(BoundedHttp):
    """`BoundedHttp` that answers some requests itself.

    immediate: makes the responses that are ready. short: answers short requests. None: the application answers them.
    """

    immediate: ImmediateResponses | None = None
    short: ShortRequests | None = None
    scope: Any  # uvicorn has a type of its own for the same dictionary
    cycle: Any  # None before the first request

    _body_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application of a short request whose body is cut off (`asyncio.Protocol`)."""
        super().connection_lost(exc)
        self._leave_to_application()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; limit the time for the body of a short request (`asyncio.Protocol`)."""
        super().data_received(data)
        if self._awaited_body() is not None and self._body_timer is None:
            self._body_timer = self.loop.call_later(BODY_SECONDS, self._leave_to_application)

    def _answers_itself(self) -> bool:
        """Whether this protocol answers the request whose headers have arrived, and not the application."""
        return self._is_plain() and (self._respond_at_once() or self._begin_short())

    def on_message_complete(self) -> None:
        """End the body of a request (httptools callback). A response that was ready in memory has no cycle."""
        cycle = self.cycle
        if cycle is None:
            return
        super().on_message_complete()
        short = self._awaited_body()
        if short is not None:
            self._begin_task(short, self._answer_short(short))

    def _is_plain(self) -> bool:
        """Whether a request is one of HTTP/1.1 on a connection that stays open, and no other is in progress.

        It is then described in the scope, as uvicorn does.
        """
        parser, cycle = self.parser, self.cycle
        in_progress = cycle is not None and not cycle.response_complete
        if in_progress or self.pipeline or self.flow.write_paused or self.transport.is_closing():
            return False
        if parser.get_http_version() != "1.1" or not parser.should_keep_alive():
            return False
        path, _, query = self.url.partition(b"?")
        scope = self.scope
        scope["method"], scope["query_string"] = parser.get_method().decode("ascii"), query
        scope["path"] = self.root_path + path.decode("latin-1")
        scope["raw_path"] = self.root_path.encode("ascii") + path
        return True

    def _respond_at_once(self) -> bool:
        """Write the response if it is ready in memory; return whether it was."""
        scope = self.scope
        if self.immediate is None or scope["method"] != "GET":
            return False
        response = self.immediate.response(scope, self.server_state.default_headers)
        if response is None:
            return False
        self.transport.write(response)
        self.on_response_complete()
        return True

    def _begin_short(self) -> bool:
        """Begin to receive the body of a short request; return whether it is one."""
        call = None if self.short is None else self.short.find(self.scope)
        if call is None:
            return False
        self.cycle = ShortCycle(self, call)
        self._cycles = [self.cycle]
        return True

    def _awaited_body(self) -> ShortCycle | None:
        """Return the short request whose body is being received, if there is one."""
        cycle = self.cycle
        return cycle if isinstance(cycle, ShortCycle) and not cycle.begun else None

    def _leave_to_application(self) -> None:
        """Let the application answer a short request whose body is slow, or cut off by the end of the connection."""
        short = self._awaited_body()
        if short is not None:
            self._begin_task(short, short.run_asgi(self.app))

    def _begin_task(self, short: ShortCycle, answering: Coroutine[Any, Any, None]) -> None:
        """Begin to answer a short request, in a task that the shutdown of the server waits for."""
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        short.begun = True
        task = self.loop.create_task(answering)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _answer_short(self, short: ShortCycle) -> None:
        assert self.short is not None  # noqa: S101 - it found the request
        short.take_body()
        try:
            answer = await self.short.answer(short.call, short)
        except Exception:
            _LOG.exception("a response cannot be sent; its connection is closed")
            self.transport.close()
            return
        if isinstance(answer, bytes):
            short.finish(answer)
        else:
            short.return_body()
            await short.run_asgi(cast(Any, answer))


def http_protocol(
    max_connections: int,
    max_connections_per_address: int,
    immediate: ImmediateResponses | None = None,
    short: ShortRequests | None = None,
) -> type[ShortHttp]:
    """Return `ShortHttp` with these attributes, for uvicorn, which makes the protocols itself."""
    limits = {"max_connections": max_connections, "max_connections_per_address": max_connections_per_address}
    return type("LimitedHttp", (ShortHttp,), {**limits, "immediate": immediate, "short": short, "census": Census()})
