"""A client's part in a task, as programs: catch up, train, seal, upload, and again until the task ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from client_sdk.agreement.policy import Policy
from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Pause, Program, Traffic, metered, work
from client_sdk.errors import (
    ContractBroken,
    ContributionConflict,
    GaveUp,
    ModelUnavailable,
    NotInCohort,
    PolicyRefused,
    RoundClosed,
    RoundLost,
)
from client_sdk.history import History
from client_sdk.local_state.identity import Identity
from client_sdk.local_state.store import ClientStore, Membership
from client_sdk.model.catch_up import CaughtUp, ModelFollower
from client_sdk.model.recommendation import Recommendations, top_items
from client_sdk.participation.events import (
    ClipWarning,
    ModelBehind,
    Progress,
    RoundMissed,
    RoundReport,
    SnapshotPublished,
    TaskEnded,
    Waiting,
    waiting_to_start,
)
from client_sdk.participation.keyring import enter_rounds, receive_keyring
from client_sdk.participation.ledger import deliver
from client_sdk.participation.masked_protocol import MembershipCheck
from client_sdk.participation.masked_rounds import take_masked_part
from client_sdk.training.base import ChecksHistory, ClientHalf, ClientState, LocalResult
from protocols.errors import KeyringError, ParameterError, RefusalError, ThresholdError
from protocols.messages import RoundView
from protocols.recipes.base import ModelState, RoundSpec
from protocols.sums.base import WorksAhead

__all__ = ["Participation", "Stop"]

Stop = Callable[[], bool]
_MISSED = (
    *(PolicyRefused, RoundClosed, NotInCohort, ContributionConflict, GaveUp, ModelUnavailable),
    *(RoundLost, RefusalError, ThresholdError),
)
"""What ends a round for this client, and not its part in the task."""
_SNAPSHOT_VOLUNTEERS = 3.0
"""Cohort members that look, on average, whether a snapshot is due: all of them would upload for one to win."""


@dataclass
class Participation:
    """One client of one task. `rng` is for training alone: keys and ciphertexts take the system's randomness."""

    calls: ApiCalls
    terms: TaskTerms
    membership: Membership
    identity: Identity
    client_store: ClientStore
    policy: Policy
    follower: ModelFollower
    half: ClientHalf
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    seen: History | None = None
    membership_check: MembershipCheck = field(default_factory=lambda: MembershipCheck(None), repr=False)
    _client_state: ClientState | None = field(default=None, repr=False)

    # --- keys ----------------------------------------------------------------------------------------------------

    def ready(self, progress: Progress | None = None, stop: Stop | None = None, wait: float = 20.0) -> Program[bool]:
        """Have the keyring, waiting in the mailbox for it; False when `stop()` said so first."""
        task_id = self.terms.task_id
        if not self.terms.mechanism.needs_keyring or self.follower.keyring is not None:
            return True
        kept = self.client_store.keyring(task_id)
        if kept is None and self.membership.role == "holder":
            raise KeyringError(f"this client holds the keys of task {self.terms.name!r}: create the keyring first")
        told = False
        while kept is None:
            kept = yield from receive_keyring(
                self.calls, self.terms, self.identity, self.membership.membership_secret, wait if told else 0.0
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

    # --- one round -----------------------------------------------------------------------------------------------

    def run_round(self, view: RoundView, history: History, progress: Progress | None = None) -> Program[RoundReport]:
        """Take part in the round `view`: what `take_part` does for each round it is asked in.

        Raises `PolicyRefused`, the upload's problems, `RoundLost` and its like in masked rounds, and `ParameterError`
        when training diverged.
        """
        if self.terms.mechanism.interactive:
            return take_masked_part(self, view, history, progress)
        return self._run_unmasked_round(view, history, progress, Traffic())

    def _run_unmasked_round(
        self, view: RoundView, history: History, progress: Progress | None, traffic: Traffic
    ) -> Program[RoundReport]:
        self.policy.check_round(view)
        spec = self.spec(view)
        started = perf_counter()
        yield from self.ready(progress)
        caught_up = yield from metered(self.follower.follow(view.number - 1, patience=60.0), traffic)
        current = perf_counter()
        local = yield from work(lambda: self.train(spec, self.follower.view(caught_up.state), history))
        trained = perf_counter()
        body = yield from work(lambda: self._seal(spec, local))
        sealed = perf_counter()
        if progress and self.policy.too_much_clipped(local.clipped, local.values):
            progress(ClipWarning(view.number, local.clipped, local.values))
        client_id = self.membership.client_id
        delivery = deliver(self.calls, self.client_store, self.terms.task_id, view.number, client_id, body)
        yield from metered(delivery, traffic)
        uploaded = perf_counter()
        finishing = yield from self.settle(local)
        yield from metered(self._offer_snapshot(view, caught_up, progress), traffic)
        return RoundReport(
            round=view.number,
            client_id=client_id,
            loss=local.loss,
            samples=local.samples,
            values=local.values,
            clipped=local.clipped,
            contribution_bytes=len(body),
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            bytes_spared=caught_up.bytes_spared,
            catch_up_seconds=current - started,
            train_seconds=trained - current + finishing,
            seal_seconds=sealed - trained,
            upload_seconds=uploaded - sealed,
            caught_up=caught_up.plan.kind,
        )

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

    def _seal(self, spec: RoundSpec, local: LocalResult) -> bytes:
        route = self.terms.recipe.route(spec, self.membership.client_id)
        plan = self.terms.sum_plan_at(spec.sum_index)
        return self.terms.mechanism.seal(plan, route, local.blocks, self.follower.keyring)

    def _offer_snapshot(self, view: RoundView, caught_up: CaughtUp, progress: Progress | None) -> Program[None]:
        if self.terms.opened_by != "members" or not self.policy.snapshot_every:
            return
        if np.random.default_rng().random() * view.cohort > _SNAPSHOT_VOLUNTEERS:
            return
        if (yield from self.follower.publish_when_due(caught_up.state, self.policy.snapshot_every)) and progress:
            progress(SnapshotPublished(caught_up.state.round_number))

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

    # --- until the task ends -------------------------------------------------------------------------------------

    def history(self, interactions: object) -> History:
        """The interactions as a `History`; `ParameterError` for none, and for what the recipe cannot learn from."""
        history = History.of(interactions, self.terms.n_items)
        if not len(history):
            raise ParameterError("a client without interactions has nothing to train on")
        if isinstance(self.half, ChecksHistory):
            self.half.check(history)
        return history

    def run_until_closed(
        self,
        interactions: object,
        progress: Progress | None = None,
        stop: Stop | None = None,
        poll_seconds: float = 20.0,
    ) -> Program[list[RoundReport]]:
        """Take part in every round this client is asked in, until the task ends or `stop()` says so.

        A round that closes early or that the policy refuses is told as `RoundMissed`, and the next one awaited.
        `stop` is asked between long polls of `poll_seconds`.
        """
        self.seen = self.history(interactions)
        if not (yield from self.ready(progress, stop, poll_seconds)):
            return []
        with self._working_ahead():
            return (yield from self._run_rounds(self.seen, progress, stop, poll_seconds))

    def _working_ahead(self) -> AbstractContextManager[None]:
        """Let the mechanism use the time between rounds, where it can."""
        mechanism, keyring = self.terms.mechanism, self.follower.keyring
        if isinstance(mechanism, WorksAhead) and keyring is not None:
            return mechanism.working_ahead(self.terms.sum_plan, keyring)
        return nullcontext()

    def _run_rounds(
        self, history: History, progress: Progress | None, stop: Stop | None, poll_seconds: float
    ) -> Program[list[RoundReport]]:
        reports: list[RoundReport] = []
        etag: str | None = None
        waiting: Waiting | None = None
        handled = 0
        while not (stop and stop()):
            patience = poll_seconds if etag or waiting else 0.0  # what is waited for is told at once
            fresh = yield from self.calls.current_round(self.terms.task_id, etag, patience)
            if fresh is not None:
                etag, view = fresh.etag, fresh.round
                if view.number > handled and view.state == self._opening and _is_asked(view):
                    handled = view.number
                    report = yield from self._attempt(view, history, progress)
                    if report is not None:
                        reports.append(report)
                if view.state not in ("complete", "failed"):
                    continue
            task = yield from self.calls.task(self.terms.task_id)
            if task.state != "open":
                yield from self._finish(progress)
                if progress:
                    progress(TaskEnded(task.state))
                break
            if etag is None:
                told, waiting = waiting, waiting_to_start(task, self.terms.mechanism.needs_keyring)
                if progress and waiting != told:
                    progress(waiting)
                yield Pause(0.2)
        return reports

    @property
    def _opening(self) -> str:
        return "advertising" if self.terms.mechanism.interactive else "collecting"

    def _attempt(self, view: RoundView, history: History, progress: Progress | None) -> Program[RoundReport | None]:
        try:
            report = yield from self.run_round(view, history, progress)
        except _MISSED as error:
            if progress:
                progress(RoundMissed(view.number, str(error)))
            return None
        if progress:
            progress(report)
        return report

    def _finish(self, progress: Progress | None) -> Program[None]:
        try:
            yield from self.newest(patience=60.0)
        except ModelUnavailable as error:
            if progress:
                progress(ModelBehind(str(error)))

    def newest(self, patience: float = 0.0) -> Program[ModelState]:
        """The model after the last completed round, as this client's group sees it."""
        yield from self.ready()
        fresh = yield from self.calls.current_round(self.terms.task_id)
        upto = 0 if fresh is None else fresh.round.number - (fresh.round.state not in ("complete", "failed"))
        return self.follower.view((yield from self.follower.follow(upto, patience)).state)

    # --- recommending --------------------------------------------------------------------------------------------

    def recommend(self, k: int, interactions: object | None, refresh: bool) -> Program[Recommendations]:
        """The `k` best items for this user among those not in `interactions` (those of `loop` when None).

        With `refresh` the model is brought up to date first; without, the newest known here is used and no request
        made. A user that never took part gets its factor from local training, of which nothing is sent.
        """
        seen = self.seen if interactions is None else History.of(interactions, self.terms.n_items)
        if seen is None:
            raise ParameterError("whose interactions? pass them: recommend(k, interactions=...)")
        if refresh:
            state = yield from self.newest()
        else:
            state = self.follower.view(self.follower.at_hand())
        scores = yield from work(lambda: self.scores(state, seen))
        return top_items(scores, seen.items, k)

    def scores(self, state: ModelState, history: History) -> NDArray[np.float32]:
        """This user's score for every item, float32 (items,), by what its group sees of the model."""
        client_state = self.client_state()
        if client_state is None:
            spec = self.terms.recipe.round_spec(self.terms.seed, max(1, state.round_number))
            client_state = self.half.prepare(spec, state, history, self.rng)
            self.keep_client_state(client_state)
        return self.half.scores(state, client_state, history)


def _is_asked(view: RoundView) -> bool:
    """Whether the round wants this client's first message; an earlier process of it may have sent one."""
    return bool(view.in_cohort) and not (view.contributed or view.delivered)
