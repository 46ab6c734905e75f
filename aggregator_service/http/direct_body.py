"""Bodies straight from the connection: the kernel writes them into our buffers, and no parser sees them.

uvicorn hands a body on as ASGI messages: each of some 200 KB, allocated, copied three times and waited for by itself.
Where a body has a Content-Length nothing has to be parsed until it is over. `DirectBody` takes the connection over for
so many bytes, as an `asyncio.BufferedProtocol`, and gives it back to HTTP at the byte where the next request begins: it
never offers room for more.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["EXTENSION", "DirectBody"]

EXTENSION: Final = "hushrec.direct_body"
"""Where a scope's `extensions` hold what begins a direct body (`DirectBody.begin`, but for the connection)."""
_WORTH_IT: Final = 64 * 1024
_THROWN_AWAY: Final = 64 * 1024


class HttpConnection(Protocol):
    """What a direct body needs of the HTTP protocol whose connection it takes over: uvicorn's, and a way back."""

    @property
    def cycle(self) -> RequestResponseCycle: ...

    @property
    def flow(self) -> FlowControl: ...

    @property
    def transport(self) -> asyncio.Transport: ...

    def take_back(self) -> None:
        """Make the connection HTTP's again, at the first byte of the next request."""

    def eof_received(self) -> Any: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class DirectBody(asyncio.BufferedProtocol):
    """The rest of one request's body. Reading is paused unless somebody reads.

    For as long as a body is read the transport talks to this object; what is not about bytes goes on to `http`.
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
        """Take the connection over for what is left of a body; None where the usual way is as good, or the only one."""
        left = length - len(cycle.body)
        plain = cycle.more_body and not cycle.disconnected and not cycle.waiting_for_100_continue
        if http.cycle is not cycle or not plain or left < _WORTH_IT:
            return None
        return cls(http, cycle, left)

    async def read_into(self, view: memoryview, idle: float) -> int:
        """Fill `view` with what comes next; fewer bytes only when the body ends or the sender hangs up.

        `TimeoutError` when nothing comes for `idle` seconds.
        """
        with_head = min(len(view), len(self._cycle.body))  # what came in one packet with the head, uvicorn has parsed
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
        self._look_after(idle, idle)
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

    def _look_after(self, seconds: float, idle: float) -> None:
        """Whether the sender still sends: one timer a step, not one a packet."""

        def look() -> None:
            left = self._arrived + idle - self._loop.time()
            if left > 0:
                self._look_after(left, idle)
            elif self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(TimeoutError())

        self._timer = self._loop.call_later(seconds, look)

    def finish(self) -> None:
        """The body is taken: the connection is HTTP's again. The next ASGI message is the empty, last one."""
        if self._lost or self._given_back:
            return
        self._given_back = True
        self._http.take_back()
        self._cycle.more_body = False
        self._cycle.message_event.set()
        self._http.flow.resume_reading()

    def abandon(self) -> None:
        """Nobody wants the rest: it is thrown away as it comes, and whoever waits for messages sees it coming."""
        if self._left == 0:
            self.finish()
        elif not self._lost:
            self._cycle.body.clear()
            self._discarding, self._view, self._filled = True, memoryview(bytearray(_THROWN_AWAY)), 0
            self._http.flow.resume_reading()

    # --- the transport's calls --------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Room for no more than the body has left."""
        return self._view[self._filled :][: self._left]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes are there."""
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
        """The sender has nothing more to say."""
        return self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The sender is gone."""
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
