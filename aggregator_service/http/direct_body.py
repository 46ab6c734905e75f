"""Bodies read straight from the connection into the caller's buffers, past the HTTP parser.

uvicorn passes a body on in ASGI messages of about 200 KB, each of which is allocated, copied three times and awaited.
A body with a Content-Length needs no parsing. `DirectBody` takes over the connection for that many bytes as an
`asyncio.BufferedProtocol`, and gives it back to the HTTP protocol at the first byte of the next request. It never
offers the transport a buffer longer than the rest of the body.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["EXTENSION", "DirectBody"]

EXTENSION: Final = "hushrec.direct_body"
"""Key in an ASGI scope's `extensions`; the value is `DirectBody.begin`, bound to the connection and its cycle."""
_MIN_BYTES: Final = 64 * 1024
"""Shorter bodies are not faster this way."""
_DISCARD_BYTES: Final = 64 * 1024


class HttpConnection(Protocol):
    """The HTTP protocol whose connection a direct body takes over: uvicorn's, and a way to give it back."""

    @property
    def cycle(self) -> RequestResponseCycle: ...

    @property
    def flow(self) -> FlowControl: ...

    @property
    def transport(self) -> asyncio.Transport: ...

    def take_back(self) -> None:
        """Receive and parse again, from the first byte of the next request."""

    def eof_received(self) -> Any: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class DirectBody(asyncio.BufferedProtocol):
    """The rest of one request's body, read from the connection. Reading is paused unless `read_into` waits.

    While it is active, the transport calls this object, which forwards all calls but those with received bytes to
    `http`. left: bytes of the body that uvicorn has not received.
    """

    def __init__(self, http: HttpConnection, cycle: RequestResponseCycle, left: int) -> None:
        self._http, self._cycle, self._left = http, cycle, left
        self._loop = asyncio.get_running_loop()
        self._view = memoryview(b"")
        self._filled = 0
        self._arrived = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lost = self._discarding = self._given_back = False
        http.flow.pause_reading()
        http.transport.set_protocol(self)

    @classmethod
    def begin(cls, http: HttpConnection, cycle: RequestResponseCycle, length: int) -> DirectBody | None:
        """Take over the connection for the rest of a body of `length` bytes.

        Returns None if the body has to be read as ASGI messages: because little is left, because the client waits for
        100 Continue, or because the connection has another request in progress.
        """
        left = length - len(cycle.body)
        plain = cycle.more_body and not cycle.disconnected and not cycle.waiting_for_100_continue
        if http.cycle is not cycle or not plain or left < _MIN_BYTES:
            return None
        return cls(http, cycle, left)

    async def read_into(self, view: memoryview, idle: float) -> int:
        """Fill `view` with the next bytes of the body and return how many there are.

        They are fewer than `view` has only at the end of the body, or if the sender closed the connection. Raises
        `TimeoutError` if nothing arrives for `idle` seconds.
        """
        with_head = min(len(view), len(self._cycle.body))  # bytes that uvicorn received together with the headers
        if with_head:
            view[:with_head] = self._cycle.body[:with_head]
            del self._cycle.body[:with_head]
        room = min(len(view) - with_head, self._left)
        if room:
            return with_head + await self._fill(view[with_head : with_head + room], idle)
        return with_head

    async def _fill(self, view: memoryview, idle: float) -> int:
        if self._lost:
            return 0
        self._view, self._filled, self._arrived = view, 0, self._loop.time()
        self._waiter = self._loop.create_future()
        self._check_idle_after(idle, idle)
        self._http.flow.resume_reading()
        try:
            await self._waiter
        finally:
            self._pause()
            self._waiter, self._view = None, memoryview(b"")
        return self._filled

    def _pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._lost and not self._http.transport.is_closing():
            self._http.flow.pause_reading()

    def _check_idle_after(self, seconds: float, idle: float) -> None:
        """Check in `seconds` whether bytes have arrived within `idle` seconds. One timer serves many packets."""

        def check() -> None:
            left = self._arrived + idle - self._loop.time()
            if left > 0:
                self._check_idle_after(left, idle)
            elif self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(TimeoutError())

        self._timer = self._loop.call_later(seconds, check)

    def finish(self) -> None:
        """Give the connection back after the whole body has been read. The next ASGI message is the empty, last one."""
        if self._lost or self._given_back:
            return
        self._given_back = True
        self._http.take_back()
        self._cycle.more_body = False
        self._cycle.message_event.set()
        self._http.flow.resume_reading()

    def abandon(self) -> None:
        """Discard the rest of the body as it arrives. Each arrival wakes readers of ASGI messages."""
        if self._left == 0:
            self.finish()
        elif not self._lost:
            self._cycle.body.clear()
            self._discarding, self._view, self._filled = True, memoryview(bytearray(_DISCARD_BYTES)), 0
            self._http.flow.resume_reading()

    # --- calls by the transport --------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return a buffer no longer than the rest of the body (`asyncio.BufferedProtocol`)."""
        return self._view[self._filled :][: self._left]

    def buffer_updated(self, nbytes: int) -> None:
        """Count received bytes; wake the reader when its buffer is full (`asyncio.BufferedProtocol`)."""
        self._left -= nbytes
        if self._discarding:
            if self._left == 0:
                self.finish()
            self._cycle.message_event.set()
            return
        self._filled += nbytes
        self._arrived = self._loop.time()
        if self._filled == len(self._view):
            self._http.flow.pause_reading()
            self._wake()

    def eof_received(self) -> Any:
        """Pass on that the sender has closed its side (`asyncio.BufferedProtocol`)."""
        return self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the reader, and pass on that the connection is closed (`asyncio.BufferedProtocol`)."""
        self._lost = True
        self._wake()
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._http.resume_writing()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
