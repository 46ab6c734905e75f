"""Following the rounds of a task, also while its server is away: what every poll loop of the SDK calls.

change = None
while not isinstance(change, TaskEnded):
    change = yield from follow_rounds(calls, task_id, change)
    match change:
        case RoundChanged(view):
            ...  # the newest round is new, or in another state
        case NothingNew(task):
            ...  # no change within 20 s

Run through the layer `Outage`, a program outlives restarts and upgrades of its server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls, RoundChanged
from client_sdk.api.requests import or_none
from client_sdk.api.retry import is_foreign
from client_sdk.api.wire import Effect, Failed, Pause, Program, Response
from client_sdk.errors import ApiError, ClientSDKError, ClocksDiffer, ConnectionFailed, ForeignAnswer, GaveUp
from client_sdk.rounds.events import (
    Progress,
    ServerBack,
    ServerRestored,
    ServerUnreachable,
    TaskEnded,
    Waiting,
    ignore_event,
    waiting_to_start,
)
from protocols.errors import ParameterError
from protocols.messages import RoundView, TaskView
from protocols.messages.stages import RoundState

LONG_POLL_SECONDS: Final = 20.0
"""How long one request waits for a change."""
_START_PAUSE: Final = 0.2
_LOG = logging.getLogger(__name__)
_REPORT_SECONDS: Final = 2.0
_REPORT_AGAIN_SECONDS: Final = 30.0
_NO_SERVER: Final = frozenset({502, 503, 504})
"""Statuses of a server that is starting or ending, and of a proxy without a server behind it."""
_NO_ANSWER: Final = _NO_SERVER | {401}
"""Statuses that do not end an outage: with 401 a server of several refuses the others' time."""


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


# --- while the server is away --------------------------------------------------------------------------------------


class StoppedInOutage(ClientSDKError):
    """The caller's `stop()` returned True in a pause: the server cannot be reached, or asked the client to pause."""


@dataclass
class Outage:
    """A layer that waits for a server that cannot be reached, and tells the user about it.

    A request is then repeated any number of times, unless the retry policy names a number. An outage begins with the
    first failed request and ends with the next answer. It is reported after 2 s, 30 s, 60 s, 120 s and so on.
    """

    patience: float | None = None
    """Seconds after which an outage ends the program with `GaveUp`, which is also raised at once when a Retry-After
    asks for more; None waits without limit."""
    progress: Progress = ignore_event
    """Receives `ServerUnreachable` and `ServerBack`."""
    stop: Callable[[], bool] | None = None
    """Asked before each pause; `StoppedInOutage` ends the program when it returns True."""
    longest_pause: float | None = None
    """Seconds between two requests, beyond those that a Retry-After asks for; None for the retry policy's."""
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    """Seconds that only increase."""
    _failure: ConnectionFailed | ApiError | None = field(default=None, init=False)
    _attempts: int = field(default=0, init=False)
    _since: float = field(default=0.0, init=False)
    _report_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.patience is not None and not self.patience >= 0.0:
            raise ParameterError(f"patience must be at least 0 seconds, got {self.patience}")

    def on_effect(self, effect: Effect) -> Effect:
        """Note a request that found no server, and interrupt a pause in an outage where something else is due."""
        match effect:
            case Failed(error) if _is_away(error):
                if self._failure is None:
                    self._attempts, self._since, self._report_at = 0, self.clock(), _REPORT_SECONDS
                self._attempts, self._failure = self._attempts + 1, error
                asked = error.retry_after if isinstance(error, ApiError) else None
                self._require_patience(error, asked or 0.0)
            case Pause(seconds) if self._failure is not None:
                return Pause(self._pause(seconds, self._failure))
            case Pause() if self.stop and self.stop():
                raise StoppedInOutage("stopped while the server asked this client to pause")
        return effect

    def on_reply(self, effect: Effect, reply: object) -> object:
        """Reply that the server is waited for, and note its answer."""
        if isinstance(effect, Failed):
            return _is_away(effect.error)
        if self._failure is not None and isinstance(reply, Response) and _is_servers(reply):
            self._failure = None
            if self._report_at > _REPORT_SECONDS:
                self._tell(ServerBack(self.clock() - self._since))
        return reply

    def _require_patience(self, error: ConnectionFailed | ApiError, seconds: float) -> float:
        """Return for how long the outage lasts; `GaveUp` if its patience ends now or within the next `seconds`."""
        lasted = self.clock() - self._since
        if self.patience is not None and (lasted >= self.patience or lasted + seconds > self.patience):
            raise GaveUp(self._attempts, error) from error
        return lasted

    def _pause(self, seconds: float, error: ConnectionFailed | ApiError) -> float:
        """Report the outage when it is due; return how many of the `seconds` to pause."""
        lasted = self._require_patience(error, 0.0)
        if self.stop and self.stop():
            raise StoppedInOutage(f"stopped while waiting for the server: {error}")
        if lasted >= self._report_at:
            self._tell(ServerUnreachable(lasted, str(error)))
            self._report_at = max(_REPORT_AGAIN_SECONDS, 2.0 * lasted)
        if self.longest_pause is not None:
            asked = (error.retry_after if isinstance(error, ApiError) else None) or 0.0
            if seconds > asked + self.longest_pause:  # the remainder: clients stay spread over the time
                seconds = asked + (seconds - asked) % self.longest_pause
        return seconds if self.patience is None else min(seconds, self.patience - lasted)

    def _tell(self, event: ServerUnreachable | ServerBack) -> None:
        self.progress(event)


def _is_away(error: ConnectionFailed | ApiError) -> bool:
    """Whether there was no server, or none that answers requests now. A body that is too long stays too long."""
    if isinstance(error, ForeignAnswer):
        return error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    return isinstance(error, ConnectionFailed | ClocksDiffer) or error.status in _NO_SERVER


def _is_servers(response: Response) -> bool:
    """Whether a server answered, and answers requests now."""
    return response.status not in _NO_ANSWER and not is_foreign(response)
