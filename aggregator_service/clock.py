"""Time as an argument: deadlines are compared with a clock that tests can hold still."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Seconds since the epoch; wall time, because deadlines outlive the process."""

    def now(self) -> float:
        """The time."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """`time.time()`."""
        return time.time()


class ManualClock:
    """A clock that only moves when told to: for simulations and tests."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """The time it was set to."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self._now += seconds
