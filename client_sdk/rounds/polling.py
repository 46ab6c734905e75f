"""Following the rounds of a task: what every poll loop of the SDK calls.

change = None
while not isinstance(change, TaskEnded):
    change = yield from follow_rounds(calls, task_id, change)
    match change:
        case RoundChanged(view):
            ...  # the newest round is new, or in another state
        case NothingNew(task):
            ...  # no change within 20 s

`SeenRounds` notices a server that was restored from a backup.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls, RoundChanged
from client_sdk.api.requests import or_none
from client_sdk.api.wire import Pause, Program
from client_sdk.rounds.events import Progress, ServerRestored, TaskEnded, Waiting, ignore_event, waiting_to_start
from protocols.messages import RoundView, TaskView
from protocols.messages.stages import RoundState

LONG_POLL_SECONDS: Final = 20.0
"""How long one request waits for a change."""
_START_PAUSE: Final = 0.2
_LOG = logging.getLogger(__name__)


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
    if isinstance(last, RoundChanged) and is_over(last.view):
        task = yield from calls.task(task_id)
        if task.state != "open":
            return TaskEnded(task.state)
    etag = None if last is None else last.etag
    current = yield from calls.current_round(task_id, etag, wait)
    if current is not None:
        return current
    task = yield from calls.task(task_id)
    return NothingNew(task, etag) if task.state == "open" else TaskEnded(task.state)


def report_waiting(
    change: NothingNew, needs_keyring: bool, reported: Waiting | None, progress: Progress
) -> Program[Waiting | None]:
    """Report what the next round of a task waits for; return it, None when it waits for nothing but its members.

    What was `reported` before is not reported again. It is logged, if it is somebody besides members. Before round 1,
    which waits for members as well, the program pauses before the next poll.
    """
    task, before_start = change.task, change.etag is None
    waiting = None if task.waiting_for is None else Waiting(task.waiting_for)
    if before_start:
        waiting = waiting_to_start(task, needs_keyring)
    if waiting is not None and waiting != reported:
        progress(waiting)
        whom = waiting.what.partition(":")[0]
        if task.waiting_for is not None and (reported is None or reported.what.partition(":")[0] != whom):
            _LOG.warning("task %s: this client waits for %s", task.name, waiting.what)
    if before_start:
        yield Pause(_START_PAUSE)
    return waiting


def await_round(
    calls: ApiCalls, task_id: str, number: int, is_awaited: Callable[[RoundView], bool], etag: str | None = None
) -> Program[RoundChanged]:
    """Return round `number` once `is_awaited` accepts it, or once a later round has opened.

    etag: of a view of the round that it does not accept; without it the first poll is answered at once. Raises
    `NotFound` when the server does not know the round: it was restored from a backup.
    """
    while True:
        current = yield from calls.current_round(task_id, etag, LONG_POLL_SECONDS)
        if current is not None:
            etag = current.etag
            if current.view.number == number:
                if is_awaited(current.view):
                    return current
                continue
        # The newest round is another one or unchanged, or there is none: another replica may know more than this one.
        view = yield from calls.round(task_id, number)
        if is_awaited(view) or (current is not None and current.view.number > number):
            return RoundChanged(view, etag)


# --- a server that is behind its clients, because it was restored from a backup --------------------------------------

_REPLICA_LAG_SECONDS: Final = 3.0
"""Another replica may answer with an older round for so long: it has not yet learned of the newest one."""


@dataclass
class SeenRounds:
    """The rounds that one client has seen, in this process or as its records say, compared with the server's newest."""

    calls: ApiCalls
    terms: TaskTerms
    known: Callable[[], tuple[int, int]]
    """Returns the newest round that the client's records name, and the newest that is over by them; 0 for none."""
    go_on: Callable[[int], str]
    """Called with the server's newest round once the server was restored; returns what the client does then."""
    progress: Progress = ignore_event
    number: int = 0
    completed: int = 0
    """Newest round that this process has seen, and the newest one that was over; 0 at first."""
    _reported: int = field(default=0, init=False)
    _views: tuple[RoundView, ...] = field(default=(), init=False, repr=False)
    """The newest round that this process has seen, and the newest that it has seen to be over."""

    def checked(self, change: RoundChange) -> Program[RoundChange]:
        """Return `change`; if the server seems to be behind this client, what it answers a few seconds later.

        If it still is, or has put other rounds in the place of those that this process has seen, report
        `ServerRestored`, once, and call `go_on`.
        """
        if self._is_ahead(change):
            yield Pause(_REPLICA_LAG_SECONDS)
            change = yield from follow_rounds(self.calls, self.terms.task_id, None, 0.0)
            if self._is_ahead(change) or (yield from self._has_other_rounds(change)):
                self._report(max(_position(change)))
        number, completed = _position(change)
        self.number, self.completed = max(self.number, number), max(self.completed, completed)
        if isinstance(change, RoundChanged):
            self._views = (change.view, *(view for view in self._views if is_over(view) and not is_over(change.view)))
        return change

    def _is_ahead(self, change: RoundChange) -> bool:
        if isinstance(change, TaskEnded):
            return False
        (known, known_over), (number, completed) = self.known(), _position(change)
        if self.completed > completed or (known_over > completed and known > self._reported):
            return True
        if isinstance(change, NothingNew) and change.etag is not None:
            return False  # the newest round is the one that this process has seen
        return self.number > number or (known > number and known > self._reported)

    def _has_other_rounds(self, change: RoundChange) -> Program[bool]:
        """Whether rounds that this process has seen are others now: in the pause the server overtook this client."""
        if isinstance(change, TaskEnded):
            return False
        for seen in self._views:
            now = yield from or_none(self.calls.round(self.terms.task_id, seen.number))
            if now is None or not _is_same_round(seen, now):
                return True
        return False

    def _report(self, newest: int) -> None:
        known, _ = self.known()
        event = ServerRestored(newest, max(self.number, known), self.go_on(newest))
        (self._reported, _), self.number, self.completed, self._views = self.known(), 0, 0, ()
        _LOG.warning(
            "task %s: the server's newest round is %d, and this client has seen round %d: the server was restored from "
            "a backup; %s",
            *(self.terms.name, event.round, event.known, event.then),
        )
        self.progress(event)


_SINCE_OPENED: Final = ("step", "cohort", "levels", "size", "aggregate_chain", "in_cohort", "in_committee")
_SINCE_OVER: Final = ("state", "survivors", "aggregate_digest", "failure")
"""Fields of a round's view that do not change once it has been opened, and once it is over."""


def _is_same_round(seen: RoundView, now: RoundView) -> bool:
    """Whether the server's round `now` can be the one of that number which looked as `seen` before."""
    fixed = (*_SINCE_OPENED, *_SINCE_OVER) if is_over(seen) else _SINCE_OPENED
    return all(getattr(seen, name) == getattr(now, name) for name in fixed)


def _position(change: RoundChange) -> tuple[int, int]:
    """Return the number of the server's newest round and of the last one over; 0 where `change` does not say it."""
    match change:
        case RoundChanged(view):
            return view.number, view.number if is_over(view) else view.number - 1
        case NothingNew(task):
            return 0, task.completed_rounds + task.failed_rounds
        case TaskEnded():
            return 0, 0
