"""Checkpoints of a SQLite database, beside the commits instead of in them.

SQLite appends commits to a write-ahead log, and copies the log into the database when it has grown to a number of
pages: by default in the commit that reaches it, which takes ten times as long as the others. A thread that copies
meanwhile leaves little to such a commit. Commits and reads do not wait for the thread (https://sqlite.org/wal.html).
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Final

__all__ = ["MOST_PAGES", "Checkpoints"]

_LOG = logging.getLogger(__name__)
MOST_PAGES: Final = 4000
"""A commit checkpoints by itself when the log has this many pages (16 MB), and the next one starts the log anew. While
commits follow one another without a pause, the thread cannot do that: it never finds the whole log copied. A longer
log would be written over more rarely, and to append to it takes longer."""
_WRITES: Final = 128
"""Writes between two checkpoints of the thread: 800 pages for contributions of 10 KB, 2,200 for those of 64 KiB."""


class Checkpoints:
    """Checkpoints the database `path` after every 128 writes of this process. Its thread starts with the first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writes = 0  # since the last checkpoint; not exact when several threads commit at the same moment
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def count(self, writes: int) -> None:
        """Count the writes of a commit, and let the thread checkpoint if there are enough. Does not wait."""
        self._writes += writes
        if self._writes >= _WRITES:
            self._writes = 0
            self._begin()

    def close(self) -> None:
        """Wait for a checkpoint in progress, and end the thread. Later writes begin no checkpoint."""
        with self._lock:
            self._closed = True
            if self._thread is not None:
                self._calls.put(False)
                self._thread.join()

    def _begin(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._execute, name="checkpoints", daemon=True)
                self._thread.start()
            if self._calls.empty():
                self._calls.put(True)

    def _execute(self) -> None:
        connection: sqlite3.Connection | None = None
        while self._calls.get():
            try:
                connection = connection or _connect(self._path)
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as error:  # the same happens to the commits, which report it
                _LOG.debug("no checkpoint of the database: %s", error)
        if connection is not None:
            connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    """Return a connection that only checkpoints. `synchronous` makes a checkpoint durable before the log is reused."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    return connection
