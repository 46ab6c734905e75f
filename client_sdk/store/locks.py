"""A lock on an open file that holds between processes, and is free again when its process ends, however it ends."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Any, Final

__all__ = ["try_lock"]

_HELD: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK})
"""What the systems say when another handle holds the lock: `flock` the first two, `LockFile` of Windows the others."""


def try_lock(handle: int, platform: str = sys.platform) -> bool:
    """Lock the file that is open as `handle` until it is closed; return False if another handle has locked it.

    handle: a file descriptor, open for writing. platform: as `sys.platform`. Unix: `flock` on the file. Windows:
    `LockFile` on its first byte, which need not exist. Raises `OSError` for other failures.
    """
    try:
        if platform == "win32":
            msvcrt: Any = import_module("msvcrt")  # Any: its type stub is empty on other systems
            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True
