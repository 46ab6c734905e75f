"""A body that is written in place and then returned as bytes, without a copy of it."""

from __future__ import annotations

from io import BytesIO

__all__ = ["Draft"]


class Draft:
    """`length` zero bytes, writable as `body` until `finish`."""

    def __init__(self, length: int) -> None:
        self._stream = BytesIO(bytes(length))
        self.body = self._stream.getbuffer()

    def finish(self) -> bytes:
        """Return the bytes, which nothing changes any more: a view of `body` that is still in use costs a copy."""
        self.body.release()
        return self._stream.getvalue()
