"""What a client catches up with: the completed rounds and snapshots of a task, the cheapest way, and reading them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final, Literal

from client_sdk.agreement.terms import TaskTerms, broken_terms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Program
from client_sdk.errors import FalseModel, ModelUnavailable
from client_sdk.store.states import FollowedState
from protocols.contribution import require_participants, without_participation
from protocols.crypto.aggregate_chain import AggregateChain, extend_chain
from protocols.crypto.envelope import open_snapshot
from protocols.crypto.keys import Keyring
from protocols.errors import CodecError, HushRecError, KeyringError
from protocols.messages import RoundView, SnapshotView
from protocols.recipes.base import ModelState
from protocols.sums.possible import require_possible

REQUEST_COST: Final = 16384
"""Bytes that a request counts as: at 10 Mbit/s they take 13 ms, and most round trips take longer."""

_PAGE: Final = 100


@dataclass(frozen=True)
class MissedRounds:
    """What the server offers for catching up to the end of round `upto`."""

    upto: int
    completed: tuple[RoundView, ...]
    """Completed rounds in ascending order, from some known round on."""
    snapshot: SnapshotView | None
    """The newest one that the client may use, see `fetch_missed`; None when there is none or it cannot be of use."""
    gone: int = 0
    """Number of the newest round whose aggregate the server is known to have deleted."""


def fetch_missed(
    calls: ApiCalls,
    terms: TaskTerms,
    known: int,
    upto: int,
    snapshots_only: bool = False,
    snapshots: bool = True,
    gone: int = 0,
) -> Program[MissedRounds]:
    """Request the completed rounds after `known` and up to `upto`, and the newest snapshot where it may be cheaper.

    snapshots: False to ask for none. gone: see `MissedRounds`. Pages of rounds before the snapshot are skipped once it
    is clear that the snapshot is cheaper. Nothing is requested where no round can be missed. Raises `ContractBroken`
    when the list contradicts the task's terms.
    """
    if upto <= known:
        return MissedRounds(upto, (), None, gone)
    snapshot = None
    replayed = terms.sum_plan.aggregate_bytes + REQUEST_COST
    shortcut = terms.snapshot_bytes + REQUEST_COST + (replayed if terms.checks_states else 0)
    if snapshots_only or (snapshots and (gone > known or (upto - known) * replayed > shortcut)):
        snapshot = yield from usable_snapshot(calls, terms)
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
            raise broken_terms(terms.task_id, "an empty page says that there is more", "rounds")
        if snapshot is not None and SyncPlan(None, tuple(completed)).cost > SyncPlan(snapshot).cost:
            after = max(after, snapshot.round - 1)
    return MissedRounds(upto, tuple(completed), snapshot, gone)


def usable_snapshot(calls: ApiCalls, terms: TaskTerms) -> Program[SnapshotView | None]:
    """Request the newest snapshot that a client may use; None without one.

    Where members check the server's states it is that of the completed round before the last one: the contributions to
    the last one state its digest, and nobody has stated a newer one.
    """
    newest = yield from calls.latest_snapshot(terms.task_id)
    if newest is None or not terms.checks_states:
        return newest
    return (yield from calls.latest_snapshot(terms.task_id, before=newest.round)) if newest.round else None


def _check_completed(terms: TaskTerms, view: RoundView, after: int) -> None:
    """Raise `ContractBroken` unless `view` is in order, has the planned length and enough survivors."""
    fault = None
    if view.state != "complete" or view.number <= after:
        fault = "is out of place in the list of completed rounds"
    elif view.aggregate_bytes != (planned := terms.sum_plan_at(view.step, tuple(view.size)).aggregate_bytes):
        fault = f"has an aggregate of {view.aggregate_bytes} bytes, but the plan has {planned}"
    elif terms.checks_states and (view.state_digest is None or view.aggregate_chain is None):
        fault = "has no digest of the model after it, or no chain of the aggregates before it"
    elif not terms.schedule.min_clients <= view.survivors <= terms.sum_plan.max_contributions:
        fault = f"was released over {view.survivors} survivors, outside what the task allows"
    if fault:
        raise broken_terms(terms.task_id, f"round {view.number} {fault}", "rounds")


# --- the cheapest way from a known model state to the newest one -----------------------------------------------------


@dataclass(frozen=True)
class SyncPlan:
    """What to download: first the snapshot, if any, then the aggregates of `rounds`, in ascending order."""

    snapshot: SnapshotView | None = None
    rounds: tuple[RoundView, ...] = ()
    snapshot_round: RoundView | None = None
    """The completed round of the snapshot; None without a snapshot, and where the list lacks the round."""

    @property
    def bytes(self) -> int:
        """Total size of all bodies in bytes."""
        return (self.snapshot.bytes if self.snapshot else 0) + sum(view.aggregate_bytes or 0 for view in self.rounds)

    @property
    def cost(self) -> int:
        """The bytes, and `REQUEST_COST` for each body, which takes a request."""
        return self.bytes + REQUEST_COST * (len(self.rounds) + (self.snapshot is not None))

    @property
    def kind(self) -> Literal["nothing", "replay", "snapshot"]:
        """How the model is brought up to date: "snapshot" if one is downloaded, "replay" if only aggregates are,
        "nothing" for an empty plan."""
        return "snapshot" if self.snapshot else "replay" if self.rounds else "nothing"

    @property
    def target(self) -> int | None:
        """Round number of the state that the plan leads to; None for an empty plan."""
        return self.rounds[-1].number if self.rounds else self.snapshot.round if self.snapshot else None


def plan_sync(known: int, offered: MissedRounds, snapshots_only: bool = False) -> SyncPlan:
    """Return the plan of lower cost: every missed aggregate, or the snapshot and the aggregates after it.

    known: round of the known state. Raises `ModelUnavailable` when `snapshots_only` is set and the newest snapshot is
    older than the newest completed round, and when an aggregate is gone that no snapshot makes up for.
    """
    missed = tuple(view for view in offered.completed if known < view.number <= offered.upto)
    if not missed:
        return SyncPlan()
    snapshot, newest = offered.snapshot, missed[-1].number
    if snapshot is not None and not known < snapshot.round <= offered.upto:
        snapshot = None
    if snapshots_only:
        if snapshot is None or snapshot.round < newest:
            raise ModelUnavailable(newest, f"no snapshot of round {newest} has been published yet")
        return SyncPlan(snapshot)
    replay = SyncPlan(None, missed)
    if missed[0].number <= offered.gone and (snapshot is None or snapshot.round < offered.gone):
        raise ModelUnavailable(
            newest,
            f"the server no longer keeps the sum of round {missed[0].number}, and has no snapshot that this client may "
            "start from instead: ask the operator to keep more rounds",
        )
    if snapshot is None:
        return replay
    of_snapshot = next((view for view in missed if view.number == snapshot.round), None)
    shortcut = SyncPlan(snapshot, tuple(view for view in missed if view.number > snapshot.round), of_snapshot)
    return shortcut if missed[0].number <= offered.gone else min(replay, shortcut, key=lambda plan: plan.cost)


def read_snapshot(
    terms: TaskTerms,
    keyring: Keyring | None,
    view_group: int | None,
    view: SnapshotView,
    body: bytes,
    of_round: RoundView | None = None,
) -> FollowedState:
    """Decode a snapshot, opened with the keyring unless anyone can open the task's sums; then it contains the chain.

    view_group: the device group whose view of the state the snapshot holds; None for the whole state. of_round: the
    completed round of the snapshot, where members check the server's states: from its chain, its aggregate and the
    snapshot the chain after it follows. Raises `KeyringError` without the keyring, `EnvelopeError` when the snapshot
    does not open, `CodecError` when it is malformed, claims more sums than the schedule has, or cannot have been made
    by the task's sums.
    """
    chain = None
    if of_round is not None and terms.checks_states:
        before, aggregate = (bytes.fromhex(one or "") for one in (of_round.aggregate_chain, of_round.aggregate_digest))
        state_digest = hashlib.sha256(body).digest()
        chain = AggregateChain(before, extend_chain(before, of_round.number, aggregate, state_digest))
    elif terms.opened_by == "members":
        if keyring is None:
            raise KeyringError("a snapshot of this task can only be opened with the task's keyring")
        body, chain = open_snapshot(body, keyring.state_key, terms.task_id, view.round)
    recipe = terms.recipe
    state = (
        recipe.decode_state(view.round, body)
        if view_group is None
        else recipe.decode_view(view.round, body, view_group)
    )
    if state.sums > terms.schedule.rounds:  # a client may take steps for each of them
        raise CodecError(f"a snapshot claims {state.sums:,} sums of a task of {terms.schedule.rounds:,}")
    terms.require_reachable(state)
    return FollowedState(state, chain, from_snapshot=True, unattested=True)


# --- opening one aggregate and absorbing it, without showing anybody whether that was possible -----------------------
# What opening an aggregate shows depends on the secret key, and a server can put a ciphertext of its own in the place
# of the sum. If a client stopped, or left out a round, when an aggregate does not open, the server would learn one bit
# of what the keys protect from each try (a reaction attack: Hall, Goldberg and Schneier, ICICS 1999). So a member
# treats such an aggregate as that of a missed round: its model stays as it was, and all its requests are the same.


def absorb_aggregate(
    terms: TaskTerms, keyring: Keyring | None, state: ModelState, view: RoundView, body: bytes
) -> tuple[ModelState, str | None]:
    """Return the state after the round `view`, whose aggregate is `body`, and None.

    In a task whose members open the sums, an aggregate that cannot be opened, used, or be the sum of so many honest
    contributions, or in which fewer than `min_clients` contributions carry data, gives the state as it was, under the
    round's number, and the reason, which the server must not learn. In other tasks the errors are raised.
    """

    def absorbed() -> ModelState:
        plan = terms.sum_plan_at(view.step, tuple(view.size))
        total = terms.mechanism.open(plan, body, view.survivors, keyring)
        require_possible(plan, total, view.survivors)
        if terms.opened_by == "members":
            require_participants(plan, total, terms.schedule.min_clients)
        summed = without_participation(plan, total)
        spec = replace(terms.round_spec(view), rounding=plan.predicted_error)
        after = terms.recipe.absorb(state, spec, summed, view.survivors)
        terms.require_reachable(after)
        return after

    if terms.opened_by != "members" or keyring is None:
        return absorbed(), None
    try:
        return absorbed(), None
    except (HushRecError, ValueError, ArithmeticError, RuntimeError) as error:
        return terms.recipe.left_out(state, terms.round_spec(view)), str(error)


# --- checking the server's states, where anyone can open the sums ----------------------------------------------------


def absorb_checked(terms: TaskTerms, state: ModelState, view: RoundView, body: bytes) -> tuple[ModelState, bool]:
    """Return the state after the round `view`, whose aggregate is `body`, and whether the server has the same bytes.

    The state is what its encoding decodes to, as for everyone who downloads it. Raises `FalseModel` for an aggregate
    that is no sum of so many contributions.
    """
    recipe = terms.recipe
    try:
        encoded = recipe.encode_state(absorb_aggregate(terms, None, state, view, body)[0])
        after = recipe.decode_state(view.number, encoded)
    except (HushRecError, ValueError, ArithmeticError) as error:
        raise FalseModel(view.number, f"the sum of round {view.number} cannot be used: {error}") from error
    return after, hashlib.sha256(encoded).hexdigest() == view.state_digest


def require_same(terms: TaskTerms, own: ModelState | None, number: int, body: bytes) -> ModelState:
    """Return the state in the server's snapshot `body` of round `number`.

    Raises `FalseModel` unless it can be read and is `own` but for rounding; own: None if it was not computed.
    """
    try:
        theirs = terms.recipe.decode_state(number, body)
        terms.require_reachable(theirs)
    except CodecError as error:
        raise FalseModel(number, f"its model after round {number} cannot be used: {error}") from error
    if own is not None and not terms.recipe.same_state(own, theirs):
        raise FalseModel(number, f"its model after round {number} does not follow from the released sum")
    return theirs
