"""Shared reads: requests that look up one row each, at the same time, share one query and one hop to a thread.

While one query runs, the look-ups that arrive wait, and the next query takes all of them: each finds what was committed
before it was made, exactly as with a query of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

_MOST: Final = 64
"""Most keys of one query, as in a group commit."""
Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class SharedReads(Generic[Key, Found]):
    """Looks keys up with `read`, in a thread of its own: it returns what it found by key. Use it in one event loop."""

    def __init__(self, read: Callable[[Sequence[Key]], Mapping[Key, Found]]) -> None:
        self._read = read
        self._waiting: dict[Key, asyncio.Future[Found | None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shared-reads")

    async def get(self, key: Key) -> Found | None:
        """Return what is found for `key` now; None for nothing. Raises what `read` raised for all that shared it."""
        if key not in self._waiting:
            self._waiting[key] = asyncio.get_running_loop().create_future()
        future = self._waiting[key]
        if self._reading is None:
            self._begin()
        return await asyncio.shield(future)

    def close(self) -> None:
        """Wait for the query in progress, and end the thread."""
        self._thread.shutdown()

    def _begin(self) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._read_waiting())

    async def _read_waiting(self) -> None:
        keys = list(self._waiting)[:_MOST]
        futures = {key: self._waiting.pop(key) for key in keys}
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._read, keys)
        except asyncio.CancelledError:  # the server stops
            for future in futures.values():
                future.cancel()
        except Exception as error:
            for future in futures.values():
                future.set_exception(error)
                future.exception()  # nobody may be left who waits for it
        else:
            for key, future in futures.items():
                future.set_result(found.get(key))
        self._reading = None
        if self._waiting:
            self._begin()
