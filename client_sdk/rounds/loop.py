"""A client's part in a task until the task ends: one loop for contributors, the key holder and the committee.

`follow_task` polls; a `Role` says what its client does in each round. `take_part` is the contributor's.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Final, cast

from client_sdk.api.calls import RoundChanged
from client_sdk.api.retry import Outage, StoppedInOutage
from client_sdk.api.wire import Program, Turn, through
from client_sdk.errors import (
    Abstained,
    AggregateMismatch,
    ClientSDKError,
    ContributionConflict,
    FalseModel,
    ForeignAnswer,
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
from client_sdk.history import History, OnUnknown, check_on_unknown
from client_sdk.rounds.contribution import OwnRound
from client_sdk.rounds.events import (
    ModelBehind,
    Progress,
    RoundAbstained,
    RoundMissed,
    RoundReport,
    TaskEnded,
    Waiting,
    ignore_event,
    report_outage,
)
from client_sdk.rounds.ledger import release_budget
from client_sdk.rounds.member import Member, Stop
from client_sdk.rounds.newest import newest_model
from client_sdk.rounds.part import Part
from client_sdk.rounds.polling import NothingNew, RoundChange, SeenRounds, follow_rounds, report_waiting
from client_sdk.rounds.work_ahead import working_ahead
from protocols.errors import AlreadySummed, CertificateError, ParameterError, RefusalError, ThresholdError
from protocols.messages import RefusalReason, RoundView, Schedule
from protocols.plugins import load

CANNOT_GO_ON: Final = "an encrypted task cannot go on from there: its operator closes it and creates another"


class Role:
    """What one client does in a task. Each method is a program; those of this class do nothing.

    progress: receives the events.
    """

    def __init__(self, member: Member, progress: Progress = ignore_event) -> None:
        self.member, self.progress = member, progress

    def exclusively(self) -> AbstractContextManager[None]:
        """Keep other processes out of this role with the same records, where two would get in each other's way."""
        return self.member.store.locked(self.member.task_id)

    def before_poll(self, change: RoundChange | None, poll_seconds: float) -> Program[float]:
        """Do what is due before a poll; return for how many seconds it may wait. change: that of the last poll."""
        yield from ()
        return 0.0 if change is None else poll_seconds

    def on_round(self, change: RoundChanged) -> Program[None]:
        """Do what the newest round asks of this client."""
        del change
        yield from ()

    def on_waiting(self, change: NothingNew) -> Program[None]:
        """Do what is due when nothing changed."""
        del change
        yield from ()

    def on_end(self, ended: TaskEnded) -> Program[None]:
        """Do what is due when the task has ended, before it is reported."""
        del ended
        yield from ()

    def known_rounds(self) -> tuple[int, int]:
        """Return the newest round that this client's own records name, and the newest that is over by them; or 0."""
        return 0, 0

    def on_restored(self, number: int) -> str:
        """Go on from round `number`, the server's newest, which is before what this client knows; say how."""
        del number
        return "this client goes on"


def follow_task(
    role: Role, stop: Stop | None = None, poll_seconds: float = 20.0, patience: float | None = None
) -> Program[TaskEnded | None]:
    """Let `role` act on every change of its task, until the task ends (returned) or `stop()` returns True (None).

    `stop` is called before each poll of `poll_seconds`. An unreachable server is waited for, at most `patience` seconds
    at a time when it is given (`GaveUp`). Raises `LocalFileError` while another process does the same with the same
    records.
    """
    outage = Outage(patience, report_outage(role.progress), stop, _longest_pause(role.member.terms.schedule))
    with suppress(StoppedInOutage), role.exclusively():
        return (yield from through(_follow(role, stop, poll_seconds), outage))
    return None


def _longest_pause(schedule: Schedule) -> float:
    """Return the seconds between two requests to a server that is away.

    The stage that begins when it is back must not end before all clients have come.
    """
    return min(schedule.stage_seconds, schedule.collect_seconds) / 4.0


