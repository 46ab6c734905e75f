"""One client of one task, as far as a single round needs it: its keys, its training, and what it keeps to itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Pause, Program, work
from client_sdk.errors import ContractBroken, PolicyRefused
from client_sdk.history import History
from client_sdk.local_state.client_state import ClientState
from client_sdk.local_state.identity import Identity
from client_sdk.local_state.store import ClientStore, Membership
from client_sdk.model.catch_up import ModelFollower
from client_sdk.participation.certificates import MembershipCheck
from client_sdk.participation.events import (
    Progress,
    Waiting,
)
from client_sdk.participation.keyring import enter_rounds, receive_keyring
from client_sdk.training.base import ClientHalf, LocalResult
from protocols.errors import KeyringError
from protocols.messages import RoundView
from protocols.recipes.base import ModelState, RoundSpec

__all__ = ["LocalWork", "Stop"]

Stop = Callable[[], bool]


@dataclass
class LocalWork:
    """The work of one client of one task. `rng` is for training alone: keys and ciphertexts take the system's
    randomness.
    """

    calls: ApiCalls
    terms: TaskTerms
    membership: Membership
    identity: Identity
    client_store: ClientStore
    policy: Policy
    follower: ModelFollower
    half: ClientHalf
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    membership_check: MembershipCheck = field(default_factory=lambda: MembershipCheck(None), repr=False)
    _client_state: ClientState | None = field(default=None, repr=False)

    def ready(self, progress: Progress | None = None, stop: Stop | None = None, wait: float = 20.0) -> Program[bool]:
        """Have the keyring, waiting in the mailbox for it; False when `stop()` said so first."""
        task_id = self.terms.task_id
        if not self.terms.mechanism.needs_keyring or self.follower.keyring is not None:
            return True
        kept = self.client_store.keyring(task_id)
        if kept is None and self.membership.role == "holder":
            raise KeyringError(f"this client holds the keys of task {self.terms.name!r}: create the keyring first")
        if kept is None and self.membership.organiser is None and not self.policy.trust_roster:
            raise PolicyRefused(
                f"task {self.terms.name!r} has no organiser, so only the server says whose keys these are; allow it "
                "with Policy(trust_roster=True), or ask for a task with an organiser"
            )
        told = False
        while kept is None:
            kept = yield from receive_keyring(
                self.calls, self.terms, self.identity, self.membership_check, wait if told else 0.0
            )
            if kept is None:
                if stop and stop():
                    return False
                if progress and not told:
                    progress(Waiting("the keyring"))
                told = True
                yield Pause(0.05)
            else:
                self.client_store.keep_keyring(task_id, kept)
        self.follower.keyring = kept
        if self.membership.role == "holder":
            yield from enter_rounds(self.calls, self.terms, self.identity, self.membership, kept)
        return True

    # --- training ------------------------------------------------------------------------------------------------

    def spec(self, view: RoundView) -> RoundSpec:
        """The round's broadcast, after what the server says of it was compared with what follows from the terms."""
        spec = self.terms.round_spec(view)
        asked = self.terms.recipe.device_group_of(spec.sum_index)
        if asked != self.membership.device_group:
            detail = (
                f"round {view.number} is for group {asked}, and this client is in group {self.membership.device_group}"
            )
            raise ContractBroken("GET", f"/v1/tasks/{self.terms.task_id}/rounds/{view.number}", 200, detail)
        route = self.terms.recipe.route(spec, self.membership.client_id)
        implied = self.terms.sum_plan_at(spec.sum_index).contribution_bytes(route)
        if view.contribution_bytes not in (None, implied):
            detail = f"round {view.number} asks for {view.contribution_bytes} bytes, the plan says {implied}"
            raise ContractBroken("GET", f"/v1/tasks/{self.terms.task_id}/rounds/{view.number}", 200, detail)
        return spec

    def train(self, spec: RoundSpec, state: ModelState, history: History) -> LocalResult:
        """This client's half of the recipe, from what it remembers; the outcome is remembered by `keep_memory`.

        state: what the client's group sees of the model.
        """
        client_state = self.client_state() or self.half.initial_client_state(self.rng)
        return self.half.contribute(spec, self.membership.client_id, state, history, client_state, self.rng)

    # --- what stays here -----------------------------------------------------------------------------------------

    def client_state(self) -> ClientState | None:
        """What this client keeps to itself, its user factor for one; None before it first took part."""
        if self._client_state is None:
            self._client_state = self.client_store.client_state(
                self.terms.task_id, self.half.initial_client_state(np.random.default_rng(0))
            )
        return self._client_state

    def settle(self, local: LocalResult) -> Program[float]:
        """Remember what a stored contribution left, then do what was put off until then; the seconds that took."""
        self.keep_client_state(local.client_state)
        if local.finish is None:
            return 0.0
        started = perf_counter()
        self.keep_client_state((yield from work(local.finish)))
        return perf_counter() - started

    def keep_client_state(self, client_state: ClientState) -> None:
        """Remember what the last contribution left, once that is stored."""
        self._client_state = client_state
        self.client_store.keep_client_state(self.terms.task_id, client_state)
