"""Requests that restart the server when it died."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from typing import TypeVar

import httpx

from tests.support.server import AggregatorProcess

__all__ = ["Persistent"]

Answer = TypeVar("Answer")


class Persistent:
    """Repeats a request until it is answered, restarting the server when it died. Counts the deaths."""

    def __init__(self, server: AggregatorProcess, points: Iterable[str] = ()) -> None:
        """points: crash points for the restarts, one after the other."""
        self.server = server
        self.deaths = 0
        self._points = iter(points)

    def __call__(self, request: Callable[[], Answer]) -> Answer:
        """Return the result of `request`, after at most five attempts."""
        for _ in range(5):
            try:
                return request()
            except httpx.TransportError:
                self.revive()
        raise AssertionError("no answer after five attempts")

    def revive(self) -> None:
        """Wait until the server was killed, and start it again."""
        assert self.server.wait_dead() == -signal.SIGKILL
        self.deaths += 1
        self.server.start(crash_at=next(self._points, ""))
