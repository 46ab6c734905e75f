"""Catching up: the newest model from the task's seed, the aggregates since, or a snapshot, whichever is fewer bytes.

The server never sends a model, because for encrypted sums it has none. Everyone starts from the task's seed and
absorbs each completed round's aggregate. A client that missed many rounds may instead take the newest snapshot, sealed
by a member, and replay what came after it. Members who cannot open aggregates (public-key mode) use snapshots only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Program, work
from client_sdk.errors import Conflict, ContractBroken, ModelUnavailable
from client_sdk.local_state.store import ClientStore
from client_sdk.model.cache import Catalogue, ModelCache
from protocols.crypto.envelope import open_snapshot, seal_snapshot
from protocols.crypto.keyring import Keyring
from protocols.errors import KeyringError, ParameterError
from protocols.messages import RoundView, SnapshotView
from protocols.recipes.base import ModelState

__all__ = ["Catalogue", "CaughtUp", "ModelCache", "ModelFollower", "SyncPlan", "fetch_catalogue", "plan_sync"]

_PAGE: Final = 100
_TRIES: Final = 4


@dataclass(frozen=True)
class SyncPlan:
    """What to download, in this order, and how many bytes it is."""

    snapshot: SnapshotView | None = None
    rounds: tuple[RoundView, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all bodies."""
        return (self.snapshot.bytes if self.snapshot else 0) + _cost(self.rounds)

    @property
    def kind(self) -> Literal["nothing", "replay", "snapshot"]:
        """What the plan mainly does."""
        return "snapshot" if self.snapshot else "replay" if self.rounds else "nothing"

    @property
    def target(self) -> int | None:
        """Round number of the state it leads to; None when there is nothing to do."""
        return self.rounds[-1].number if self.rounds else self.snapshot.round if self.snapshot else None


@dataclass(frozen=True)
class CaughtUp:
    """A model state, how it was reached, and the bytes that a shared `ModelCache` spared on the way."""

    state: ModelState
    plan: SyncPlan
    bytes_spared: int = 0


def _cost(rounds: tuple[RoundView, ...] | list[RoundView]) -> int:
    return sum(view.aggregate_bytes or 0 for view in rounds)


def plan_sync(known: int, catalogue: Catalogue, snapshots_only: bool = False) -> SyncPlan:
    """The cheaper in bytes of replaying every missed aggregate, or a snapshot and the aggregates after it.

    `known` is the round of the state at hand. Raises `ModelUnavailable` when only snapshots can be used and the newest
    is too old.
    """
    missed = tuple(view for view in catalogue.completed if known < view.number <= catalogue.upto)
    if not missed:
        return SyncPlan()
    snapshot = catalogue.snapshot
    usable = snapshot is not None and known < snapshot.round <= catalogue.upto
    if snapshots_only:
        if snapshot is None or not usable or snapshot.round < missed[-1].number:
            raise ModelUnavailable(missed[-1].number, f"no snapshot of round {missed[-1].number} was published yet")
        return SyncPlan(snapshot)
    replay = SyncPlan(None, missed)
    if snapshot is None or not usable:
        return replay
    shortcut = SyncPlan(snapshot, tuple(view for view in missed if view.number > snapshot.round))
    return min(replay, shortcut, key=lambda plan: plan.bytes)


def fetch_catalogue(
    calls: ApiCalls, terms: TaskTerms, known: int, upto: int, snapshots_only: bool = False
) -> Program[Catalogue]:
    """Ask the server what there is after round `known`; a snapshot only where it could be the cheaper way.

    The pages stop short of rounds that a snapshot covers once it is clear that the snapshot is cheaper.
    """
    snapshot = None
    if snapshots_only or (upto - known) * terms.sum_plan.aggregate_bytes > terms.snapshot_bytes:
        snapshot = yield from calls.latest_snapshot(terms.task_id)
        if snapshot is not None and not known < snapshot.round <= upto:
            snapshot = None
    completed: list[RoundView] = []
    after = known
    while after < upto:
        page = yield from calls.rounds(terms.task_id, after=after, limit=_PAGE, state="complete")
        for view in page.rounds:
            _check_completed(terms, view, after)
            after = view.number
            if view.number <= upto:
                completed.append(view)
        if not page.more:
            break
        if not page.rounds:
            raise ContractBroken("GET", f"/v1/tasks/{terms.task_id}/rounds", 200, "an empty page says there is more")
        if snapshot is not None and _cost(completed) > snapshot.bytes:
            after = max(after, snapshot.round)
    return Catalogue(upto, tuple(completed), snapshot)


