"""A member of the committee over a whole task: it publishes keys ahead, and does its part in each round."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import CommitteeCalls
from client_sdk.api.wire import Program
from client_sdk.committee.record import close_keys, load_record, publish_keys
from client_sdk.committee.round import MemberRound
from client_sdk.errors import ApiError, Conflict, GaveUp, RoundLost
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.events import CommitteeRefused, Progress, TaskEnded, Waiting
from client_sdk.rounds.loop import (
    NothingNew,
    RoundChange,
    RoundChanged,
    await_start,
    follow_rounds,
    is_over,
    report_waiting,
    until_stopped,
)
from client_sdk.rounds.member import Stop
from client_sdk.rounds.oneshot import require_known_people
from client_sdk.rounds.task import AsyncParticipant, Participant, Participation
from client_sdk.store.client_store import ClientStore, Membership
from client_sdk.store.identity import Identity
from protocols.errors import CertificateError, CodecError, ParameterError, RefusalError, ThresholdError
from protocols.messages import RoundView
from protocols.messages.committee import COMMITTEE_KEYS_AHEAD
from protocols.messages.stages import RoundState

__all__ = [
    "AsyncCommitteeMember",
    "CommitteeMember",
    "CommitteeService",
    "committee_service",
]


_REFUSED: Final = (ApiError, CertificateError, CodecError, GaveUp, RefusalError, RoundLost, ThresholdError)
"""Errors that end a round for this member, but not its part in the task."""


@dataclass
class CommitteeService:
    """The programs of one member of the committee. published: numbers of rounds whose keys the server has.

    Raises `ParameterError` unless the client enrolled for the role "committee", and `PolicyRefused` for a task without
    an organiser unless the policy trusts the server to say who takes part.
    """

    calls: CommitteeCalls
    terms: TaskTerms
    membership: Membership
    identity: Identity
    client_store: ClientStore
    policy: Policy
    membership_check: MembershipCheck
    published: set[int] = field(default_factory=set)
    _round: MemberRound | None = field(default=None, repr=False)
    _refused: tuple[object, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.membership.role != "committee":
            raise ParameterError(
                f"this client is a {self.membership.role} of task {self.membership.task_name!r}, not in its committee"
            )
        require_known_people(self.membership_check, self.policy)

    def attend_newest(self, progress: Progress | None = None) -> Program[RoundView | None]:
        """Publish the keys of the next rounds, and do this member's part in the newest round. Returns that round."""
        current = yield from self.calls.current_round(self.terms.task_id)
        view = None if current is None else current.round
        yield from self.attend(view, progress)
        return view

    def attend(self, view: RoundView | None, progress: Progress | None = None) -> Program[None]:
        """Publish the keys of the next rounds, and do this member's part in the newest round; None: there is none.

        What this member refuses is reported as `CommitteeRefused`, once for each state and proposed set.
        """
        newest = 0 if view is None else view.number
        if view is not None:
            close_keys(self.client_store, self.terms.task_id, newest if is_over(view) else newest - 1)
            if view.state == RoundState.FAILED:
                self.published.clear()  # the server drops the keys of members that did not answer
        yield from self._publish(newest)
        if view is None or not view.in_committee:
            return
        try:
            yield from self._take_part(view, progress)
        except _REFUSED as error:
            about = (view.number, view.state, view.survivors_digest)
            if progress and self._refused != about:
                progress(CommitteeRefused(view.number, str(error)))
            self._refused = about

    def _take_part(self, view: RoundView, progress: Progress | None) -> Program[None]:
        part = self._part(view.number)
        if view.state == RoundState.UNMASKING and view.delivered:
            part.close()  # the process ended between sending the share and deleting the key
        elif view.expected and not view.delivered:
            if view.state == RoundState.CONFIRMING:
                yield from part.confirm(view, progress)
            elif view.state == RoundState.UNMASKING:
                yield from part.unmask(view, progress)

    def _part(self, number: int) -> MemberRound:
        if self._round is None or self._round.number != number:
            self._round = MemberRound(
                self.calls,
                self.terms,
                self.membership,
                self.identity,
                self.client_store,
                self.policy,
                self.membership_check,
                number,
            )
        return self._round

    def _publish(self, newest: int) -> Program[None]:
        closed = load_record(self.client_store, self.terms.task_id).closed
        ahead = range(newest + 1, newest + COMMITTEE_KEYS_AHEAD + 1)
        missing = [number for number in ahead if number > closed and number not in self.published]
        accepted = yield from publish_keys(self.calls, self.client_store, self.membership, self.identity, missing)
        self.published = {number for number in self.published if number > newest}.union(accepted)

    def _check_published(self) -> Program[None]:
        """Forget what this process has published, and the server no longer has."""
        with suppress(Conflict):
            found = yield from self.calls.committee(self.terms.task_id)
            own = [each.keys for each in found.members if each.client_id == self.membership.client_id]
            self.published.intersection_update(*own)

    def serve(
        self,
        progress: Progress | None = None,
        stop: Callable[[], bool] | None = None,
        poll_seconds: float = 5.0,
        patience: float | None = None,
    ) -> Program[None]:
        """Do this member's part in every round until the task ends or `stop()` returns True.

        poll_seconds: of one long poll. An unreachable server is waited for, at most `patience` seconds at a time when
        it is given (`GaveUp`).
        """
        serving = self._serve_until_closed(progress, stop, poll_seconds)
        yield from until_stopped(serving, patience, progress, stop)

    def _serve_until_closed(
        self, progress: Progress | None, stop: Callable[[], bool] | None, poll_seconds: float
    ) -> Program[None]:
        change: RoundChange | None = None
        waiting: Waiting | None = None
        view = yield from self.attend_newest(progress)
        while not (stop and stop()):
            change = yield from follow_rounds(
                self.calls, self.terms.task_id, change, 0.0 if change is None else poll_seconds
            )
            match change:
                case TaskEnded():
                    if progress:
                        progress(change)
                    return
                case RoundChanged(view):
                    yield from self.attend(view, progress)
                case NothingNew(task):
                    if change.etag is None:
                        waiting = yield from await_start(task, False, waiting, progress)
                    else:
                        waiting = report_waiting(task, waiting, progress)
                    if task.waiting_for is not None:
                        yield from self._check_published()
                        yield from self._publish(0 if view is None else view.number)


