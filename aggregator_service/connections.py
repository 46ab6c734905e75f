"""Connections: what precedes a body has an end, too. llhttp itself reads headers of any length, at any pace."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["BoundedHttp"]


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with at most so many bytes and seconds from a request's first byte to the end of its headers.

    A new connection has as many seconds to begin; between requests uvicorn's own keep-alive timeout holds.
    """

    head_bytes = 64 * 1024
    head_seconds = 20.0

    _head_open = True
    _head_taken = 0
    _head_timer: asyncio.TimerHandle | None = None

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
        super().data_received(data)
        if self._head_open and not self.transport.is_closing():
            self._head_taken += len(data)
            if self._head_taken > self.head_bytes:
                self._stop_timer()
                self.send_400_response("The request's headers are too long.")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """The end of the headers: the body has limits of its own."""
        self._head_open = False
        self._stop_timer()
        super().on_headers_complete()

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