def _follow(role: Role, stop: Stop | None, poll_seconds: float) -> Program[TaskEnded | None]:
    member, progress = role.member, role.progress
    seen = SeenRounds(member.calls, member.terms, role.known_rounds, role.on_restored, progress)
    change: RoundChange | None = None
    waiting: Waiting | None = None
    while True:
        wait = yield from role.before_poll(change, poll_seconds)
        if stop and stop():
            return None
        change = yield from seen.checked((yield from follow_rounds(member.calls, member.task_id, change, wait)))
        match change:
            case TaskEnded():
                yield from role.on_end(change)
                progress(change)
                return change
            case RoundChanged():
                yield from role.on_round(change)
            case NothingNew():
                waiting = yield from report_waiting(change, member.terms.mechanism.needs_keyring, waiting, progress)
                yield from role.on_waiting(change)


# --- a contributor ---------------------------------------------------------------------------------------------------

_MISSED: Final = (
    *(PolicyRefused, RoundClosed, NotFound, NotInCohort, ContributionConflict, GaveUp, ModelUnavailable),
    *(RoundLost, RefusalError, ThresholdError, AggregateMismatch, NotAttested, FalseModel, ForeignAnswer),
    ParameterError,
)
"""Errors that end a round for this client, but not its part in the task. A restored server does not find the round.
`ParameterError` is that of a training that failed in a `plain` task, and of a model that does not fit the round."""


def take_part(
    part: Part,
    interactions: object,
    listener: Progress | None,
    stop: Stop | None,
    poll_seconds: float,
    patience: float | None,
    on_unknown: OnUnknown = "error",
) -> Program[list[RoundReport]]:
    """Take part in every round that asks this client, until the task ends or `stop()` returns True.

    Errors of a round are reported as `RoundMissed` or `RoundAbstained`, and the next round is awaited. See
    `follow_task` and `History.of` for the arguments. Returns the reports of the rounds; `TaskFailed` if it failed.
    """
    member, progress = part.member, listener or ignore_event
    part.require_joined()
    check_on_unknown(on_unknown)
    if member.membership.role == "committee":
        raise ParameterError(
            f"this client is in the committee of task {member.terms.name!r} and contributes nothing: call serve(), or "
            "run hushrec committee serve"
        )
    contributor, outage = None, Outage(patience, report_outage(progress), stop, _longest_pause(member.terms.schedule))
    with suppress(StoppedInOutage):
        if not (yield from through(part.load_catalogue(progress, stop), outage)):
            return []
        part.seen = part.history(interactions, on_unknown)
        if not (yield from through(part.ready(progress, stop, poll_seconds), outage)):
            return []
        contributor = _Contributor(part, part.seen, progress)
        with working_ahead(part), contributor.exclusively():
            yield from through(_follow(contributor, stop, poll_seconds), outage)
    if contributor is not None and contributor.failure is not None:
        raise contributor.failure
    return [] if contributor is None else contributor.reports


