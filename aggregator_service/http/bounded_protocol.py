"""Connections: what precedes a body has an end, too. llhttp itself reads headers of any length, at any pace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from aggregator_service.http.direct_body import EXTENSION, DirectBody
from aggregator_service.http.security_headers import API_HEADERS
from aggregator_service.problems import PROBLEM_MEDIA_TYPE, document
from aggregator_service.request_ids import HEADER, choose

__all__ = ["BoundedHttp"]

_NO_HTTP: Final = "this is no well-formed HTTP/1.1 request"
_TOO_LONG: Final = "the request's headers are too long"


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with at most so many bytes and seconds from a request's first byte to the end of its headers.

    A new connection has as many seconds to begin; between requests uvicorn's own keep-alive timeout holds.
    """

    head_bytes = 64 * 1024
    head_seconds = 20.0
    linger_seconds = 2.0

    _head_open = True
    _head_taken = 0
    _head_timer: asyncio.TimerHandle | None = None
    _refused = False
    _cycles: Sequence[Any] = ()

    def connection_made(self, transport: Any) -> None:
        """A connection: its first request is awaited."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes: counted as long as the headers are not complete."""
        if self._refused:
            return
        self._parse(data)
        if self._head_open and not self.transport.is_closing():
            self._head_taken += len(data)
            if self._head_taken > self.head_bytes:
                self.send_400_response(_TOO_LONG)

    def _parse(self, data: bytes) -> None:
        """Feed the parser. Who asks for another protocol is answered in this one, what followed the asking included:
        uvicorn drops what came in one packet with it, be it the next request.
        """
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as asked:
            rest = data[asked.args[0] :]
            if rest:
                self._parse(rest)
        except HttpParserError:
            self.send_400_response(_NO_HTTP)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """The end of the headers: the body has limits of its own."""
        self._head_open = False
        self._stop_timer()
        super().on_headers_complete()
        cycle: Any = self.cycle  # none yet, or that of the request before, where another protocol was asked for
        if cycle is not None and cycle.scope is self.scope:
            own: Any = {EXTENSION: partial(DirectBody.begin, self, cycle)}
            cycle.scope["extensions"] = own
        # requests that came before they could be answered: uvicorn itself only knows the newest one
        self._cycles = [cycle for cycle in (*self._cycles, self.cycle) if not cycle.response_complete]

    def take_back(self) -> None:
        """The connection is HTTP's again, at the first byte of a request: what was between was no parser's business."""
        self.transport.set_protocol(self)
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it

    def send_400_response(self, msg: str) -> None:
        """Refuse in the application's words what never reaches it, and hang up; in the midst of an answer just hang up.

        The connection stays half open for a moment: closed with bytes unread it would be reset, answer and all.
        """
        self._refused, self._head_open = True, False
        self._stop_timer()
        unanswered = [cycle for cycle in self._cycles if not cycle.response_complete]
        if any(cycle.response_started for cycle in unanswered):
            self.transport.close()
            return
        for cycle in unanswered:  # what they still want to say would come behind the end
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        body = document("bad-request", msg).model_dump_json(exclude_none=True).encode()
        headers = [*self.server_state.default_headers, (HEADER, choose(None).encode()), *API_HEADERS]
        headers += [(b"content-type", PROBLEM_MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        lines = [b"HTTP/1.1 400 Bad Request", *(b": ".join(header) for header in headers), b"connection: close"]
        self.transport.write(b"\r\n".join([*lines, b"", body]))
        if not self.transport.can_write_eof():  # TLS
            self.transport.close()
            return
        self.transport.write_eof()
        self.loop.call_later(self.linger_seconds, self._give_up)

    def _await_head(self) -> None:
        self._stop_timer()
        self._head_open, self._head_taken = True, 0
        self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
