"""A client's part in a task until the task ends: one loop for contributors, the key holder and the committee.

`follow_task` polls; a `Role` says what its client does in each round. `take_part` is the contributor's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from client_sdk.api.wire import Pause, Program, Turn, through
from client_sdk.errors import (
    Abstained,
    AggregateMismatch,
    ClientSDKError,
    ContributionConflict,
    GaveUp,
    ModelUnavailable,
    NotAttested,
    NotFound,
    NotInCohort,
    PolicyRefused,
    RoundClosed,
    RoundLost,
    TaskFailed,
)
from client_sdk.history import History
from client_sdk.rounds.events import (
    ModelBehind,
    Progress,
    RoundAbstained,
    RoundMissed,
    RoundReport,
    ServerRestored,
    TaskEnded,
    Waiting,
)
from client_sdk.rounds.ledger import release_budget
from client_sdk.rounds.member import Member, Stop
from client_sdk.rounds.newest import newest_model
from client_sdk.rounds.part import Part
from client_sdk.rounds.polling import (
    NothingNew,
    Outage,
    RoundChange,
    RoundChanged,
    StoppedInOutage,
    await_start,
    follow_rounds,
    is_over,
    report_waiting,
)
from client_sdk.rounds.unmasked import take_unmasked_part
from client_sdk.training.base import AsksApplication
from protocols.errors import CertificateError, ParameterError, RefusalError, ThresholdError
from protocols.messages import RefusalReason, RoundView
from protocols.messages.stages import opening_state
from protocols.sums.base import WorksAhead

__all__ = ["Role", "follow_task", "run_round", "take_part", "tell_refusals"]

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class Role:
    """What one client does in a task. Each method is a program; those of this class do nothing."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def alone(self) -> AbstractContextManager[None]:
        """Keep other processes out of this role with the same records, where two would get in each other's way."""
        return self.member.store.locked(self.member.task_id)

    def before_poll(self, change: RoundChange | None, poll_seconds: float) -> Program[float]:
        """Do what is due before a poll; return for how many seconds it may wait. change: that of the last poll."""
        yield from ()
        return 0.0 if change is None else poll_seconds

    def on_round(self, change: RoundChanged) -> Program[RoundChanged]:
        """Do what the newest round asks of this client; return `change`, or a newer one."""
        yield from ()
        return change

    def on_waiting(self, change: NothingNew) -> Program[None]:
        """Do what is due when nothing changed."""
        del change
        yield from ()

    def on_end(self, ended: TaskEnded) -> Program[None]:
        """Do what is due when the task has ended, before it is reported."""
        del ended
        yield from ()


def follow_task(
    role: Role,
    progress: Progress | None = None,
    stop: Stop | None = None,
    poll_seconds: float = 20.0,
    patience: float | None = None,
) -> Program[TaskEnded | None]:
    """Let `role` act on every change of its task, until the task ends (returned) or `stop()` returns True (None).

    `stop` is called before each poll of `poll_seconds`. An unreachable server is waited for, at most `patience` seconds
    at a time when it is given (`GaveUp`). Raises `LocalFileError` while another process does the same with the same
    records.
    """
    with suppress(StoppedInOutage), role.alone():
        return (yield from through(_follow(role, progress, stop, poll_seconds), Outage(patience, progress, stop)))
    return None


def _follow(role: Role, progress: Progress | None, stop: Stop | None, poll_seconds: float) -> Program[TaskEnded | None]:
    member = role.member
    change: RoundChange | None = None
    waiting: Waiting | None = None
    while True:
        wait = yield from role.before_poll(change, poll_seconds)
        if stop and stop():
            return None
        change = yield from follow_rounds(member.calls, member.task_id, change, wait)
        match change:
            case TaskEnded():
                yield from role.on_end(change)
                if progress:
                    progress(change)
                return change
            case RoundChanged():
                change = yield from role.on_round(change)
            case NothingNew(task):
                if change.etag is None:
                    waiting = yield from await_start(task, member.terms.mechanism.needs_keyring, waiting, progress)
                else:
                    waiting = report_waiting(task, waiting, progress)
                yield from role.on_waiting(change)


# --- a contributor ---------------------------------------------------------------------------------------------------

_MISSED: Final = (
    *(PolicyRefused, RoundClosed, NotFound, NotInCohort, ContributionConflict, GaveUp, ModelUnavailable),
    *(RoundLost, RefusalError, ThresholdError, AggregateMismatch, NotAttested),
)
"""Errors that end a round for this client, but not its part in the task. A restored server does not find the round."""


