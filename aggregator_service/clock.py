"""The clock that deadlines are compared with. Tests and simulations use one that they set."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time, because deadlines are stored and outlive the process."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""


class SystemClock:
    """The system clock."""

    now = staticmethod(time.time)


class ManualClock:
    """A clock that moves only by `advance`, for simulations and tests. start: seconds since the epoch."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds`."""
        self._now += seconds
