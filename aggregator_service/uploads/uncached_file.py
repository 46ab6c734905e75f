"""A file that is written once from page-aligned memory, bypassing the page cache (O_DIRECT) where the system allows it.

Bodies are read much later, if at all. Copying them into the page cache costs CPU time and evicts the database's pages.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

__all__ = ["UncachedFile"]

_FLAGS: Final = os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL
_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_BLOCK: Final = 4096
"""Direct writes are aligned to this many bytes in memory, length and file offset: enough for any disk."""


class UncachedFile:
    """Creates the file `path` and appends to it, after `start` free bytes. `OSError` when the system refuses."""

    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        self._direct = bool(_DIRECT) and start % _BLOCK == 0
        self._descriptor = self._open()
        os.lseek(self._descriptor, start, os.SEEK_SET)

    def append(self, view: memoryview) -> None:
        """Write bytes that start at a page boundary. Every call but the last one writes whole pages."""
        whole = len(view) // _BLOCK * _BLOCK if self._direct else 0
        self._write(view[:whole])
        if whole < len(view):
            self._use_page_cache()
            self._write(view[whole:])

    def sync(self) -> None:
        """Flush the file to disk and drop its pages from the page cache."""
        os.fsync(self._descriptor)
        if not self._direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _write(self, view: memoryview) -> None:
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._use_page_cache()  # the disk needs a larger alignment

    def _use_page_cache(self) -> None:
        if self._direct:
            self._direct = False
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_DIRECT)

    def _open(self) -> int:
        try:
            return os.open(self._path, _FLAGS | (_DIRECT if self._direct else 0), 0o600)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False  # tmpfs and network file systems have no direct writes
            self._path.unlink(missing_ok=True)  # Linux creates the file before it refuses the flag
        return self._open()
