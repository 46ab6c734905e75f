"""One client of one task: its keys, its training and its client state, as a round needs them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Pause, Program, work
from client_sdk.errors import Abstained, ContractBroken, PolicyRefused
from client_sdk.history import History
from client_sdk.model.best import curve_of
from client_sdk.model.follow import ModelFollower
from client_sdk.rounds.certificates import MembershipCheck
from client_sdk.rounds.events import ModelMeasured, Progress, Waiting
from client_sdk.rounds.keyring import enter_rounds, receive_keyring
from client_sdk.store.client_store import ClientStore, Membership
from client_sdk.store.identity import Identity
from client_sdk.store.states import ClientState, GivenData
from client_sdk.training.base import ClientHalf, LocalResult, MayAbstain
from client_sdk.training.factors import why_abstain
from protocols.errors import KeyringError
from protocols.messages import RoundView
from protocols.recipes.base import ModelState, RoundSpec
from protocols.sum_classes import Data, SumClass
from protocols.sums.oneshot.plan import OneshotPlan

__all__ = [
    "LocalWork",
    "Stop",
]


_LOG = logging.getLogger(__name__)

Stop = Callable[[], bool]
"""Returns whether to stop taking part; called before each poll."""


@dataclass
class LocalWork:
    """One client of one task.

    calls, terms, membership, identity: who the client is, and the task. client_store: what it keeps. policy: what it
    agrees to. follower: its copy of the model. half: the client's half of the recipe. rng: random numbers of training
    only; keys and ciphertexts use the system's generator. membership_check: who else is a member.
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
    _reported_point: int = field(default=0, repr=False)

    def ready(self, progress: Progress | None = None, stop: Stop | None = None, wait: float = 20.0) -> Program[bool]:
        """Load or receive the keyring, if the mechanism needs one; False if `stop()` returned True first.

        wait: seconds of one long poll for the keyring. Raises `KeyringError` and `EnvelopeError` for a keyring that is
        not for this task or this client.
        """
        task_id = self.terms.task_id
        if not self.terms.mechanism.needs_keyring or self.follower.keyring is not None:
            return True
        kept = self.client_store.keyring(task_id)
        if kept is None and self.membership.role == "holder":
            raise KeyringError(f"this client is the key holder of task {self.terms.name!r}: create the keyring first")
        if kept is None and self.membership.organiser is None and not self.policy.trust_roster:
            raise PolicyRefused(
                f"task {self.terms.name!r} has no organiser, so only the server says whose keys these are; allow it "
                "with --trust-roster, or Policy(trust_roster=True), or ask for a task with an organiser"
            )
        reported = False
        while kept is None:
            kept = yield from receive_keyring(
                self.calls, self.terms, self.identity, self.membership_check, wait if reported else 0.0
            )
            if kept is None:
                if stop and stop():
                    return False
                if not reported:
                    waiting = Waiting("the keyring, which the task's key holder creates and seals")
                    _LOG.warning("task %s: this client waits for %s", self.terms.name, waiting.what)
                    if progress:
                        progress(waiting)
                reported = True
                yield Pause(0.05)
            else:
                self.client_store.keep_keyring(task_id, kept)
        self.follower.keyring = kept
        if self.membership.role == "holder":
            yield from enter_rounds(self.calls, self.terms, self.identity, self.membership, kept)
        return True

    # --- training ------------------------------------------------------------------------------------------------

    def spec(self, view: RoundView) -> RoundSpec:
        """Return the round's specification, computed from the terms.

        Raises `ContractBroken` when `view` contradicts it, or is for another device group.
        """
        spec = self.terms.round_spec(view)
        asked = self.terms.recipe.device_group_of(spec.sum_index)
        if asked != self.membership.device_group:
            detail = (
                f"round {view.number} is for group {asked}, and this client is in group {self.membership.device_group}"
            )
            raise ContractBroken("GET", f"/v1/tasks/{self.terms.task_id}/rounds/{view.number}", 200, detail)
        route = self.terms.recipe.route(spec, self.membership.client_id)
        plan = self.terms.sum_plan_at(spec.sum_index)
        implied = plan.contribution_bytes(route) + (plan.ticket_bytes if isinstance(plan, OneshotPlan) else 0)
        if view.contribution_bytes not in (None, implied):
            detail = f"round {view.number} asks for {view.contribution_bytes} bytes, but the plan has {implied}"
            raise ContractBroken("GET", f"/v1/tasks/{self.terms.task_id}/rounds/{view.number}", 200, detail)
        return spec

    def require_data(self, spec: RoundSpec, state: ModelState, history: History) -> None:
        """Raise `Abstained` if this client must not contribute to the round; called before it sends anything."""
        sum_class, task_id = self._sum_class(spec), self.terms.task_id
        given = GivenData() if sum_class.data is None else self.client_store.given(task_id, *self._of(sum_class.data))
        reason = why_abstain(sum_class, spec, state, history, given, task_id)
        if reason is None and isinstance(self.half, MayAbstain):
            reason = self.half.why_abstain(spec, history, self.client_state())
        if reason is None and sum_class.data == "held-out" and given.measured >= self.policy.max_measurements:
            reason = f"this client measured models {given.measured} times on its held-out rows, as often as it allows"
        if reason is not None:
            raise Abstained(reason)

    def train(self, spec: RoundSpec, state: ModelState, history: History) -> LocalResult:
        """Train for one round and return the result. The new client state is stored by `settle`.

        That a client is counted in this sum, or measured in it, is stored at once: if the answer to its upload is lost,
        its data may be in the sum all the same. state: the view of the model of the client's device group. Raises
        `ParameterError` when training diverges.
        """
        client_state = self.client_state() or self.half.initial_client_state(self.rng)
        local = self.half.contribute(spec, self.membership.client_id, state, history, client_state, self.rng)
        sum_class, task_id = self._sum_class(spec), self.terms.task_id
        if sum_class.data is not None:
            of = self._of(sum_class.data)
            given = self.client_store.given(task_id, *of)
            if sum_class.once:
                given = given.with_counted(task_id, spec.sum_index)
            if sum_class.data == "held-out":
                given = replace(given, measured=given.measured + 1)
            self.client_store.keep_given(task_id, *of, given)
        return local

    def _sum_class(self, spec: RoundSpec) -> SumClass:
        return self.terms.recipe.layout(spec.sum_index).sum_class

    def _of(self, data: Data) -> tuple[str | None, Data]:
        """Return which record of given data a sum of this task over `data` belongs to."""
        return self.terms.view.data_set, data

    def report_measured(self, state: ModelState, progress: Progress | None) -> None:
        """Report the newest measurement in the followed `state`, unless it was reported before."""
        curve = curve_of(self.terms.recipe, state)
        if progress is None or curve is None or curve.best is None or len(curve.points) == self._reported_point:
            return
        self._reported_point, newest = len(curve.points), curve.points[-1]
        metrics = curve.metrics(newest)
        if metrics:
            progress(ModelMeasured(newest.model_round, round(newest.clients), metrics, curve.best.model_round))

    # --- client state --------------------------------------------------------------------------------------------

    def client_state(self) -> ClientState | None:
        """Return the arrays that this client never sends, such as its user factor; None before its first round."""
        if self._client_state is None:
            self._client_state = self.client_store.client_state(
                self.terms.task_id, self.half.initial_client_state(np.random.default_rng(0))
            )
        return self._client_state

    def settle(self, local: LocalResult) -> Program[float]:
        """Store the client state after the contribution was uploaded, then run `local.finish` if there is one.

        Returns the seconds that `local.finish` took.
        """
        self.keep_client_state(local.client_state)
        if local.finish is None:
            return 0.0
        started = perf_counter()
        self.keep_client_state((yield from work(local.finish)))
        return perf_counter() - started

    def keep_client_state(self, client_state: ClientState) -> None:
        """Store `client_state` as this client's newest."""
        self._client_state = client_state
        self.client_store.keep_client_state(self.terms.task_id, client_state)