def _check_completed(terms: TaskTerms, view: RoundView, after: int) -> None:
    """A completed round must be in order, as long as the plan says, and over no fewer clients than the floor."""
    fault = None
    if view.state != "complete" or view.number <= after:
        fault = "is out of place in the list of completed rounds"
    elif view.aggregate_bytes != (expected := terms.sum_plan_at(view.step).aggregate_bytes):
        fault = f"has an aggregate of {view.aggregate_bytes} bytes, the plan says {expected}"
    elif not terms.schedule.min_clients <= view.survivors <= terms.sum_plan.max_contributions:
        fault = f"was released over {view.survivors} survivors, outside what the task allows"
    if fault:
        raise ContractBroken("GET", f"/v1/tasks/{terms.task_id}/rounds", 200, f"round {view.number} {fault}")


@dataclass
class ModelFollower:
    """One client's copy of the model, moved forward on demand.

    `known` is the round it stands at. In a fleet (`shared` given) the state itself may be left to the cache.
    `device_group`: which of the recipe's groups the client is in. Where the server keeps the model
    (`terms.by_snapshot`), `state` is what that group sees of it, and the whole state is never here.
    `opens`: whether it may open aggregates of a public-key task itself. Only the key holder's service does so: opening
    adds fresh noise, and all members, the holder's own training included, must stand on the one state it published.
    """

    calls: ApiCalls
    terms: TaskTerms
    client_store: ClientStore | None = None
    keyring: Keyring | None = None
    shared: ModelCache | None = None
    known: int = 0
    state: ModelState | None = None
    opens: bool = False
    device_group: int = 0

    @property
    def view_group(self) -> int | None:
        """The group whose view of the model is followed; None where it is the whole state."""
        return self.device_group if self.terms.by_snapshot else None

    def view(self, state: ModelState) -> ModelState:
        """What the client trains from and recommends by, of a state that was followed."""
        return state if self.terms.by_snapshot else self.terms.recipe.view(state, self.device_group)

    @property
    def snapshots_only(self) -> bool:
        """Whether this client follows published snapshots alone."""
        return self.terms.by_snapshot or (self.terms.opened_by == "holder" and not self.opens)

    def forget(self) -> None:
        """Start over from what the server offers."""
        self.state, self.known = None, 0

    def _base(self) -> ModelState | None:
        """The state of round `known`: one's own, or what the cache keeps."""
        if self.state is not None or self.shared is None:
            return self.state
        return self.shared.state(self.terms.task_id, self.view_group, self.known)

    def _recall(self) -> None:
        """Take up the newest state this client knows: its own, the one on its shelf, or the initial one."""
        if self.state is None and self.client_store is not None and self.shared is None:
            self.state = self.client_store.item_state(self.terms.task_id, self.terms.recipe, self.view_group)
        if self.state is not None:
            self.known = self.state.round_number

    def at_hand(self) -> ModelState:
        """The newest state known here, without a request; `ModelUnavailable` when there is none."""
        self._recall()
        state = self._base()
        if state is None:
            raise ModelUnavailable(0, "no model of this task is known here yet: ask for the newest with refresh=True")
        return state

    def follow(self, upto: int, patience: float = 0.0) -> Program[CaughtUp]:
        """The state after the last completed round up to number `upto`.

        `patience`: seconds a snapshot is waited for when there is no other way (0: one look), in long polls of at most
        30. Raises `ModelUnavailable`, `ContractBroken`, and what opening raises (`KeyringError`, `CodecError`).
        """
        self._recall()
        left = patience
        while True:
            try:
                return (yield from self._follow(upto))
            except ModelUnavailable as error:
                if left <= 0 or not self.snapshots_only:
                    raise
                step = min(30.0, left)
                yield from self.calls.latest_snapshot(self.terms.task_id, at_least=error.round, wait=step)
                left -= step

    def _follow(self, upto: int) -> Program[CaughtUp]:
        task_id, device_group = self.terms.task_id, self.view_group
        catalogue = self.shared.catalogue(task_id, device_group, upto) if self.shared else None
        for _ in range(_TRIES):
            if catalogue is None:
                catalogue = yield from fetch_catalogue(self.calls, self.terms, self.known, upto, self.snapshots_only)
            plan = plan_sync(self.known, catalogue, self.snapshots_only)
            target = self.known if plan.target is None else plan.target
            cached = self.shared.state(task_id, device_group, target) if self.shared else None
            if cached is None and self.known and self._base() is None:
                self.forget()
                catalogue = None
                continue
            if cached is not None and self.shared is not None and self.shared.downloads == "once":
                self._keep(cached)
                return CaughtUp(cached, plan, plan.bytes)
            state = yield from self._download(plan, cached)
            if state is not None:
                self._keep(state)
                return CaughtUp(state, plan)
            catalogue = None  # the snapshot was replaced by a newer one in the meantime
        raise ModelUnavailable(upto, f"snapshots up to round {upto} vanished faster than they could be downloaded")

    def _download(self, plan: SyncPlan, cached: ModelState | None) -> Program[ModelState | None]:
        """Fetch and check every body of the plan; open and absorb them unless the end state is `cached`.

        None when the snapshot is no longer kept.
        """
        state = cached or self._base() or self._initial()
        if plan.snapshot is not None:
            body = yield from self.calls.snapshot(self.terms.task_id, plan.snapshot)
            if body is None:
                return None
            if cached is None:
                state = self._open_snapshot(plan.snapshot, body)
        for view in plan.rounds:
            length = self.terms.sum_plan_at(view.step).aggregate_bytes
            body = yield from self.calls.aggregate(self.terms.task_id, view.number, length, view.aggregate_digest)
            if cached is None:
                state = yield from self._absorb(state, view, body)
        return state

    def _initial(self) -> ModelState:
        recipe, device_group = self.terms.recipe, self.view_group
        return (
            recipe.initial_state(self.terms.seed)
            if device_group is None
            else recipe.initial_view(self.terms.seed, device_group)
        )

    def _absorb(self, state: ModelState, view: RoundView, body: bytes) -> Program[ModelState]:
        terms, keyring = self.terms, self.keyring
        spec = terms.round_spec(view)

        def open_and_absorb() -> ModelState:
            total = terms.mechanism.open(terms.sum_plan_at(view.step), body, view.survivors, keyring)
            return terms.recipe.absorb(state, spec, total, view.survivors)

        return work(open_and_absorb)

    def _open_snapshot(self, view: SnapshotView, body: bytes) -> ModelState:
        if self.terms.opened_by != "anyone":
            if self.keyring is None:
                raise KeyringError("a snapshot of this task opens with its keyring only")
            body = open_snapshot(body, self.keyring.state_key, self.terms.task_id, view.round)
        if self.view_group is not None:
            return self.terms.recipe.decode_view(view.round, body, self.view_group)
        return self.terms.recipe.decode_state(view.round, body)

    def _keep(self, state: ModelState) -> None:
        moved = state.round_number != self.known or self.state is None
        self.known = state.round_number
        if self.shared is not None:
            self.shared.put(self.terms.task_id, self.view_group, state)
            return
        self.state = state
        if moved and self.client_store is not None:
            self.client_store.keep_item_state(self.terms.task_id, self.terms.recipe, state, self.view_group)

    def publish(self, state: ModelState) -> Program[bool]:
        """Offer `state` as a sealed snapshot; False when another member was first.

        `ParameterError` in tasks that anyone can open: there the server keeps the snapshots itself.
        """
        if self.terms.opened_by == "anyone" or self.keyring is None:
            raise ParameterError("the server keeps the snapshots of a task whose sum anyone can open")
        raw = self.terms.recipe.encode_state(state)
        sealed = seal_snapshot(raw, self.keyring.state_key, self.terms.task_id, state.round_number)
        try:
            yield from self.calls.put_snapshot(self.terms.task_id, state.round_number, sealed)
        except Conflict:
            return False
        return True

    def publish_when_due(self, state: ModelState, every: int) -> Program[bool]:
        """`publish` when the newest snapshot is `every` rounds old or older."""
        if not every or state.round_number < every or self.terms.opened_by != "members":
            return False
        latest = yield from self.calls.latest_snapshot(self.terms.task_id)
        if latest is not None and state.round_number - latest.round < every:
            return False
        return (yield from self.publish(state))
