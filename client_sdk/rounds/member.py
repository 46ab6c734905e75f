"""One client of one task: who it is, and what it agreed to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Program
from client_sdk.errors import PolicyRefused
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.store.client_store import ClientStore, Membership
from client_sdk.store.identity import Identity

Stop = Callable[[], bool]
"""Returns whether to stop taking part; called before each poll."""


@dataclass(frozen=True)
class Member:
    """One client of one task: a contributor, the key holder, or a member of the committee.

    calls: the API with the client's token, signed by its identity. terms: of the task, as this client agreed to them.
    store: what it keeps. policy: what it agrees to. check: who else is a member.
    """

    calls: ApiCalls
    terms: TaskTerms
    membership: Membership
    identity: Identity
    store: ClientStore
    policy: Policy
    check: MembershipCheck = field(repr=False)

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.terms.task_id

    @property
    def client_id(self) -> str:
        """The client's id in the task."""
        return self.membership.client_id

    def refresh_revocations(self) -> Program[None]:
        """Fetch the newest list of revoked certificates; see `MembershipCheck.refresh`."""
        return self.check.refresh(self.calls, self.store, self.task_id)


def require_known_people(member: Member) -> None:
    """Raise `PolicyRefused` if only the server says who takes part, and the policy does not trust it with that."""
    if member.check.pin is None and not member.policy.trust_roster:
        raise PolicyRefused(
            f"task {member.terms.name!r} has no organiser, so only the server says who the other clients, the key "
            "holder and the committee are; allow it with Policy(trust_roster=True) or --trust-roster, or ask for a "
            "task with an organiser and join with its certificate (certificate=..., --issuer)"
        )
