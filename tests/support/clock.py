"""A clock that tests and simulations set."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only by `advance`. start: seconds since the epoch."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds`."""
        self._now += seconds
