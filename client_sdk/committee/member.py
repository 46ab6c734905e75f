"""`CommitteeMember` and `AsyncCommitteeMember`: a client that is in the committee of a task with one-shot sums.

member = CommitteeMember(client.join(invitation=..., certificate=...))
member.serve()
"""

from __future__ import annotations

from client_sdk.api.committee_calls import CommitteeCalls
from client_sdk.committee.service import CommitteeService
from client_sdk.participation.events import Progress
from client_sdk.participation.local_work import Stop
from client_sdk.participation.participant import AsyncParticipant, Participant
from client_sdk.participation.participation import Participation
from protocols.messages import RoundView

__all__ = ["AsyncCommitteeMember", "CommitteeMember", "committee_service"]


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
