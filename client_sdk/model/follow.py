"""Catching up: bring the model on the device to the newest round with the fewest bytes and requests.

Every client starts from the state that follows from the task's seed and absorbs the aggregate of each completed round.
A client that missed many rounds may download the newest snapshot instead and absorb the aggregates after it. Members
seal the snapshots of tasks whose sums the server cannot open; the server makes those of all other tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import LONGEST_WAIT, ApiCalls
from client_sdk.api.wire import Program, work
from client_sdk.errors import ModelUnavailable
from client_sdk.model.best import best_model, ends_with_best, keep_if_best
from client_sdk.model.cache import ModelCache
from client_sdk.model.snapshots import RejectedAggregate, absorb_aggregate, publish_snapshot_when_due, read_snapshot
from client_sdk.model.sync import Catalogue, SyncPlan, fetch_catalogue, plan_sync
from client_sdk.store.client_store import ClientStore
from client_sdk.store.states import FollowedState
from protocols.crypto.aggregate_chain import AggregateChain
from protocols.crypto.keyring import Keyring
from protocols.errors import CodecError, EnvelopeError
from protocols.messages import RoundView, SnapshotView
from protocols.recipes.base import ModelState

__all__ = [
    "CaughtUp",
    "ModelFollower",
    "OwnSource",
    "SharedSource",
    "StateSource",
]


_TRIES: Final = 4


@dataclass(frozen=True)
class CaughtUp:
    """A model state, the plan that led to it, and the bytes that a shared `ModelCache` saved.

    rejected: the aggregates of encrypted sums that the state lacks, because they did not open.
    """

    followed: FollowedState
    plan: SyncPlan
    bytes_spared: int = 0
    rejected: tuple[RejectedAggregate, ...] = ()

    @property
    def state(self) -> ModelState:
        """The model state."""
        return self.followed.state


@dataclass
class ModelFollower:
    """One client's copy of the model, brought up to date by `follow`.

    client_store: where the state is kept on the device. shared: a cache that keeps the states of several followers
    instead. device_group: the group of the recipe that the client is in.
    """

    calls: ApiCalls
    terms: TaskTerms
    client_store: ClientStore | None = None
    keyring: Keyring | None = None
    shared: ModelCache | None = None
    device_group: int = 0
    replays_all: bool = field(default=False, init=False)
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
    def known(self) -> int:
        """Round number of the state that this client has reached; 0 at first."""
        return self._source.known

    def view(self, state: ModelState) -> ModelState:
        """Return the part of a followed `state` that the client's device group trains from and recommends by."""
        return state if self.terms.by_snapshot else self.terms.recipe.view(state, self.device_group)

    def at_hand(self) -> ModelState:
        """Return the newest known state without a request; `ModelUnavailable` when there is none."""
        followed = self._source.current()
        if followed is None:
            raise ModelUnavailable(0, "no model of this task is kept on this device yet; fetch it with refresh=True")
        return followed.state

    def replay_all(self) -> None:
        """Go back to the initial state, and from now on use no snapshots of other members."""
        self.replays_all = True
        self._source.forget()

    def start_again(self) -> None:
        """Go back to the initial state: the server has lost the rounds that led to the state at hand."""
        self._source.forget()

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
        source = self._source
        catalogue = source.catalogue(upto)
        for _ in range(_TRIES):
            if catalogue is None:
                catalogue = yield from fetch_catalogue(
                    self.calls, self.terms, source.known, upto, self.terms.by_snapshot, not self.replays_all
                )
            plan = plan_sync(source.known, catalogue, self.terms.by_snapshot)
            start, made = source.current(), source.made_by_others(source.known if plan.target is None else plan.target)
            catalogue = None  # if this attempt fails, the next one fetches a new catalogue
            if made is None and start is None and source.known:
                source.forget()  # the shared cache has dropped the state that the plan starts from
                continue
            if made is not None and source.skips_downloads:
                source.keep(made)
                return CaughtUp(made, plan, bytes_spared=plan.bytes)
            rejected: list[RejectedAggregate] = []
            if made is None:
                followed = yield from self._replay(plan, start, rejected)
            else:
                followed = yield from self._verify(plan, made)
            if followed is not None:
                if plan.snapshot is not None:
                    before = None if start is None else start.state
                    keep_if_best(self.terms, self.client_store, before, followed.state)
                source.keep(followed)
                return CaughtUp(followed, plan, rejected=tuple(rejected))
        raise ModelUnavailable(
            upto, f"the snapshots up to round {upto} were replaced faster than they could be downloaded"
        )

    def _replay(
        self, plan: SyncPlan, start: FollowedState | None, rejected: list[RejectedAggregate]
    ) -> Program[FollowedState | None]:
        """Download the bodies of `plan`, and absorb them into `start` (the initial state when None).

        Aggregates that members cannot open are added to `rejected`; they are in the chain like any other, so that
        nobody sees the difference. Returns None when the snapshot is no longer kept.
        """
        followed = start or (yield from self._initial_state())
        if plan.snapshot is not None:
            body = yield from self._download_snapshot(plan.snapshot)
            if body is None:
                return None
            followed = self._read_snapshot(plan.snapshot, body)
        state, chain = followed.state, followed.chain
        for view in plan.rounds:
            body = yield from self._download_aggregate(view)
            before = state
            state, wrong = yield from self._absorb(state, view, body)
            keep_if_best(self.terms, self.client_store, before, state)
            rejected += [] if wrong is None else [wrong]
            chain = None if chain is None else chain.extended(view.number, body)
        return FollowedState(state, chain, followed.from_snapshot)

    def _read_snapshot(self, view: SnapshotView, body: bytes) -> FollowedState:
        try:
            return read_snapshot(self.terms, self.keyring, self.view_group, view, body)
        except (EnvelopeError, CodecError) as error:
            if not self.terms.chained:
                raise
            raise ModelUnavailable(view.round, f"the snapshot of round {view.round} cannot be used: {error}") from None

    def _verify(self, plan: SyncPlan, made: FollowedState) -> Program[FollowedState | None]:
        """Download the bodies of `plan` and check their digests only; return `made`, which another follower made.

        Returns None when the snapshot is no longer kept.
        """
        if plan.snapshot is not None and (yield from self._download_snapshot(plan.snapshot)) is None:
            return None
        for view in plan.rounds:
            yield from self._download_aggregate(view)
        return made

    def _initial_state(self) -> Program[FollowedState]:
        """Return the state of round 0: from the task's seed, or downloaded, where the terms have its digest."""
        recipe, seed = self.terms.recipe, self.terms.seed
        chain = AggregateChain.first(self.terms.task_id) if self.terms.chained else None
        start = recipe.parameters.start_digest
        if start is not None:
            length = recipe.state_bytes(1)
            view = SnapshotView(round=0, bytes=length, digest=start, author="server")
            body = yield from self.calls.snapshot(self.terms.task_id, view, length)
            if body is None:
                raise ModelUnavailable(0, "the server does not have the model that this task starts from")
            return FollowedState(recipe.decode_state(0, body), chain)
        state = recipe.initial_state(seed) if self.view_group is None else recipe.initial_view(seed, self.view_group)
        return FollowedState(state, chain)

    def _download_snapshot(self, view: SnapshotView) -> Program[bytes | None]:
        return self.calls.snapshot(self.terms.task_id, view, self.terms.longest_snapshot)

    def _download_aggregate(self, view: RoundView) -> Program[bytes]:
        length = self.terms.sum_plan_at(view.step).aggregate_bytes
        return self.calls.aggregate(self.terms.task_id, view.number, length, view.aggregate_digest)

    def _absorb(
        self, state: ModelState, view: RoundView, body: bytes
    ) -> Program[tuple[ModelState, RejectedAggregate | None]]:
        return work(lambda: absorb_aggregate(self.terms, self.keyring, state, view, body))

    def final(self, newest: ModelState) -> Program[ModelState]:
        """Return the model that the task ended with; newest: the followed state after its last round.

        This is the best measured model where the task says so; see `best_model` for the errors.
        """
        if not ends_with_best(self.terms.recipe):
            return newest
        return (yield from best_model(self.calls, self.terms, self.client_store, newest, self.view_group))

    # --- publishing ----------------------------------------------------------------------------------------------

    def publish_when_due(self, followed: FollowedState, every: int) -> Program[bool]:
        """Publish a state if a snapshot is due after `every` rounds; see `publish_snapshot_when_due`."""
        return publish_snapshot_when_due(self.calls, self.terms, self.keyring, followed, every)


