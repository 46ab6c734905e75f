"""Page-aligned buffers that bodies are read into, kept for reuse and smaller when many bodies arrive at once.

A body that fits into one buffer is verified and written from it. A longer one gets two: one is written to disk while
the other one fills. Buffers are reused because the kernel clears every page of new memory, which costs more than
receiving the body. They are aligned to pages because `uncached_file` writes from them directly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

__all__ = ["BufferPool"]

LARGEST: Final = 8 * 1024 * 1024
SMALLEST: Final = 64 * 1024
_MOST: Final = 64 * 1024 * 1024
"""Bytes that the pool lends, as long as each body still gets two of the smallest buffers, and keeps for reuse."""


class BufferPool:
    """The buffers of one process. Not thread-safe: call it in the event loop."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[mmap]] = defaultdict(list)
        self._kept = self._lent = 0

    def size(self, length: int) -> int:
        """Return the size (bytes, a power of two) of each buffer that a further body of `length` bytes would get."""
        size = LARGEST
        while size > SMALLEST and (size >= 2 * length or self._lent + size > _MOST):
            size //= 2
        return size

    @contextmanager
    def lend(self, length: int) -> Iterator[tuple[memoryview, ...]]:
        """Lend one or two buffers for a body of `length` bytes. Nothing may use them after the block."""
        size = self.size(length)
        lent = [self._take(size) for _ in range(1 if length <= size else 2)]
        self._lent += size * len(lent)
        try:
            yield tuple(memoryview(buffer) for buffer in lent)
        finally:
            self._lent -= size * len(lent)
            for buffer in lent:
                self._return_to_pool(buffer)

    def _take(self, size: int) -> mmap:
        if not self._free[size]:
            return mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)
        self._kept -= size
        return self._free[size].pop()

    def _return_to_pool(self, buffer: mmap) -> None:
        if self._kept + len(buffer) <= _MOST:
            self._kept += len(buffer)
            self._free[len(buffer)].append(buffer)