def take_part(
    part: Part,
    interactions: object,
    progress: Progress | None = None,
    stop: Stop | None = None,
    poll_seconds: float = 20.0,
    patience: float | None = None,
) -> Program[list[RoundReport]]:
    """Take part in every round that asks this client, until the task ends or `stop()` returns True.

    Errors of a round are reported as `RoundMissed` or `RoundAbstained`, and the next round is awaited. See
    `follow_task` for the arguments. Returns the reports of the rounds; `TaskFailed` if the task failed.
    """
    member = part.member
    if member.membership.role == "committee":
        raise ParameterError(
            f"this client is in the committee of task {member.terms.name!r} and contributes nothing: call serve(), or "
            "run hushrec committee serve"
        )
    loaded = ready = False
    with suppress(StoppedInOutage):
        loaded = yield from through(part.load_catalogue(progress, stop), Outage(patience, progress, stop))
    if not loaded:
        return []
    part.seen = part.history(interactions)
    with suppress(StoppedInOutage):
        ready = yield from through(part.ready(progress, stop, poll_seconds), Outage(patience, progress, stop))
    if not ready:
        return []
    contributor = _Contributor(part, part.seen, progress)
    with _working_ahead(part):
        yield from follow_task(contributor, progress, stop, poll_seconds, patience)
    if contributor.failure is not None:
        raise contributor.failure
    return contributor.reports


@contextmanager
def _working_ahead(part: Part) -> Iterator[None]:
    """Let the client compute a part of its next seal between rounds, if the mechanism has such a part."""
    mechanism, keyring, plan = part.member.terms.mechanism, part.follower.keyring, part.member.terms.sum_plan
    if not isinstance(mechanism, WorksAhead) or keyring is None:
        yield
        return
    from client_sdk.rounds.ahead import WorkAhead  # which most tasks never need

    with WorkAhead(partial(mechanism.make_piece, plan, keyring), mechanism.pieces(plan)) as part.ahead:
        yield
    part.ahead = None


class _Contributor(Role):
    """A client that contributes to rounds. failure: what `take_part` raises at the end, None for nothing."""

    def __init__(self, part: Part, history: History, progress: Progress | None) -> None:
        super().__init__(part.member)
        self.part, self.history, self.progress = part, history, progress
        self.reports: list[RoundReport] = []
        self.failure: TaskFailed | None = None
        self.seen = _SeenRounds(part)

    def on_round(self, change: RoundChanged) -> Program[RoundChanged]:
        """Take part in the round, if it asks this client for the first time."""
        change = yield from self.seen.checked(change, self.progress)
        view = change.view
        if view.number > self.seen.handled and self._is_asked(view):
            self.seen.handled = view.number
            outcome = yield from self._attempt(view)
            if isinstance(outcome, RoundReport):
                self.reports.append(outcome)
            if self.progress:
                self.progress(outcome)
            if isinstance(self.part.half, AsksApplication):
                yield Turn(outcome)
        return change

    def _is_asked(self, view: RoundView) -> bool:
        """Whether the round awaits this client's first message; an earlier process may have sent it already."""
        opening = opening_state(self.member.terms.mechanism.name)
        return view.state == opening and bool(view.in_cohort) and not (view.contributed or view.delivered)

    def _attempt(self, view: RoundView) -> Program[RoundReport | RoundMissed | RoundAbstained]:
        try:
            return (yield from run_round(self.part, view, self.history, self.progress))
        except Abstained as error:
            return RoundAbstained(view.number, str(error))
        except _MISSED as error:
            return RoundMissed(view.number, str(error))

    def on_end(self, ended: TaskEnded) -> Program[None]:
        """Fetch the last model, and of a task that failed the reason of its newest round."""
        release_budget(self.member.store, self.member.task_id)
        if ended.state == "failed":
            newest = yield from self.member.calls.current_round(self.member.task_id)
            reason = None if newest is None else newest.round.failure
            self.failure = TaskFailed(self.member.terms.name, reason, tuple(self.reports))
        try:
            yield from newest_model(self.part, 60.0, self.progress)
        except ModelUnavailable as error:
            if self.progress:
                self.progress(ModelBehind(str(error)))


