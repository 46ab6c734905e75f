"""HTTP/1.1 connections with limits on their number, the size of request headers and the time to send them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from aggregator_service.http.direct_body import EXTENSION, DirectBody
from aggregator_service.http.security_headers import API_HEADERS
from aggregator_service.problems import PROBLEM_MEDIA_TYPE, document
from aggregator_service.request_ids import HEADER, choose

__all__ = ["BoundedHttp", "Census"]

_MALFORMED: Final = "the request is not well-formed HTTP/1.1"
_TOO_LONG: Final = "the request headers are too long"
_TOO_MANY: Final = "the server has too many connections"
_TOO_MANY_FROM_ADDRESS: Final = "this address has too many connections"
_RETRY_SECONDS: Final = b"5"
_MOST_REFUSED: Final = 64
"""Refused connections that may be half open, to read their answers, at the same time; further ones are reset."""


@dataclass
class Census:
    """Open connections: in `total`, by peer address, and those that are `turned_away` and still half open."""

    total: int = 0
    admitted: Counter[str] = field(default_factory=Counter)
    turned_away: int = 0


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with limits on request headers.

    head_bytes, head_seconds: largest size and longest time from the first byte of a request to the end of its headers.
    A new connection must send its first request within `head_seconds`; between requests uvicorn's keep-alive timeout
    applies. linger_seconds: how long a connection stays half open after a refusal. max_connections: open connections of
    this process, and max_connections_per_address: of one peer address; 0: no limit. A connection above a limit is
    answered 503 and closed.
    """

    max_connections = 0
    max_connections_per_address = 0
    census = Census()

    head_bytes = 64 * 1024
    head_seconds = 20.0
    linger_seconds = 2.0

    _head_open = True
    _head_taken = 0
    _arrived = 0
    _head_timer: asyncio.TimerHandle | None = None
    _refused = False
    _address = ""
    _admitted = False
    _turned_away = False
    _cycles: Sequence[Any] = ()
    _idle_timer: asyncio.TimerHandle | None = None
    _idle_since: float | None = None

    def connection_made(self, transport: Any) -> None:
        """Count the connection and start the time limit of its first request (`asyncio.Protocol`)."""
        super().connection_made(transport)
        self._start_timer()
        self._enter(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit and no longer count the connection (`asyncio.Protocol`)."""
        self._stop_timer()
        self._leave()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def _enter(self, transport: Any) -> None:
        """Count the connection, or refuse it."""
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        admitted = self.census.admitted
        if 0 < self.max_connections <= self.census.total:
            self._refuse_connection(_TOO_MANY)
        elif 0 < self.max_connections_per_address <= admitted[self._address]:
            self._refuse_connection(_TOO_MANY_FROM_ADDRESS)
        else:
            self._admitted = True
            self.census.total += 1
            admitted[self._address] += 1

    def _leave(self) -> None:
        admitted = self.census.admitted
        if self._admitted:
            self.census.total -= 1
            admitted[self._address] -= 1
        elif self._turned_away:
            self.census.turned_away -= 1
        if not admitted[self._address]:
            del admitted[self._address]
        self._admitted = self._turned_away = False

    def _refuse_connection(self, reason: str) -> None:
        if self.census.turned_away >= _MOST_REFUSED:
            self._refused = True
            self._stop_timer()
            self.transport.abort()
            return
        self._turned_away = True
        self.census.turned_away += 1
        self._refuse(b"503 Service Unavailable", "unavailable", reason, (b"retry-after", _RETRY_SECONDS))

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; refuse the request when its headers exceed `head_bytes` (`asyncio.Protocol`)."""
        if self._refused:
            return
        self._arrived = self._head_taken + len(data)
        self._parse(data)
        if self._head_open and not self.transport.is_closing():
            self._start_timer()
            self._head_taken += len(data)
            if self._head_taken > self.head_bytes:
                self.send_400_response(_TOO_LONG)

    def _parse(self, data: bytes) -> None:
        """Feed the parser. A request to upgrade to another protocol is answered in HTTP/1.1.

        uvicorn would drop the bytes that follow such a request in the same packet, such as the next request.
        """
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            if rest:
                self._parse(rest)
        except HttpParserError:
            if not self._refused:  # the callbacks of the parser refuse headers that are too long themselves
                self.send_400_response(_MALFORMED)

    def on_message_begin(self) -> None:
        """Start the limits of a request at its first byte (httptools callback)."""
        super().on_message_begin()
        self._stop_timer()
        self._head_open, self._head_taken = True, 0

    def on_headers_complete(self) -> None:
        """End the limits of the headers; bodies have limits of their own (httptools callback).

        Headers that arrive in one packet are measured here, because only the parser knows where they end.
        """
        if self._arrived > self.head_bytes and _head_length(self.url, self.headers) > self.head_bytes:
            self.send_400_response(_TOO_LONG)
            raise ValueError(_TOO_LONG)  # ends the parsing
        self._head_open = False
        self._stop_timer()
        if self._answers_itself():
            return
        super().on_headers_complete()
        cycle: Any = self.cycle  # for a request to upgrade: None, or the cycle of the request before it
        if cycle is not None and cycle.scope is self.scope:
            extensions: Any = {EXTENSION: partial(DirectBody.begin, self, cycle)}
            cycle.scope["extensions"] = extensions
        # the unanswered requests of a pipeline: uvicorn keeps only the newest cycle
        self._cycles = [cycle for cycle in (*self._cycles, self.cycle) if not cycle.response_complete]

    def _answers_itself(self) -> bool:
        """Whether this protocol answers the request whose headers have arrived, and not the application."""
        return False

    def on_response_complete(self) -> None:
        """Begin the next request of a pipeline, or the time in which a new one must arrive, as uvicorn does.

        uvicorn starts and cancels a timer for each request. Here the timer of a connection runs on and looks at the
        time of the last response, which costs a tenth of that.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _close_if_idle(self) -> None:
        """Close the connection at the end of its keep-alive timeout; a busy one gets a new timer after its response."""
        self._idle_timer = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._close_if_idle)
        else:
            self.timeout_keep_alive_handler()

    def take_back(self) -> None:
        """Receive and parse again after a direct body, from the first byte of the next request."""
        self.transport.set_protocol(self)
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def send_400_response(self, msg: str) -> None:
        """Answer 400 with a problem document and close the connection; during a response, only close it.

        The connection stays half open for `linger_seconds`: closing it with unread bytes would reset it and discard the
        response.
        """
        self._refused, self._head_open = True, False
        self._stop_timer()
        unanswered = [cycle for cycle in self._cycles if not cycle.response_complete]
        if any(cycle.response_started for cycle in unanswered):
            self.transport.close()
            return
        for cycle in unanswered:  # the application must not answer after the 400
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        self._refuse(b"400 Bad Request", "bad-request", msg)

    def _refuse(self, status: bytes, problem: str, reason: str, *more: tuple[bytes, bytes]) -> None:
        """Answer with a problem document and close the connection, whatever the client sends."""
        self._refused, self._head_open = True, False
        self._stop_timer()
        body = document(problem, reason).model_dump_json(exclude_none=True).encode()
        headers = [*self.server_state.default_headers, (HEADER, choose(None).encode()), *API_HEADERS, *more]
        headers += [(b"content-type", PROBLEM_MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        lines = [b"HTTP/1.1 " + status, *(b": ".join(header) for header in headers), b"connection: close"]
        self.transport.write(b"\r\n".join([*lines, b"", body]))
        if not self.transport.can_write_eof():  # TLS
            self.transport.close()
            return
        self.transport.write_eof()
        self.loop.call_later(self.linger_seconds, self._give_up)

    def _start_timer(self) -> None:
        """Limit the time for the headers, from now on. Most requests arrive as a whole and need no timer."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _head_length(url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Return the bytes of a request line and headers, without the method and the version."""
    length = len(url) + len(b": \r\n") * len(headers)
    for name, value in headers:
        length += len(name) + len(value)
    return length
