"""Catching up: bring the model on the device to the newest round with the fewest bytes and requests.

Every client starts from the state that follows from the task's seed and absorbs the aggregate of each completed round.
A client that missed many rounds may download the newest snapshot instead and absorb the aggregates after it. Members
seal the snapshots of tasks whose sums the server cannot open; the server makes those of all other tasks.

In masked and one-shot tasks a client compares the state that it computes with the digest of the server's. Where they
differ, it downloads the server's, which may differ in rounding only, and goes on with that one: all clients of a round
bind their masks to the same bytes. What it has not computed itself, other members must attest
(`client_sdk.rounds.attestations`).

Tasks with federated evaluation may end with the best measured model. Where anyone can open the sums, the server keeps
its snapshot. Where only members can, a device keeps the best model that it passes while it catches up, and nothing is
requested for it: which model was the best follows from opened sums, so a request that depends on it would tell the
server about them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from client_sdk.agreement.terms import TaskTerms, broken_terms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.requests import LONGEST_WAIT
from client_sdk.api.wire import Program, work
from client_sdk.errors import Conflict, ContractBroken, ModelUnavailable, NotFound
from client_sdk.model.sync import (
    SyncPlan,
    absorb_aggregate,
    absorb_checked,
    fetch_missed,
    plan_sync,
    read_snapshot,
    require_same,
)
from client_sdk.store.client_store import ClientStore, keep_best_state, read_best_state
from client_sdk.store.states import FollowedState
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.envelope import seal_snapshot
from protocols.crypto.keys import Keyring
from protocols.errors import CodecError, EnvelopeError
from protocols.messages import RoundView, SnapshotView
from protocols.recipes.base import ModelState, Recipe
from protocols.recipes.evaluated import Evaluated
from protocols.recipes.evaluation_curve import Curve

_TRIES: Final = 4


@dataclass(frozen=True)
class CaughtUp:
    """A model state, and the plan that led to it."""

    followed: FollowedState
    plan: SyncPlan
    rejected: Mapping[int, str] = field(default_factory=dict)
    """The rounds of encrypted sums whose aggregates the state lacks, and why they did not open."""

    @property
    def state(self) -> ModelState:
        """The model state."""
        return self.followed.state


@dataclass
class ModelFollower:
    """One client's copy of the model, brought up to date by `follow`, in memory and on the device."""

    calls: ApiCalls
    terms: TaskTerms
    client_store: ClientStore | None = None
    """Where the state is kept on the device; None for memory only."""
    keyring: Keyring | None = None
    device_group: int = 0
    """The group of the recipe that the client is in."""
    replays_all: bool = field(default=False, init=False)
    _forgotten: bool = field(default=False, init=False)
    _gone: int = field(default=0, init=False)
    _followed: FollowedState | None = field(default=None, init=False, repr=False)

    @property
    def view_group(self) -> int | None:
        """The device group whose view of the model is followed; None where the whole state is."""
        return self.device_group if self.terms.by_snapshot else None

    @property
    def known(self) -> int:
        """Round number of the state that this client has reached; 0 at first."""
        followed = self.current()
        return 0 if followed is None else followed.state.round_number

    def current(self) -> FollowedState | None:
        """Return the newest state, read from the store the first time; `LocalFileError` when it is damaged there."""
        if self._followed is None and self.client_store is not None and not self._forgotten:
            self._followed = self.client_store.item_state(
                self.terms.task_id, self.terms.recipe, self.view_group, self.terms.chained
            )
        return self._followed

    def keep(self, followed: FollowedState) -> None:
        """Keep `followed`, and write it to the store if it is of another round than the one before, or now attested."""
        last = self._followed
        is_new = last is None or last.state.round_number != followed.state.round_number
        is_changed = last is None or is_new or last.unattested != followed.unattested
        self._followed = replace(followed, stored_at=time.time() if last is None or is_new else last.stored_at)
        if self.client_store is not None and is_changed:
            self.client_store.keep_item_state(self.terms.task_id, self.terms.recipe, self._followed, self.view_group)

    def start_again(self) -> None:
        """Go back to the initial state, and ignore the one in the store: the server has lost its rounds."""
        self._followed, self._forgotten = None, True
        self._gone = 0  # a sum that a restored server did not have yet is not one that it deleted

    def replay_all(self) -> None:
        """Go back to the initial state, and from now on use no snapshots of other members."""
        self.replays_all = True
        self.start_again()

    def view(self, state: ModelState) -> ModelState:
        """Return the part of a followed `state` that the client's device group trains from and recommends by."""
        return state if self.terms.by_snapshot else self.terms.recipe.view(state, self.device_group)

    def at_hand(self) -> ModelState:
        """Return the newest known state without a request; `ModelUnavailable` when there is none."""
        followed = self.current()
        if followed is None:
            raise ModelUnavailable(0, "no model of this task is kept on this device yet; fetch it with refresh=True")
        return followed.state

    # --- catching up ---------------------------------------------------------------------------------------------

    def follow(self, upto: int, snapshot_wait: float = 0.0) -> Program[CaughtUp]:
        """Return the state after the last completed round up to number `upto`.

        snapshot_wait: seconds to wait for a snapshot that has not been published yet, where this client has no other
        way. Raises `ModelUnavailable`, `ContractBroken`, and unless members open the sums the errors of opening
        (`KeyringError`, `CodecError`); members go on without an aggregate that does not open.
        """
        left = snapshot_wait
        while True:
            try:
                return (yield from self._follow(upto))
            except ModelUnavailable as error:
                if left <= 0 or not self.terms.by_snapshot:
                    raise
                wait = min(LONGEST_WAIT, left)
                yield from self.calls.latest_snapshot(self.terms.task_id, at_least=error.round, wait=wait)
                left -= wait

    def _follow(self, upto: int) -> Program[CaughtUp]:
        for _ in range(_TRIES):
            missed = yield from fetch_missed(
                self.calls, self.terms, self.known, upto, self.terms.by_snapshot, not self.replays_all, self._gone
            )
            plan = plan_sync(self.known, missed, self.terms.by_snapshot)
            caught_up = yield from self._carry_out(plan)
            if caught_up is not None:
                return caught_up
        raise ModelUnavailable(
            upto, f"the snapshots up to round {upto} were replaced faster than they could be downloaded"
        )

    def _carry_out(self, plan: SyncPlan) -> Program[CaughtUp | None]:
        """Download what `plan` says, absorb it and keep the result; None when some of it is no longer kept.

        Aggregates that members cannot open are `rejected`; they are in the chain like any other, so that nobody sees
        the difference.
        """
        start = self.current()
        followed = start or (yield from self._initial_state())
        if plan.snapshot is not None:
            body = yield from self.download_snapshot(plan.snapshot)
            if body is None:
                return None
            followed = self._read_snapshot(plan.snapshot, body, plan.snapshot_round)
        state, chain, rejected = followed.state, followed.chain, dict[int, str]()
        for view in plan.rounds:
            try:
                body = yield from self.download_aggregate(view)
            except NotFound:  # of older rounds a server keeps digests only
                self._gone = view.number
                return None
            before = state
            if self.terms.checks_states:
                state = yield from self._checked(before, view, body, is_last=view is plan.rounds[-1])
            else:
                state, reason = yield from work(partial(absorb_aggregate, self.terms, self.keyring, before, view, body))
                if reason is not None:
                    rejected[view.number] = reason
            keep_if_best(self.terms, self.client_store, before, state)
            if chain is not None:
                state_digest = bytes.fromhex(view.state_digest or "") if self.terms.checks_states else b""
                chain = chain.extended(view.number, body, state_digest)
        if plan.snapshot is not None:
            keep_if_best(self.terms, self.client_store, None if start is None else start.state, state)
        unattested = followed.unattested or len(plan.rounds) > 1
        followed = replace(followed, state=state, chain=chain, unattested=unattested)
        self.keep(followed)
        return CaughtUp(followed, plan, rejected)

    def _checked(self, before: ModelState, view: RoundView, body: bytes, is_last: bool) -> Program[ModelState]:
        """Return the state after the round `view` with the aggregate `body`, in the server's bytes after the last one.

        Of the rounds before the last one the server's bytes need not be kept any more. Raises `FalseModel` unless the
        server's state follows from `before`, and `ModelUnavailable` when it is no longer kept.
        """
        terms, own = self.terms, None
        if not terms.takes_last_state(view):
            own, is_same = yield from work(partial(absorb_checked, terms, before, view, body))
            if is_same or not is_last:
                return own
        size = tuple(view.size)
        length = terms.recipe.state_bytes(view.step, size) if own is None else len(terms.recipe.encode_state(own))
        named = SnapshotView(round=view.number, bytes=length, digest=str(view.state_digest), author="server")
        theirs = yield from self.download_snapshot(named)
        if theirs is None:
            raise ModelUnavailable(view.number, f"the model of round {view.number} is no longer kept by the server")
        return (yield from work(partial(require_same, terms, own, view.number, theirs)))

    def _read_snapshot(self, view: SnapshotView, body: bytes, of_round: RoundView | None) -> FollowedState:
        if self.terms.checks_states and (of_round is None or of_round.state_digest != view.digest):
            fault = f"the snapshot of round {view.round} is not the state after a completed round"
            raise broken_terms(self.terms.task_id, fault, "snapshots", view.round)
        try:
            return read_snapshot(self.terms, self.keyring, self.view_group, view, body, of_round)
        except (EnvelopeError, CodecError) as error:
            raise ModelUnavailable(view.round, f"the snapshot of round {view.round} cannot be used: {error}") from None

    def _initial_state(self) -> Program[FollowedState]:
        """Return the state of round 0: from the task's seed, or downloaded, where the terms have its digest."""
        recipe, seed = self.terms.recipe, self.terms.seed
        chain = AggregateChain.first(self.terms.task_id) if self.terms.chained else None
        start = recipe.parameters.start_digest
        if start is not None:
            length = recipe.state_bytes(0)
            view = SnapshotView(round=0, bytes=length, digest=start, author="server")
            body = yield from self.calls.snapshot(self.terms.task_id, view, length)
            if body is None:
                raise ModelUnavailable(0, "the server does not have the model that this task starts from")
            return FollowedState(recipe.decode_state(0, body), chain)
        state = recipe.initial_state(seed) if self.view_group is None else recipe.initial_view(seed, self.view_group)
        return FollowedState(state, chain)

    def download_snapshot(self, view: SnapshotView) -> Program[bytes | None]:
        """Download a snapshot and check its digest; None when it is no longer kept."""
        return self.calls.snapshot(self.terms.task_id, view, self.terms.longest_snapshot)

    def download_aggregate(self, view: RoundView) -> Program[bytes]:
        """Download the aggregate of a completed round and check its digest."""
        length = self.terms.sum_plan_at(view.step, tuple(view.size)).aggregate_bytes
        return self.calls.aggregate(self.terms.task_id, view.number, length, view.aggregate_digest)

    def final(self, newest: ModelState) -> Program[ModelState]:
        """Return the best measured model by the curve in the state `newest`; `newest` itself without a measurement.

        Raises `ModelUnavailable` where this device has not kept it and may not request it, `ContractBroken` when the
        server announces the model of another round.
        """
        terms, store = self.terms, self.client_store
        number = best_round(terms.recipe, newest)
        if number is None or number == newest.round_number:
            return newest
        if number == 0:
            return terms.recipe.initial_state(terms.seed)
        if terms.opened_by != "anyone":
            kept = None if store is None else read_best_state(store, terms.task_id, terms.recipe)
            if kept is None or kept.round_number != number:
                raise ModelUnavailable(number, f"the best model, of round {number}, was not kept on this device")
            return kept
        view = yield from self.calls.best_snapshot(terms.task_id)
        body = None if view is None else (yield from self.download_snapshot(view))
        if view is None or body is None:
            raise ModelUnavailable(number, f"the server does not keep the best model, of round {number}")
        if view.round != number:
            detail = f"the best model is announced as that of round {view.round}, but the curve says round {number}"
            raise ContractBroken("GET", f"/v1/tasks/{terms.task_id}/snapshots/best", 200, detail)
        return read_snapshot(terms, None, self.view_group, view, body).state

    # --- publishing ----------------------------------------------------------------------------------------------

    def publish_when_due(self, followed: FollowedState, every: int) -> Program[bool]:
        """Seal a state and its chain, and upload them, if the newest snapshot is at least `every` rounds older.

        every: 0 for never. Only members of encrypted tasks publish: the server makes the snapshots of all others.
        Returns whether this client did; another member may have been first.
        """
        state, chain, task_id = followed.state, followed.chain, self.terms.task_id
        if not every or state.round_number < every or chain is None or self.keyring is None:
            return False
        latest = yield from self.calls.latest_snapshot(task_id)
        if latest is not None and state.round_number - latest.round < every:
            return False
        body = self.terms.recipe.encode_state(state)
        sealed = seal_snapshot(body, chain, self.keyring.state_key, task_id, state.round_number)
        try:
            yield from self.calls.put_snapshot(task_id, state.round_number, sealed)
        except Conflict:
            return False
        return True


# --- the best measured model ------------------------------------------------------------------------------------------


def curve_of(recipe: Recipe, state: ModelState) -> Curve | None:
    """Return the measurements in `state`; None for a task without federated evaluation."""
    measured = recipe.layer(Evaluated)
    return None if measured is None else measured.curve(state)


def ends_with_best(recipe: Recipe) -> bool:
    """Return whether the task ends with the best measured model."""
    measured = recipe.layer(Evaluated)
    return measured is not None and measured.evaluation.keep == "best"


def best_round(recipe: Recipe, state: ModelState) -> int | None:
    """Return the round after which the model was best, by the curve in `state`; None without a measurement."""
    curve = curve_of(recipe, state)
    return None if curve is None or curve.best is None else curve.best.model_round


def keep_if_best(terms: TaskTerms, store: ClientStore | None, before: ModelState | None, after: ModelState) -> None:
    """Store `before` if the curve in the state `after` it says that it is the best model so far.

    Only in tasks that end with the best model and whose sums the server cannot open.
    """
    if store is None or before is None or terms.opened_by == "anyone" or not ends_with_best(terms.recipe):
        return
    if best_round(terms.recipe, after) == before.round_number:
        keep_best_state(store, terms.task_id, terms.recipe, before)
