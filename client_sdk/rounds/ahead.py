"""Work ahead: while a client waits for a round, a thread of the lowest priority computes a part of its next seal."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NoReturn, Self

__all__ = ["WorkAhead"]

_NICE: Final = 19
"""Niceness of the thread where every thread has its own (Linux): the lowest priority."""


class WorkAhead:
    """At most `most` pieces that `make` computes in a thread, within the `with` block.

    Each piece leaves once and is never put back, written down or copied. A forked process has none: a piece that two
    processes use would reveal what it hides (`protocols.sums.base.WorksAhead`).
    """

    def __init__(self, make: Callable[[], Any], most: int) -> None:
        self._make, self._most = make, most
        self._ready: deque[Any] = deque()
        self._owner = os.getpid()
        self._wanted, self._stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="work-ahead", daemon=True)

    def __repr__(self) -> str:
        return f"<WorkAhead {len(self)} of {self._most}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("pieces of a seal cannot be copied or pickled")

    def __len__(self) -> int:
        """Number of pieces that are ready."""
        return len(self._ready) if os.getpid() == self._owner else 0

    def __enter__(self) -> Self:
        self._wanted.set()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._wanted.set()
        self._thread.join()
        self._ready.clear()

    def take(self, count: int) -> list[Any]:
        """Remove and return at most `count` pieces; new ones are made in their place."""
        taken: list[Any] = []
        if os.getpid() != self._owner:
            return taken
        with contextlib.suppress(IndexError):
            for _ in range(count):
                taken.append(self._ready.popleft())  # atomic: two threads never get the same one
        self._wanted.set()
        return taken

    def _run(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            self._wanted.wait()
            self._wanted.clear()
            while not self._stopping and len(self._ready) < self._most:
                self._ready.append(self._make())
            if self._stopping:
                return
