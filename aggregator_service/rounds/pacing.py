"""How often the engine reads a task while clients send what its round waits for.

A read takes longer the larger the cohort is, and most of them would find nothing to do. So a read counts how many
clients must still send something before an action can be due, and the next one waits for them, though never long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["Pace"]

_MIN_PAUSE: Final = 0.05
_MAX_PAUSE: Final = 0.5
_PAUSE_FACTOR: Final = 10.0
"""Seconds between two reads that contributions cause: this many times what a read takes, within the two bounds."""


class Pace:
    """When one task is read again. wake: causes the read. Use it in the event loop."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._begun = self._ended = self._next_read = 0.0
        self._needed, self._unnoticed = 1.0, 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin_read(self) -> None:
        """Note that the task is being read now. The read may miss what is sent meanwhile."""
        self._begun = asyncio.get_running_loop().time()
        self._unnoticed = 0.0

    def end_read(self, needed: int) -> None:
        """Note the end of a read. needed: clients that must send something before an action can be due."""
        self._ended = asyncio.get_running_loop().time()
        pause = _PAUSE_FACTOR * (self._ended - self._begun)
        self._next_read, self._needed = self._ended + min(_MAX_PAUSE, max(_MIN_PAUSE, pause)), needed
        if self._unnoticed:
            self.progressed(self._unnoticed)

    def progressed(self, sent: float) -> None:
        """Read the task soon: so many clients sent something, `inf` if unknown. Many calls share a read."""
        self._needed -= sent
        self._unnoticed += sent
        due = self._next_read if self._needed <= 0 else self._ended + _MAX_PAUSE
        loop = asyncio.get_running_loop()
        if due <= loop.time():
            self.stop()
            self._wake()
        elif self._timer is None or due < self._timer.when():
            self.stop()
            self._timer = loop.call_at(due, self._read_now)

    def stop(self) -> None:
        """Cause no read any more, until something is sent again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read_now(self) -> None:
        self._timer = None
        self._wake()
