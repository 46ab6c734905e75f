"""The committee of a fleet's task: further clients of the same process that contribute nothing.

In a real task its members are run by different parties; here they make demos, tests and benchmarks complete.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from client_sdk.api.effects import Program
from client_sdk.committee.member import committee_service
from client_sdk.committee.service import CommitteeService
from client_sdk.local_state.identity import Identity
from client_sdk.local_state.stores import MemoryStore
from client_sdk.participation.certificates import CertificateSource
from client_sdk.participation.enroller import Enroller
from client_sdk.participation.follow_rounds import is_over
from client_sdk.simulation.fleet_options import FleetOptions
from client_sdk.simulation.fleet_rounds import RunAll
from protocols.errors import ParameterError
from protocols.messages import RoundView
from protocols.sums.base import SumPlan
from protocols.sums.oneshot.plan import OneshotPlan

__all__ = ["FleetCommittee", "acts_upon"]


class FleetCommittee:
    """The members of a committee in one process. run_all: runs one program per member on the fleet's workers."""

    def __init__(self, options: FleetOptions, run_all: RunAll) -> None:
        self._options, self._run_all = options, run_all
        self.members: list[CommitteeService] = []

    def enrol(self, url: str, plan: SumPlan, invitation: str, certificate: CertificateSource | None) -> None:
        """Enrol as many members as `plan` has and publish their first keys; `ParameterError` for another mechanism."""
        if not isinstance(plan, OneshotPlan):
            raise ParameterError(f"tasks with {plan.mechanism} have no committee")
        options = self._options

        def program() -> Program[CommitteeService]:
            enroller = Enroller(url, Identity.generate(), MemoryStore(), options.policy, options.client)
            return committee_service((yield from enroller.participation(None, invitation, certificate, None, None)))

        self.members = self._run_all(program for _ in range(plan.committee))
        self.attend()

    def attend(self) -> None:
        """Let every member attend the newest round."""
        self._run_all(partial(each.attend_newest, self._options.progress) for each in self.members)

    def unmask(self, view: RoundView, await_next: Callable[[RoundView], RoundView]) -> None:
        """Attend each state of a round until it is over. await_next: returns the round once `acts_upon` differs."""
        while self.members and not is_over(view):
            view = await_next(view)
            self.attend()


def acts_upon(view: RoundView) -> tuple[object, ...]:
    """Return what the committee acts upon: the state, and the set of survivors that is proposed."""
    return view.state, view.survivors_digest
