"""Files mapped into memory, read-only: their pages count as memory of the process from their first use on."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import BinaryIO

__all__ = ["forget_pages", "map_file", "map_open_file"]


class _FileMap(mmap.mmap):
    """A read-only mapping of a file. Of other mappings, forgotten pages would come back as zeros."""


def map_file(path: Path) -> memoryview:
    """Map a file into memory, read-only. The mapping ends with its last reference."""
    with path.open("rb") as file:
        return map_open_file(file)


def map_open_file(file: BinaryIO) -> memoryview:
    """Map an open file into memory, read-only; b"" for an empty one. The mapping ends with its last reference."""
    size = os.fstat(file.fileno()).st_size
    return memoryview(_FileMap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")


def forget_pages(view: memoryview | bytes | bytearray | None) -> None:
    """Take the pages of a mapped file out of this process's memory; they are read again if they are used again.

    Other buffers are left alone: only the file can give the bytes back.
    """
    if isinstance(view, memoryview) and isinstance(view.obj, _FileMap):
        view.obj.madvise(mmap.MADV_DONTNEED)
