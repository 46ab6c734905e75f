"""Following the rounds of a task: one program that every poll loop of the SDK calls.

change = None
while not isinstance(change, TaskEnded):
    change = yield from follow_rounds(calls, task_id, change)
    match change:
        case RoundChanged(view):
            ...  # the newest round is new, or in another state
        case NothingNew(task):
            ...  # no change within 20 s
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Pause, Program
from client_sdk.participation.events import Progress, TaskEnded, Waiting, waiting_to_start
from protocols.messages import RoundView, TaskView
from protocols.messages.stages import RoundState

__all__ = [
    "LONG_POLL_SECONDS",
    "NothingNew",
    "RoundChange",
    "RoundChanged",
    "await_round",
    "await_start",
    "follow_rounds",
    "is_over",
    "report_waiting",
]

LONG_POLL_SECONDS: Final = 20.0
"""How long one request waits for a change."""
_START_PAUSE: Final = 0.2
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundChanged:
    """`view` is the newest round, and it differs from what was seen last. `etag` identifies it in the next poll."""

    view: RoundView
    etag: str | None

    @property
    def is_over(self) -> bool:
        """Whether the round is complete or failed."""
        return is_over(self.view)


@dataclass(frozen=True)
class NothingNew:
    """The newest round did not change within the wait. `task` is open; `etag` is None before its first round."""

    task: TaskView
    etag: str | None


RoundChange = RoundChanged | NothingNew | TaskEnded


def is_over(view: RoundView) -> bool:
    """Return whether a round is complete or failed."""
    return view.state in (RoundState.COMPLETE, RoundState.FAILED)


def follow_rounds(
    calls: ApiCalls, task_id: str, last: RoundChange | None, wait: float = LONG_POLL_SECONDS
) -> Program[RoundChange]:
    """Return what changed in the task since `last`, waiting for a change for up to `wait` seconds (at most 30).

    last: what the previous call returned; None in the first one. The state of the task is requested after a round that
    is over and after a poll without a change, so a task is not found to have ended while a round is under way.
    """
    if isinstance(last, TaskEnded):
        return last
    if isinstance(last, RoundChanged) and last.is_over:
        task = yield from calls.task(task_id)
        if task.state != "open":
            return TaskEnded(task.state)
    etag = None if last is None else last.etag
    current = yield from calls.current_round(task_id, etag, wait)
    if current is not None:
        return RoundChanged(current.round, current.etag)
    task = yield from calls.task(task_id)
    return NothingNew(task, etag) if task.state == "open" else TaskEnded(task.state)


def await_start(
    task: TaskView, needs_keyring: bool, reported: Waiting | None, progress: Progress | None
) -> Program[Waiting]:
    """Report what round 1 of `task` waits for, unless that was `reported` before, and pause before the next poll."""
    waiting = waiting_to_start(task, needs_keyring)
    _tell_waiting(task, waiting, reported, progress)
    yield Pause(_START_PAUSE)
    return waiting


def report_waiting(task: TaskView, reported: Waiting | None, progress: Progress | None) -> Waiting | None:
    """Report what the next round of `task` waits for besides its members; return it, None when it waits for nothing."""
    waiting = None if task.waiting_for is None else Waiting(task.waiting_for)
    if waiting is not None:
        _tell_waiting(task, waiting, reported, progress)
    return waiting


def _tell_waiting(task: TaskView, waiting: Waiting, reported: Waiting | None, progress: Progress | None) -> None:
    """Report what `task` waits for, unless that was `reported` before; log it, if it is somebody besides members."""
    if progress and waiting != reported:
        progress(waiting)
    whom = waiting.what.partition(":")[0]
    if task.waiting_for is not None and (reported is None or reported.what.partition(":")[0] != whom):
        _LOG.warning("task %s: this client waits for %s", task.name, waiting.what)


def await_round(
    calls: ApiCalls, task_id: str, number: int, is_awaited: Callable[[RoundView], bool], etag: str | None = None
) -> Program[RoundView]:
    """Return round `number` once `is_awaited` accepts it, or once a later round has opened.

    etag: of a view of the round that it does not accept; without it the first poll is answered at once.
    """
    while True:
        current = yield from calls.current_round(task_id, etag, LONG_POLL_SECONDS)
        if current is None:
            continue
        if current.round.number > number:
            return (yield from calls.round(task_id, number))
        if is_awaited(current.round):
            return current.round
        etag = current.etag
