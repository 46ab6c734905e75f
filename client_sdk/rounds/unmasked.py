"""One client in one unmasked round: catch up, train, seal, upload.

It computes a part of its next seal while it waits for a round, where the mechanism has such a part.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from queue import Empty, Queue
from typing import Any, Final, NoReturn, Self

import numpy as np

from client_sdk.api.wire import Program
from client_sdk.errors import RoundLost
from client_sdk.history import History
from client_sdk.model.follow import CaughtUp
from client_sdk.rounds.contribution import OwnRound, require_data
from client_sdk.rounds.events import Progress, RoundReport, SnapshotPublished
from client_sdk.rounds.part import Part
from protocols.messages import RoundView

_SNAPSHOT_VOLUNTEERS = 3.0
"""Average number of cohort members that check whether a snapshot is due: of several uploads only one is kept."""


def take_unmasked_part(part: Part, view: RoundView, history: History, progress: Progress) -> Program[RoundReport]:
    """Catch up, train, seal and upload one contribution to the round `view`; return the report.

    Raises `PolicyRefused`, `Abstained`, and the errors of catching up, of `contribution.train` and of the upload.
    """
    member, own = part.member, OwnRound(part, view, history, progress)
    member.policy.check_round(view)
    member.store.require_no_equivocation(member.task_id)
    spec = own.spec
    with own.timed("catch_up"):
        yield from part.ready(progress)
        if member.terms.chained and part.follower.known >= view.number:
            raise RoundLost(
                f"this device holds the sums up to round {part.follower.known}, and the server would release others "
                "for the same rounds: an encrypted task cannot go on after its server was restored from a backup; its "
                "operator closes it and creates another"
            )
        caught_up = yield from own.catch_up()
        require_data(part, spec, caught_up.state, history)
    local = yield from own.train(caught_up)
    made = yield from own.make(caught_up, local)
    with own.timed("upload"):
        yield from own.metered(own.deliver(made.message, caught_up))
    yield from own.keep_state(local)
    yield from own.metered(_publish_snapshot_when_due(own, caught_up))
    return own.report(caught_up, local, made, len(made.message))


def _publish_snapshot_when_due(own: OwnRound, caught_up: CaughtUp) -> Program[None]:
    member, follower = own.part.member, own.part.follower
    if np.random.default_rng().random() * own.view.cohort > _SNAPSHOT_VOLUNTEERS:
        return
    published = yield from follower.publish_when_due(caught_up.followed, member.policy.snapshot_every)
    if published:
        own.progress(SnapshotPublished(caught_up.state.round_number))


# --- work ahead: while a client waits for a round, a thread computes a part of its next seal -------------------------

_NICE: Final = 19
"""Niceness of the thread where every thread has its own (Linux): the lowest priority."""


class WorkAhead:
    """At most `most` pieces, 1 or more, that `make` computes in a thread within the `with` block, and one in its hand.

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
