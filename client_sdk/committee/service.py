"""A member of the committee over a whole task: it publishes keys ahead, and does its part in each round."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from client_sdk.api.wire import Program
from client_sdk.committee.record import close_keys, load_record, publish_keys, store_record
from client_sdk.committee.round import MemberRound
from client_sdk.errors import ApiError, Conflict, GaveUp, RoundLost
from client_sdk.rounds.events import CommitteeRefused, Progress
from client_sdk.rounds.loop import Role
from client_sdk.rounds.member import Member, require_known_people
from client_sdk.rounds.polling import NothingNew, RoundChange, RoundChanged, is_over
from protocols.errors import CertificateError, CodecError, ParameterError, RefusalError, ThresholdError
from protocols.messages import RoundView
from protocols.messages.stages import COMMITTEE_KEYS_AHEAD, RoundState

__all__ = ["CommitteeMember"]

_REFUSED: Final = (ApiError, CertificateError, CodecError, GaveUp, RefusalError, RoundLost, ThresholdError)
"""Errors that end a round for this member, but not its part in the task."""


class CommitteeMember(Role):
    """A client in the committee of a task with one-shot sums. published: numbers of rounds whose keys the server has.

    progress: receives `SurvivorsConfirmed`, `ClientsNamed`, `ShareSent` and `CommitteeRefused`. Raises `ParameterError`
    unless the client enrolled for the role "committee", and `PolicyRefused` for a task without an organiser unless the
    policy trusts the server to say who takes part.
    """

    def __init__(self, member: Member, progress: Progress | None = None) -> None:
        super().__init__(member)
        membership = member.membership
        if membership.role != "committee":
            raise ParameterError(
                f"this client is a {membership.role} of task {membership.task_name!r}, not in its committee"
            )
        require_known_people(member)
        self.published: set[int] = set()
        self._progress = progress
        self._round: MemberRound | None = None
        self._refused: tuple[object, ...] | None = None
        self._newest = 0

    def before_poll(self, change: RoundChange | None, poll_seconds: float) -> Program[float]:
        """Publish the first keys before the first poll."""
        if change is None:
            yield from self.attend_newest()
            return 0.0
        return poll_seconds

    def on_round(self, change: RoundChanged) -> Program[RoundChanged]:
        """Do this member's part in the newest round."""
        yield from self.attend(change.view)
        return change

    def on_waiting(self, change: NothingNew) -> Program[None]:
        """Publish again what the server has lost."""
        if change.task.waiting_for is not None:
            yield from self._check_published()
            yield from self._publish(self._newest)

    def known_round(self) -> int:
        """Return the newest round that is over for this member."""
        return load_record(self.member.store, self.member.task_id).closed

    def on_restored(self, number: int) -> str:
        """Delete the keys of the lost rounds, so that new ones can be made for those after round `number`."""
        store, task_id = self.member.store, self.member.task_id
        record = load_record(store, task_id)
        close_keys(store, task_id, record.used)
        store_record(store, task_id, record.reopen(number))
        self.published.clear()
        self._round = None
        return "this member publishes new keys for the rounds that follow, and remembers the sums that it opened"

    def attend_newest(self) -> Program[RoundView | None]:
        """Publish the keys of the next rounds, and do this member's part in the newest round. Returns that round."""
        current = yield from self.member.calls.current_round(self.member.task_id)
        view = None if current is None else current.round
        yield from self.attend(view)
        return view

    def attend(self, view: RoundView | None) -> Program[None]:
        """Publish the keys of the next rounds, and do this member's part in the newest round; None: there is none.

        What this member refuses is reported as `CommitteeRefused`, once for each state and proposed set.
        """
        member = self.member
        newest = self._newest = 0 if view is None else view.number
        if view is not None:
            close_keys(member.store, member.task_id, newest if is_over(view) else newest - 1)
            if view.state == RoundState.FAILED:
                self.published.clear()  # the server drops the keys of members that did not answer
        yield from self._publish(newest)
        if view is None or not view.in_committee:
            return
        try:
            yield from self._take_part(view)
        except _REFUSED as error:
            about = (view.number, view.state, view.survivors_digest)
            if self._progress and self._refused != about:
                self._progress(CommitteeRefused(view.number, str(error)))
            self._refused = about

    def _take_part(self, view: RoundView) -> Program[None]:
        part = self._part(view.number)
        if view.state == RoundState.UNMASKING and view.delivered:
            part.close()  # the process ended between sending the share and deleting the key
        elif view.expected and not view.delivered:
            if view.state == RoundState.CONFIRMING:
                yield from part.confirm(view, self._progress)
            elif view.state == RoundState.UNMASKING:
                yield from part.unmask(view, self._progress)

    def _part(self, number: int) -> MemberRound:
        if self._round is None or self._round.number != number:
            self._round = MemberRound(self.member, number)
        return self._round

    def _publish(self, newest: int) -> Program[None]:
        closed = load_record(self.member.store, self.member.task_id).closed
        ahead = range(newest + 1, newest + COMMITTEE_KEYS_AHEAD + 1)
        missing = [number for number in ahead if number > closed and number not in self.published]
        accepted = yield from publish_keys(self.member, missing)
        self.published = {number for number in self.published if number > newest}.union(accepted)

    def _check_published(self) -> Program[None]:
        """Forget what this process has published, and the server no longer has."""
        with suppress(Conflict):
            found = yield from self.member.calls.committee(self.member.task_id)
            own = [each.keys for each in found.members if each.client_id == self.member.client_id]
            self.published.intersection_update(*own)
