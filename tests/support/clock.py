"""A clock that tests and simulations set."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only by `advance`. start: seconds since the epoch."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
