"""A body as it comes in, asked for buffer by buffer: straight from the connection where that is possible, from ASGI
messages where it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from aggregator_service.http.direct_body import EXTENSION, DirectBody
from aggregator_service.problems import Problem
from aggregator_service.settings import Settings

__all__ = ["Incoming", "incoming"]


class Incoming:
    """Exactly `length` bytes of a request's body.

    No pause between two packets may be longer than `idle` seconds.
    """

    def __init__(self, request: Request, length: int, idle: float) -> None:
        self.length, self.received = length, 0
        self._request, self._idle = request, idle
        self._rest = b""
        self._more = True
        begin = request.scope.get("extensions", {}).get(EXTENSION)
        self._direct: DirectBody | None = begin(length) if begin is not None else None

    async def read_into(self, view: memoryview) -> None:
        """Fill `view` with the next bytes: no more than are left.

        `Problem` body-too-short when the body ends before that; `TimeoutError` when nothing comes any more.
        """
        read = self._read_messages(view) if self._direct is None else self._direct.read_into(view, self._idle)
        count = await read
        self.received += count
        if count < len(view):
            raise Problem(
                "body-too-short",
                f"the body ended after {self.received} of {self.length} bytes",
                expected_bytes=self.length,
            )

    async def _read_messages(self, view: memoryview) -> int:
        filled = 0
        while filled < len(view):
            if not self._rest:
                if not self._more:
                    break
                self._rest = await self._next()
            taken = min(len(view) - filled, len(self._rest))
            view[filled : filled + taken] = self._rest[:taken]
            self._rest = self._rest[taken:]
            filled += taken
        return filled

    async def _next(self) -> bytes:
        async with asyncio.timeout(self._idle):
            message = await self._request.receive()
        if message["type"] != "http.request":
            self._more = False
            return b""
        self._more = message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def end(self) -> None:
        """All of it is read: `Problem` body-too-long when there is more."""
        if self._direct is not None:
            self._direct.finish()
        while self._more and not self._rest:
            self._rest = await self._next()
        if self._rest:
            raise Problem("body-too-long", f"the body may have {self.length} bytes", expected_bytes=self.length)

    def note(self) -> None:
        """Tell whoever counts bytes by their messages of those that came without, those of refused bodies too."""
        if self._direct is not None:
            self._request.scope["hushrec.received"] = self.received

    def abandon(self) -> None:
        """Nobody reads on."""
        if self._direct is not None:
            self._direct.abandon()


@asynccontextmanager
async def incoming(request: Request, settings: Settings, length: int) -> AsyncIterator[Incoming]:
    """A body to be read within the block, no slower than `min_upload_rate`; `Problem` upload-timeout otherwise."""
    body = Incoming(request, length, settings.body_idle_seconds)
    try:
        async with asyncio.timeout(settings.body_idle_seconds + length / settings.min_upload_rate):
            yield body
            await body.end()
    except BaseException as error:
        body.abandon()
        if isinstance(error, TimeoutError):
            detail = f"the body stopped arriving after {body.received} of {length} bytes"
            raise Problem("upload-timeout", detail) from None
        raise
    finally:
        body.note()
