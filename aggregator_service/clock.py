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
