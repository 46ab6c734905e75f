"""Buffers that bodies are read into: used again and again, and smaller when many bodies arrive at once.

A body that fits into one buffer is checked and written from there, all at once; a longer one has two, one of which is
written to disk while the other one fills. Fresh memory would cost more than what is done with it: the system clears
every page before it hands it out. They begin at a page, as `newfile` would have it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

__all__ = ["Buffers"]

LARGEST: Final = 8 * 1024 * 1024
SMALLEST: Final = 64 * 1024
_MOST: Final = 64 * 1024 * 1024


class Buffers:
    """The buffers of one process; in its event loop only.

    They are 64 MiB together, where that leaves each body two of 64 KiB; so much is kept for later, too.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[mmap]] = defaultdict(list)
        self._kept = self._lent = 0

    def size(self, length: int) -> int:
        """Bytes of each buffer of one more body of `length` bytes: a power of two."""
        size = LARGEST
        while size > SMALLEST and (size >= 2 * length or self._lent + size > _MOST):
            size //= 2
        return size

    @contextmanager
    def lend(self, length: int) -> Iterator[tuple[memoryview, ...]]:
        """The buffer, or two, for a body of `length` bytes; nothing may use them after the block."""
        size = self.size(length)
        lent = [self._take(size) for _ in range(1 if length <= size else 2)]
        self._lent += size * len(lent)
        try:
            yield tuple(memoryview(buffer) for buffer in lent)
        finally:
            self._lent -= size * len(lent)
            for buffer in lent:
                self._keep(buffer)

    def _take(self, size: int) -> mmap:
        if not self._free[size]:
            return mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)
        self._kept -= size
        return self._free[size].pop()

    def _keep(self, buffer: mmap) -> None:
        if self._kept + len(buffer) <= _MOST:
            self._kept += len(buffer)
            self._free[len(buffer)].append(buffer)