# --- where a follower keeps the model state that it has reached ------------------------------------------------------


class StateSource(Protocol):
    """The state that one follower has reached, and what other followers have made already."""

    @property
    def known(self) -> int:
        """Round number of the state that the follower has reached; 0 at first."""

    @property
    def skips_downloads(self) -> bool:
        """Whether a state that another follower has made replaces the downloads that lead to it."""

    def current(self) -> FollowedState | None:
        """Return the state of round `known`; None when it is not kept."""

    def made_by_others(self, number: int) -> FollowedState | None:
        """Return the state after round `number` if another follower has made it."""

    def catalogue(self, upto: int) -> Catalogue | None:
        """Return a catalogue that reaches to round `upto` if another follower has fetched one."""

    def keep(self, followed: FollowedState) -> None:
        """Keep `followed` as the one that the follower has reached."""

    def forget(self) -> None:
        """Go back to the beginning."""


@dataclass
class OwnSource:
    """One follower's own state, in memory and, with `client_store`, on the device.

    view_group: the device group whose view of the model is kept; None for the whole state.
    """

    terms: TaskTerms
    view_group: int | None
    client_store: ClientStore | None = None
    skips_downloads: bool = field(default=False, init=False)
    _forgotten: bool = field(default=False, init=False)
    _followed: FollowedState | None = field(default=None, init=False, repr=False)

    @property
    def known(self) -> int:
        """Round number of the state that the follower has reached; 0 at first."""
        followed = self.current()
        return 0 if followed is None else followed.state.round_number

    def current(self) -> FollowedState | None:
        """Return the newest state, read from the store the first time; `LocalFileError` when it is damaged there."""
        if self._followed is None and self.client_store is not None and not self._forgotten:
            self._followed = self.client_store.item_state(
                self.terms.task_id, self.terms.recipe, self.view_group, self.terms.chained
            )
        return self._followed

    def made_by_others(self, number: int) -> None:
        """Return None: nothing is shared."""

    def catalogue(self, upto: int) -> None:
        """Return None: nothing is shared."""

    def keep(self, followed: FollowedState) -> None:
        """Keep `followed`, and write it to the store if it is of another round than the one before."""
        last = self._followed
        self._followed = followed
        if self.client_store is not None and (last is None or last.state.round_number != followed.state.round_number):
            self.client_store.keep_item_state(self.terms.task_id, self.terms.recipe, followed, self.view_group)

    def forget(self) -> None:
        """Drop the state in memory, and ignore the one in the store."""
        self._followed, self._forgotten = None, True


@dataclass
class SharedSource:
    """A position in the states that a `ModelCache` keeps for all followers of a task. It holds no state of its own."""

    cache: ModelCache
    task_id: str
    view_group: int | None
    known: int = field(default=0, init=False)

    @property
    def skips_downloads(self) -> bool:
        """Whether a state that another follower has made replaces the downloads that lead to it."""
        return self.cache.downloads == "once"

    def current(self) -> FollowedState | None:
        """Return the state of round `known`; None when the cache no longer keeps it."""
        return self.cache.state(self.task_id, self.view_group, self.known)

    def made_by_others(self, number: int) -> FollowedState | None:
        """Return the state after round `number` if the cache keeps it."""
        return self.cache.state(self.task_id, self.view_group, number)

    def catalogue(self, upto: int) -> Catalogue | None:
        """Return the cache's catalogue if it reaches to round `upto`."""
        return self.cache.catalogue(self.task_id, self.view_group, upto)

    def keep(self, followed: FollowedState) -> None:
        """Put `followed` into the cache."""
        self.known = followed.state.round_number
        self.cache.put(self.task_id, self.view_group, followed)

    def forget(self) -> None:
        """Go back to round 0."""
        self.known = 0