class _Contributor(Role):
    """A client that contributes to rounds. failure: what `take_part` raises at the end, None for nothing."""

    def __init__(self, part: Part, history: History, progress: Progress) -> None:
        super().__init__(part.member, progress)
        self.part, self.history = part, history
        self.reports: list[RoundReport] = []
        self.failure: TaskFailed | None = None
        self._handled = 0  # newest round in which this process was asked

    def known_rounds(self) -> tuple[int, int]:
        """Return the round of the model on this device, which is over."""
        return self.part.follower.known, self.part.follower.known

    def on_restored(self, number: int) -> str:
        """Forget the model of the lost rounds, where the server has another one, and end all sums of these rounds.

        Members of encrypted tasks keep the model: they miss the rounds that they know already.
        """
        del number
        self._handled, member = 0, self.member
        if member.terms.opened_by == "members":
            return CANNOT_GO_ON
        self.part.follower.start_again()
        ended = _round_kind(member).end_sums(member.store, member.task_id)
        more = "; it takes no part in sums that it took part in before" if ended else ""
        return f"this client takes over the server's model and goes on{more}"

    def on_round(self, change: RoundChanged) -> Program[None]:
        """Take part in the round, if it asks this client for the first time."""
        view = change.view
        asks = view.state == self.member.terms.entry.opens_in and view.in_cohort
        if view.number <= self._handled or not asks or view.contributed or view.delivered:
            return  # an earlier process may have sent this client's first message already
        self._handled = view.number
        outcome: RoundReport | RoundMissed | RoundAbstained
        try:
            outcome = yield from play(self.part, view, self.history, self.progress, change.etag)
            self.reports.append(outcome)
        except Abstained as error:
            outcome = RoundAbstained(view.number, str(error))
        except _MISSED as error:
            outcome = RoundMissed(view.number, str(error))
        self.progress(outcome)
        if self.part.client_side.in_application:
            yield Turn(outcome)

    def on_end(self, ended: TaskEnded) -> Program[None]:
        """Fetch the last model, and of a task that failed the reason of its newest round."""
        release_budget(self.member.store, self.member.task_id)
        if ended.state == "failed":
            newest = yield from self.member.calls.current_round(self.member.task_id)
            reason = None if newest is None else newest.view.failure
            self.failure = TaskFailed(self.member.terms.name, reason, tuple(self.reports))
        try:
            yield from newest_model(self.part, 60.0, self.progress)
        except (ModelUnavailable, FalseModel) as error:
            self.progress(ModelBehind(str(error)))


def play(
    part: Part, view: RoundView, history: History, progress: Progress = ignore_event, etag: str | None = None
) -> Program[RoundReport]:
    """Take part in the round `view`, which a poll answered with `etag`, and return the report.

    Raises `PolicyRefused`, the errors of the upload, `RoundLost`, `RefusalError` and `ThresholdError` in masked and
    one-shot rounds, `Abstained`, and the error of a training that failed in a `plain` task. The server is told when
    this client refuses the round or abstains.
    """
    try:
        return (yield from _round_kind(part.member)(part, view, history, progress, etag=etag).take_part())
    except REFUSED as error:
        yield from tell_refusal(part.member, view.number, error)
        raise


def _round_kind(member: Member) -> type[OwnRound]:
    """Return the class of a client's part in a round; a mechanism's is imported by the tasks that use it."""
    return cast(type[OwnRound], load(member.terms.entry.client_round))


# --- telling the server that this client leaves a round, with one reason of a fixed list -----------------------------

_REASONS: Final[dict[type[Exception], RefusalReason]] = {
    PolicyRefused: "policy",
    AlreadySummed: "survivors",  # it took part in this sum over others
    RefusalError: "policy",  # or as `_REFUSED_IN` says
    CertificateError: "certificates",
    NotAttested: "attestations",
    Abstained: "no-data",
}
"""Errors that follow from what the server sent, and a client that has no data for a sum. What depends on the values of
sums, such as an aggregate that does not open, is none of them."""
REFUSED: Final = tuple(_REASONS)
_REFUSED_IN: Final[dict[str, RefusalReason]] = {
    "sharing": "roster",
    "collecting": "sharers",
    "confirming": "survivors",
    "unmasking": "survivors",
}
"""What a client refuses a masked round for, by the state of the round."""


def tell_refusal(member: Member, number: int, error: Exception) -> Program[None]:
    """Tell the server that this client leaves round `number`, one of `REFUSED`; it need not take note of it."""
    reason = next(reason for kind, reason in _REASONS.items() if isinstance(error, kind))
    if isinstance(error, RefusalError) and not isinstance(error, AlreadySummed):
        reason = _REFUSED_IN.get(error.stage, reason)
    with suppress(ClientSDKError):  # the round has ended, or the server does not take notices
        yield from member.calls.refuse(member.task_id, number, reason)
