"""How often the engine reads a task while clients send what its round waits for.

A read takes longer the larger the cohort is, and most of them would find nothing to do. So a read counts how many
clients must still send something before an action can be due, and the next one waits for them, though never long. When
the last client of a stage has sent its message, nothing is gained by waiting: the task is read at once.

A read may have seen what was sent while it ran. That is counted twice then, so that the next read may come too early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
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
        self._needed, self._missing = 1.0, 0
        self._unnoticed, self._delivered = 0.0, 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf  # when the timer calls: uvloop's handle gives it rounded

    def begin_read(self) -> None:
        """Note that the task is being read now. The read may miss what is sent meanwhile."""
        self._begun = asyncio.get_running_loop().time()
        self._unnoticed, self._delivered = 0.0, 0

    def end_read(self, needed: int, missing: int) -> None:
        """Note the end of a read.

        needed: clients that must send something before an action can be due. missing: clients whose message the round's
        state waits for; 0 when it waits for none.
        """
        self._ended = asyncio.get_running_loop().time()
        pause = _PAUSE_FACTOR * (self._ended - self._begun)
        self._next_read, self._needed = self._ended + min(_MAX_PAUSE, max(_MIN_PAUSE, pause)), needed
        self._missing = missing - self._delivered
        if self._unnoticed:
            self._needed -= self._unnoticed
            self._read_soon(at_once=self._delivered > 0 >= self._missing)

    def delivered(self) -> None:
        """Read the task soon, at once after the last message of a stage: a client sent its message."""
        self._missing -= 1
        self._delivered += 1
        self._needed -= 1
        self._unnoticed += 1
        self._read_soon(at_once=self._missing <= 0)

    def progressed(self, sent: float) -> None:
        """Read the task soon: there are so many new members, or messages of clients; `inf` if unknown."""
        self._needed -= sent
        self._unnoticed += sent
        self._read_soon()

    def _read_soon(self, *, at_once: bool = False) -> None:
        """Read the task when enough has been sent, but not too often: many calls share a read."""
        loop = asyncio.get_running_loop()
        due = self._next_read if self._needed <= 0 else self._ended + _MAX_PAUSE
        if at_once or due <= loop.time():
            self.stop()
            self._wake()
        elif due < self._due:
            self.stop()
            self._due, self._timer = due, loop.call_at(due, self._read_now)

    def stop(self) -> None:
        """Cause no read any more, until something is sent again."""
        if self._timer is not None:
            self._timer.cancel()
            self._due, self._timer = inf, None

    def _read_now(self) -> None:
        self._due, self._timer = inf, None
        self._wake()
