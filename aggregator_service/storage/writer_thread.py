"""A thread that commits: a pool's thread costs several times as much to reach as a short transaction takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

__all__ = ["WriterThread"]

_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]", Callable[[], None]]


class WriterThread:
    """Executes calls one after the other. It starts with the first call, and does not keep the process alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[Any], None], argument: Any) -> None:
        """Call `work(argument)` in the thread, in a copy of the caller's context; raise what it raises.

        A caller that is cancelled waits for the end of the call, too.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        context = copy_context()
        if self._thread is None:
            self._thread = threading.Thread(target=self._execute, name="writer", daemon=True)
            self._thread.start()
        self._calls.put((loop, future, lambda: context.run(work, argument)))
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def close(self) -> None:
        """Wait until all calls have been executed, and end the thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _execute(self) -> None:
        while (call := self._calls.get()) is not None:
            loop, future, work = call
            failure: Exception | None = None
            try:
                work()
            except Exception as error:
                failure = error
            with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, future, failure)
            del call, future, work, failure


def _resolve(future: asyncio.Future[None], failure: Exception | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
