"""One line per event, for demos whose output is a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.markup import escape

__all__ = ["EventLines"]

_STAGE_SECONDS: Final = 5.0


class EventLines:
    """Prints events to `console`, and stages that change quickly at most once in 5 seconds each.

    clock: seconds that only increase.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._next_stage = -1.0

    def event(self, subject: str, text: str) -> None:
        """Print `text` about `subject`."""
        line = f"{subject}: {text}" if subject else text
        self._console.print(escape(line), highlight=False, soft_wrap=True)

    def stage(self, subject: str, text: str) -> None:
        """Print `text` about `subject`, unless another stage was printed in the last 5 seconds."""
        now = self._clock()
        if now >= self._next_stage:
            self._next_stage = now + _STAGE_SECONDS
            self.event(subject, text)
