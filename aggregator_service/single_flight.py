"""Results that concurrent requests share: computed once, one at a time, and kept for a while."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

__all__ = ["SingleFlight"]

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """The results of a slow function by key. Use it in one event loop.

    Requests for the same key await one computation, and computations of different keys run one after the other: waiting
    requests use neither a thread nor a processor. most: results that are kept; the least recently used one is dropped.
    seconds: how long a result is kept after it was computed. A computation that raises is not kept.
    """

    def __init__(self, most: int, seconds: float = math.inf) -> None:
        self._most, self._seconds = most, seconds
        self._turn = asyncio.Semaphore(1)
        self._running: dict[Hashable, asyncio.Task[Result]] = {}
        self._kept: OrderedDict[Hashable, tuple[float, Result]] = OrderedDict()

    async def get(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """Return the kept result of `key`, or that of `compute`, which runs in a thread."""
        if (kept := self._kept.get(key)) is not None and time.monotonic() - kept[0] < self._seconds:
            self._kept.move_to_end(key)
            return kept[1]
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._compute(key, compute))
        return await asyncio.shield(task)  # a client that goes away does not cancel what others await

    async def _compute(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        try:
            async with self._turn:
                result = await run_in_threadpool(compute)
            self._kept[key] = time.monotonic(), result
            self._kept.move_to_end(key)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return result
        finally:
            del self._running[key]