def run_round(part: Part, view: RoundView, history: History, progress: Progress | None = None) -> Program[RoundReport]:
    """Take part in the round `view` and return the report.

    Raises `PolicyRefused`, the errors of the upload, `RoundLost`, `RefusalError` and `ThresholdError` in masked and
    one-shot rounds, `Abstained`, and `ParameterError` when training diverges. The server is told when this client
    refuses the round or abstains.
    """
    match part.member.terms.mechanism.name:  # a mechanism is imported by the tasks that use it
        case "masked":
            from client_sdk.rounds.masked import take_masked_part

            program = take_masked_part(part, view, history, progress)
        case "oneshot":
            from client_sdk.rounds.oneshot import take_oneshot_part

            program = take_oneshot_part(part, view, history, progress)
        case _:
            program = take_unmasked_part(part, view, history, progress)
    return tell_refusals(part.member, view.number, program)


# --- telling the server that this client leaves a round, with one reason of a fixed list -----------------------------

_REFUSED: Final = (PolicyRefused, RefusalError, CertificateError, NotAttested, Abstained)
"""Errors that follow from what the server sent, and a client that has no data for a sum. What depends on the values of
sums, such as an aggregate that does not open, is none of them."""
_REFUSED_IN: Final[dict[str, RefusalReason]] = {
    "sharing": "roster",
    "collecting": "sharers",
    "confirming": "survivors",
    "unmasking": "survivors",
}
"""What a client refuses a masked round for, by the state of the round."""


def tell_refusals(member: Member, number: int, program: Program[T]) -> Program[T]:
    """Return the result of `program`, a client's part in round `number`; tell the server if it refuses or abstains.

    The error is raised then; the server need not take note of the refusal.
    """
    try:
        return (yield from program)
    except _REFUSED as error:
        with suppress(ClientSDKError):  # the round has ended, or the server does not take notices
            yield from member.calls.refuse(member.task_id, number, _reason(error))
        raise


def _reason(error: Exception) -> RefusalReason:
    match error:
        case RefusalError():
            return _REFUSED_IN.get(error.stage, "policy")
        case Abstained():
            return "no-data"
        case NotAttested():
            return "attestations"
        case CertificateError():
            return "certificates"
        case _:
            return "policy"


# --- a server that is behind its clients, because it was restored from a backup --------------------------------------

_SETTLE_SECONDS: Final = 3.0
"""Another replica may answer with an older round for so long: it has not yet learned of the newest one."""


@dataclass
class _SeenRounds:
    """The rounds that one client has seen, compared with the server's newest one.

    handled: the newest round that the client was asked in by this process, 0 at first.
    """

    part: Part
    handled: int = 0
    _told: int = field(default=0)

    def checked(self, change: RoundChanged, progress: Progress | None) -> Program[RoundChanged]:
        """Return `change`; if the server seems to be behind this client, what it answers a few seconds later.

        If it still is, report `ServerRestored`, and forget the model of the lost rounds where the server has another
        one. Members of encrypted tasks keep it: they are told once, and miss the rounds that they know already.
        """
        if not self._is_ahead(change.view):
            return change
        yield Pause(_SETTLE_SECONDS)
        current = yield from self.part.member.calls.current_round(self.part.member.task_id)
        if current is None:
            return change
        change = RoundChanged(current.round, current.etag)
        if self._is_ahead(change.view):
            self._go_back(change.view, progress)
        return change

    def _is_ahead(self, view: RoundView) -> bool:
        known = self.part.follower.known if view.in_cohort else 0
        completed = view.number if is_over(view) else view.number - 1
        return max(self.handled, known) > self._told and (self.handled > view.number or known > completed)

    def _go_back(self, view: RoundView, progress: Progress | None) -> None:
        terms, follower = self.part.member.terms, self.part.follower
        known = max(self.handled, follower.known)
        if terms.chained:
            self._told, then = known, "an encrypted task cannot go on so: its operator closes it and creates another"
        else:
            follower.start_again()
            self._told, then = 0, "this client takes over the server's model and goes on"
            if terms.mechanism.name != "plain":
                then += "; it takes no part in a sum before the newest one that it took part in"
        self.handled = 0
        event = ServerRestored(view.number, known, then)
        _LOG.warning(
            "task %s: the server's newest round is %d, and this client has seen round %d: the server was restored from "
            "a backup; %s",
            *(terms.name, event.round, event.known, event.then),
        )
        if progress:
            progress(event)
