"""A new file that is written once, from page-aligned memory, and read much later, if at all: past the page cache where
the system can. Copying bodies into the cache would cost more than hashing half of them does, and push out of it what is
read all the time: the database.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

__all__ = ["NewFile"]

_NEW: Final = os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL
_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_BLOCK: Final = 4096
"""What direct writes are multiples of, in memory, length and place, on any disk."""


class NewFile:
    """The new file `path`, with room for `start` bytes before what is appended. `OSError` where the system refuses."""

    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        self._direct = bool(_DIRECT) and start % _BLOCK == 0
        self._descriptor = self._open()
        os.lseek(self._descriptor, start, os.SEEK_SET)

    def append(self, view: memoryview) -> None:
        """Write bytes that begin at a page of memory; all but the last ones are whole pages."""
        whole = len(view) // _BLOCK * _BLOCK if self._direct else 0
        self._write(view[:whole])
        if whole < len(view):
            self._through_the_cache()
            self._write(view[whole:])

    def sync(self) -> None:
        """All of it is on disk now, and as little as possible of it in memory."""
        os.fsync(self._descriptor)
        if not self._direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Nothing is written any more."""
        os.close(self._descriptor)

    def _write(self, view: memoryview) -> None:
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._through_the_cache()  # this disk has blocks of its own mind

    def _through_the_cache(self) -> None:
        if self._direct:
            self._direct = False
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_DIRECT)

    def _open(self) -> int:
        try:
            return os.open(self._path, _NEW | (_DIRECT if self._direct else 0), 0o600)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False  # a file system in memory, or over a network
            self._path.unlink(missing_ok=True)  # Linux makes the file before it refuses the flag
        return self._open()