# --- `CommitteeMember` and `AsyncCommitteeMember`: a client that is in the committee of a task with one-shot sums ----
# member = CommitteeMember(client.join(invitation=..., certificate=...))
# member.serve()


def committee_service(participation: Participation) -> CommitteeService:
    """Return the committee's programs for a client that enrolled for that role; else `ParameterError`."""
    return CommitteeService(
        CommitteeCalls.of(participation.calls),
        participation.terms,
        participation.membership,
        participation.identity,
        participation.client_store,
        participation.policy,
        participation.membership_check,
    )


class CommitteeMember:
    """A member of the committee. part: what `Client.join` returned for an invitation for the role "committee".

    Raises `ParameterError` for another role, and `PolicyRefused` for a task without an organiser unless
    `Policy(trust_roster=True)`.
    """

    def __init__(self, part: Participant) -> None:
        self.service = committee_service(part.core)
        self._driver = part.driver

    def attend_round(self, progress: Progress | None = None) -> RoundView | None:
        """Publish the keys of the next rounds, and do this member's part in the newest round. Returns that round."""
        return self._driver.run(self.service.attend_newest(progress))

    def serve(
        self,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 5.0,
        patience: float | None = None,
    ) -> None:
        """Do this member's part in every round until the task ends or `stop()` returns True.

        progress: receives `SurvivorsConfirmed`, `ClientsNamed`, `ShareSent` and `CommitteeRefused`. stop, patience: as
        for `Participant.take_part`. poll_seconds: length of one long poll, at most 30. Only one process may serve one
        member at a time: two would not see what the other signs.
        """
        self._driver.run(self.service.serve(progress, stop, poll_seconds, patience))


class AsyncCommitteeMember:
    """`CommitteeMember` for use on an event loop."""

    def __init__(self, part: AsyncParticipant) -> None:
        self.service = committee_service(part.core)
        self._driver = part.driver

    async def attend_round(self, progress: Progress | None = None) -> RoundView | None:
        """See `CommitteeMember.attend_round`."""
        return await self._driver.run(self.service.attend_newest(progress))

    async def serve(
        self,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 5.0,
        patience: float | None = None,
    ) -> None:
        """See `CommitteeMember.serve`; cancelling the task stops it at once."""
        await self._driver.run(self.service.serve(progress, stop, poll_seconds, patience))
