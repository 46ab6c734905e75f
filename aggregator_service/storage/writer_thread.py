"""A thread that commits: a pool's thread costs several times as much to reach as a short transaction takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

__all__ = ["WriterThread"]

_End = Callable[[Exception | None], None]
_Call = tuple[asyncio.AbstractEventLoop, Callable[[], None], _End]


class WriterThread:
    """Executes calls one after the other. It starts with the first call, and does not keep the process alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], None], end: _End) -> None:
        """Call `work` in the thread, and then `end` in this event loop, with the exception that `work` raised or None.

        A call is executed even if the event loop is closed meanwhile; nobody waits for its end then.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._execute, name="writer", daemon=True)
            self._thread.start()
        self._calls.put((asyncio.get_running_loop(), work, end))

    def close(self) -> None:
        """Wait until all calls have been executed, and end the thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _execute(self) -> None:
        while (call := self._calls.get()) is not None:
            loop, work, end = call
            failure: Exception | None = None
            try:
                work()
            except Exception as error:
                failure = error
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(end, failure)
            del call, work, end, failure
