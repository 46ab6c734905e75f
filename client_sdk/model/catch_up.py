"""Catching up: bring the model on the device to the newest round for the fewest bytes.

Every client starts from the state that follows from the task's seed and absorbs the aggregate of each completed round.
A client that missed many rounds may download the newest snapshot instead and absorb the aggregates after it. Members
and the key holder seal the snapshots of tasks whose sums the server cannot open; the server makes those of all other
tasks. Members who cannot open aggregates (public-key mode) use snapshots only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import LONGEST_WAIT, ApiCalls
from client_sdk.api.effects import Program, work
from client_sdk.errors import ModelUnavailable
from client_sdk.local_state.store import ClientStore
from client_sdk.model.cache import ModelCache
from client_sdk.model.catalogue import fetch_catalogue
from client_sdk.model.snapshots import publish_snapshot, publish_snapshot_when_due, read_snapshot
from client_sdk.model.state_source import OwnSource, SharedSource, StateSource
from client_sdk.model.sync_plan import SyncPlan, plan_sync
from protocols.crypto.keyring import Keyring
from protocols.messages import RoundView, SnapshotView
from protocols.recipes.base import ModelState

__all__ = ["CaughtUp", "ModelFollower"]

_TRIES: Final = 4


@dataclass(frozen=True)
class CaughtUp:
    """A model state, the plan that led to it, and the bytes that a shared `ModelCache` saved."""

    state: ModelState
    plan: SyncPlan
    bytes_spared: int = 0


@dataclass
class ModelFollower:
    """One client's copy of the model, brought up to date by `follow`.

    client_store: where the state is kept on the device. shared: a cache that keeps the states of several followers
    instead. device_group: the group of the recipe that the client is in. opens: whether the client opens aggregates of
    a public-key task itself. Only the key holder's service does: opening adds fresh noise, and all members, the
    holder's own training included, must use the one state that the holder published.
    """

    calls: ApiCalls
    terms: TaskTerms
    client_store: ClientStore | None = None
    keyring: Keyring | None = None
    shared: ModelCache | None = None
    opens: bool = False
    device_group: int = 0
    _source: StateSource = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.shared is None:
            self._source = OwnSource(self.terms, self.view_group, self.client_store)
        else:
            self._source = SharedSource(self.shared, self.terms.task_id, self.view_group)

    @property
    def view_group(self) -> int | None:
        """The device group whose view of the model is followed; None where the whole state is."""
        return self.device_group if self.terms.by_snapshot else None

    @property
    def snapshots_only(self) -> bool:
        """Whether this client cannot replay aggregates and uses published snapshots only."""
        return self.terms.by_snapshot or (self.terms.opened_by == "holder" and not self.opens)

    @property
    def known(self) -> int:
        """Round number of the state that this client has reached; 0 at first."""
        return self._source.known

    def view(self, state: ModelState) -> ModelState:
        """Return the part of a followed `state` that the client's device group trains from and recommends by."""
        return state if self.terms.by_snapshot else self.terms.recipe.view(state, self.device_group)

    def at_hand(self) -> ModelState:
        """Return the newest known state without a request; `ModelUnavailable` when there is none."""
        state = self._source.current()
        if state is None:
            raise ModelUnavailable(0, "no model of this task is kept on this device yet; fetch it with refresh=True")
        return state

    def forget(self) -> None:
        """Drop the state that this client has reached."""
        self._source.forget()

    # --- catching up ---------------------------------------------------------------------------------------------

    def follow(self, upto: int, snapshot_wait: float = 0.0) -> Program[CaughtUp]:
        """Return the state after the last completed round up to number `upto`.

        snapshot_wait: seconds to wait for a snapshot that has not been published yet, where this client has no other
        way. Raises `ModelUnavailable`, `ContractBroken`, and the errors of opening (`KeyringError`, `CodecError`).
        """
        left = snapshot_wait
        while True:
            try:
                return (yield from self._follow(upto))
            except ModelUnavailable as error:
                if left <= 0 or not self.snapshots_only:
                    raise
                wait = min(LONGEST_WAIT, left)
                yield from self.calls.latest_snapshot(self.terms.task_id, at_least=error.round, wait=wait)
                left -= wait

    def _follow(self, upto: int) -> Program[CaughtUp]:
        source = self._source
        catalogue = source.catalogue(upto)
        for _ in range(_TRIES):
            if catalogue is None:
                catalogue = yield from fetch_catalogue(self.calls, self.terms, source.known, upto, self.snapshots_only)
            plan = plan_sync(source.known, catalogue, self.snapshots_only)
            start, made = source.current(), source.made_by_others(source.known if plan.target is None else plan.target)
            catalogue = None  # if this attempt fails, the next one fetches a new catalogue
            if made is None and start is None and source.known:
                source.forget()  # the shared cache has dropped the state that the plan starts from
                continue
            if made is not None and source.skips_downloads:
                source.keep(made)
                return CaughtUp(made, plan, bytes_spared=plan.bytes)
            state = (yield from self._replay(plan, start)) if made is None else (yield from self._verify(plan, made))
            if state is not None:
                source.keep(state)
                return CaughtUp(state, plan)
        raise ModelUnavailable(
            upto, f"the snapshots up to round {upto} were replaced faster than they could be downloaded"
        )

    def _replay(self, plan: SyncPlan, start: ModelState | None) -> Program[ModelState | None]:
        """Download the bodies of `plan`, and absorb them into `start` (the initial state when None).

        Returns None when the snapshot is no longer kept.
        """
        state = start or self._initial_state()
        if plan.snapshot is not None:
            body = yield from self._download_snapshot(plan.snapshot)
            if body is None:
                return None
            state = read_snapshot(self.terms, self.keyring, self.view_group, plan.snapshot, body)
        for view in plan.rounds:
            body = yield from self._download_aggregate(view)
            state = yield from self._absorb(state, view, body)
        return state

    def _verify(self, plan: SyncPlan, made: ModelState) -> Program[ModelState | None]:
        """Download the bodies of `plan` and check their digests only; return `made`, which another follower made.

        Returns None when the snapshot is no longer kept.
        """
        if plan.snapshot is not None and (yield from self._download_snapshot(plan.snapshot)) is None:
            return None
        for view in plan.rounds:
            yield from self._download_aggregate(view)
        return made

    def _initial_state(self) -> ModelState:
        recipe, seed = self.terms.recipe, self.terms.seed
        return recipe.initial_state(seed) if self.view_group is None else recipe.initial_view(seed, self.view_group)

    def _download_snapshot(self, view: SnapshotView) -> Program[bytes | None]:
        return self.calls.snapshot(self.terms.task_id, view, self.terms.longest_snapshot)

    def _download_aggregate(self, view: RoundView) -> Program[bytes]:
        length = self.terms.sum_plan_at(view.step).aggregate_bytes
        return self.calls.aggregate(self.terms.task_id, view.number, length, view.aggregate_digest)

    def _absorb(self, state: ModelState, view: RoundView, body: bytes) -> Program[ModelState]:
        terms, keyring = self.terms, self.keyring
        spec = terms.round_spec(view)

        def open_and_absorb() -> ModelState:
            total = terms.mechanism.open(terms.sum_plan_at(view.step), body, view.survivors, keyring)
            return terms.recipe.absorb(state, spec, total, view.survivors)

        return work(open_and_absorb)

    # --- publishing ----------------------------------------------------------------------------------------------

    def publish(self, state: ModelState) -> Program[bool]:
        """Publish `state` as a sealed snapshot; see `publish_snapshot`."""
        return publish_snapshot(self.calls, self.terms, self.keyring, state)

    def publish_when_due(self, state: ModelState, every: int) -> Program[bool]:
        """Publish `state` if a snapshot is due after `every` rounds; see `publish_snapshot_when_due`."""
        return publish_snapshot_when_due(self.calls, self.terms, self.keyring, state, every)
