"""Read a request body into buffers: directly from the connection where the server allows it, else ASGI messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from aggregator_service.http.direct_body import EXTENSION, DirectBody
from aggregator_service.problems import Problem
from aggregator_service.settings import Settings

__all__ = ["BodyReader", "open_body", "stopped", "too_long", "too_short"]


def too_short(received: int, length: int) -> Problem:
    """Return the problem of a body that ended early."""
    return Problem("body-too-short", f"the body ended after {received} of {length} bytes", expected_bytes=length)


def too_long(length: int) -> Problem:
    """Return the problem of a body with more bytes than announced."""
    return Problem("body-too-long", f"the body may have {length} bytes", expected_bytes=length)


def stopped(received: int, length: int) -> Problem:
    """Return the problem of a body that paused for too long, or arrived too slowly."""
    return Problem("upload-timeout", f"the body stopped arriving after {received} of {length} bytes")


class BodyReader:
    """Reads exactly `length` bytes of a request's body.

    length: bytes of the body. received: bytes read so far. idle: the longest pause between two packets, in seconds.
    """

    def __init__(self, request: Request, length: int, idle: float) -> None:
        self.length, self.received = length, 0
        self._request, self._idle = request, idle
        self._rest = b""
        self._more = True
        begin = request.scope.get("extensions", {}).get(EXTENSION)
        self._direct: DirectBody | None = begin(length) if begin is not None else None

    async def read_into(self, view: memoryview) -> None:
        """Fill `view`, which is not longer than the rest of the body, with the next bytes.

        Raises `Problem` body-too-short when the body ends earlier, `TimeoutError` after a pause longer than `idle`.
        """
        read = self._read_messages(view) if self._direct is None else self._direct.read_into(view, self._idle)
        count = await read
        self.received += count
        if count < len(view):
            raise too_short(self.received, self.length)

    async def _read_messages(self, view: memoryview) -> int:
        filled = 0
        while filled < len(view):
            if not self._rest:
                if not self._more:
                    break
                self._rest = await self._next_message()
            taken = min(len(view) - filled, len(self._rest))
            view[filled : filled + taken] = self._rest[:taken]
            self._rest = self._rest[taken:]
            filled += taken
        return filled

    async def _next_message(self) -> bytes:
        async with asyncio.timeout(self._idle):
            message = await self._request.receive()
        if message["type"] != "http.request":
            self._more = False
            return b""
        self._more = message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def finish(self) -> None:
        """Check that the body has ended. Raises `Problem` body-too-long when there are more bytes."""
        if self._direct is not None:
            self._direct.finish()
        while self._more and not self._rest:
            self._rest = await self._next_message()
        if self._rest:
            raise too_long(self.length)

    def report_received(self) -> None:
        """Store the bytes received directly in the ASGI scope: the request metrics cannot count them from messages."""
        if self._direct is not None:
            self._request.scope["hushrec.received"] = self.received

    def abandon(self) -> None:
        """Discard the rest of the body as it arrives."""
        if self._direct is not None:
            self._direct.abandon()


@asynccontextmanager
async def open_body(request: Request, settings: Settings, length: int) -> AsyncIterator[BodyReader]:
    """Return a reader of a request's body; the block must read all of its `length` bytes.

    Raises `Problem` body-too-short or body-too-long for another length, and upload-timeout when a pause is longer than
    `body_idle_seconds` or the whole is slower than `min_upload_rate`.
    """
    reader = BodyReader(request, length, settings.body_idle_seconds)
    try:
        async with asyncio.timeout(settings.body_idle_seconds + length / settings.min_upload_rate):
            yield reader
            await reader.finish()
    except BaseException as error:
        reader.abandon()
        if isinstance(error, TimeoutError):
            raise stopped(reader.received, length) from None
        raise
    finally:
        reader.report_received()
