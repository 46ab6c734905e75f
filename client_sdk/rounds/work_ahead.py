"""Work ahead: while a client waits for a round, a thread computes a part of its next seal, if the mechanism has one."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, Queue
from typing import Any, Final, NoReturn, Self

from client_sdk.rounds.part import Part
from protocols.sums.base import one_message


@contextlib.contextmanager
def working_ahead(part: Part) -> Iterator[None]:
    """Let the client compute a part of its next seal between rounds, if the mechanism has such a part."""
    mechanism, keyring, plan = part.member.terms.mechanism, part.follower.keyring, part.member.terms.sum_plan
    if mechanism.interactive or keyring is None or not (most := one_message(mechanism).pieces(plan)):
        yield
        return
    with WorkAhead(partial(one_message(mechanism).make_piece, plan, keyring), most) as ahead:
        part.take_ahead = ahead.take
        yield
    part.take_ahead = None


_NICE: Final = 19
"""Niceness of the thread where every thread has its own (Linux): the lowest priority."""


class WorkAhead:
    """At most `most` pieces, 1 or more, that `make` computes in a thread within the `with` block.

    One more may be done and wait for room.

    Each piece leaves once and is never put back, written down or copied. A forked process has none: a piece that two
    processes use would reveal what it hides (`protocols.sums.base.OneMessage`).
    """

    def __init__(self, make: Callable[[], Any], most: int) -> None:
        self._make, self._most = make, most
        self._ready: Queue[Any] = Queue(most)
        self._owner = os.getpid()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="work-ahead", daemon=True)

    def __repr__(self) -> str:
        return f"<WorkAhead {len(self)} of {self._most}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("pieces of a seal cannot be copied or pickled")

    def __len__(self) -> int:
        """Number of pieces that are ready."""
        return self._ready.qsize() if os.getpid() == self._owner else 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self.take(self._most)  # the thread may wait for a place
        self._thread.join()
        self.take(self._most)

    def take(self, count: int) -> list[Any]:
        """Remove and return at most `count` pieces; new ones are made in their place."""
        taken: list[Any] = []
        with contextlib.suppress(Empty):
            while os.getpid() == self._owner and len(taken) < count:
                taken.append(self._ready.get_nowait())
        return taken

    def _run(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._stopping:
            self._ready.put(self._make())
