"""Snapshots of the model: reading a downloaded one, publishing a sealed one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.wire import Program
from client_sdk.errors import Conflict
from client_sdk.store.states import FollowedState
from protocols.crypto.envelope import open_snapshot, seal_snapshot
from protocols.crypto.keys import Keyring
from protocols.errors import CodecError, HushRecError, KeyringError, ParameterError
from protocols.messages import RoundView, SnapshotView
from protocols.recipes.base import ModelState
from protocols.recipes.evaluated import Evaluated
from protocols.recipes.private import unwrapped
from protocols.sums.participation import require_participants, require_possible, without_participation

__all__ = [
    "RejectedAggregate",
    "absorb_aggregate",
    "publish_snapshot",
    "publish_snapshot_when_due",
    "read_snapshot",
]


def read_snapshot(
    terms: TaskTerms, keyring: Keyring | None, view_group: int | None, view: SnapshotView, body: bytes
) -> FollowedState:
    """Decode a snapshot, opened with the keyring unless anyone can open the task's sums; then it contains the chain.

    view_group: the device group whose view of the state the snapshot holds; None for the whole state. Raises
    `KeyringError` without the keyring, `EnvelopeError` when the snapshot does not open, `CodecError` when it is
    malformed or claims more sums than the schedule has.
    """
    chain = None
    if terms.chained:
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
    return FollowedState(state, chain, True)


def publish_snapshot(
    calls: ApiCalls, terms: TaskTerms, keyring: Keyring | None, followed: FollowedState
) -> Program[bool]:
    """Seal the state `followed` and its chain, and upload them as the snapshot of its round.

    Returns False when another member published that snapshot first. Raises `ParameterError` without the keyring and in
    tasks that anyone can open: there the server makes the snapshots.
    """
    state, chain = followed.state, followed.chain
    if chain is None or keyring is None:
        raise ParameterError("the server makes the snapshots of a task whose sums anyone can open")
    body = terms.recipe.encode_state(state)
    sealed = seal_snapshot(body, chain, keyring.state_key, terms.task_id, state.round_number)
    try:
        yield from calls.put_snapshot(terms.task_id, state.round_number, sealed)
    except Conflict:
        return False
    return True


def publish_snapshot_when_due(
    calls: ApiCalls, terms: TaskTerms, keyring: Keyring | None, followed: FollowedState, every: int
) -> Program[bool]:
    """Publish the state `followed` if members open the sums and the newest snapshot is at least `every` rounds older.

    Returns whether it was published. every: 0 for never.
    """
    state = followed.state
    if not every or state.round_number < every or terms.opened_by != "members":
        return False
    latest = yield from calls.latest_snapshot(terms.task_id)
    if latest is not None and state.round_number - latest.round < every:
        return False
    return (yield from publish_snapshot(calls, terms, keyring, followed))


# --- opening one aggregate and absorbing it, without showing anybody whether that was possible -----------------------
# What opening an aggregate shows depends on the secret key, and a server can put a ciphertext of its own in the place
# of the sum. If a client stopped, or left out a round, when an aggregate does not open, the server would learn one bit
# of what the keys protect from each try (a reaction attack: Hall, Goldberg and Schneier, ICICS 1999). So a member
# treats such an aggregate as that of a missed round: its model stays as it was, and all its requests are the same.


@dataclass(frozen=True)
class RejectedAggregate:
    """The aggregate of a round did not open, or cannot be used, for `reason`. The server must not learn of it."""

    round: int
    reason: str


def absorb_aggregate(
    terms: TaskTerms, keyring: Keyring | None, state: ModelState, view: RoundView, body: bytes
) -> tuple[ModelState, RejectedAggregate | None]:
    """Return the state after the round `view`, whose aggregate is `body`, and None.

    In a task whose members open the sums, an aggregate that cannot be opened, used, or be the sum of so many honest
    contributions, or in which fewer than `min_clients` contributions carry data, gives the state as it was, under the
    round's number, and the reason. In other tasks the errors of opening are raised.
    """

    def absorbed() -> ModelState:
        plan = terms.sum_plan_at(view.step)
        total = terms.mechanism.open(plan, body, view.survivors, keyring)
        if terms.opened_by == "members":
            require_possible(plan, total, view.survivors)
            require_participants(plan, total, terms.schedule.min_clients)
        summed = without_participation(plan, total)
        return terms.recipe.absorb(state, terms.round_spec(view), summed, view.survivors)

    if terms.opened_by != "members" or keyring is None:
        return absorbed(), None
    try:
        return absorbed(), None
    except (HushRecError, ValueError, ArithmeticError, RuntimeError) as error:
        return _left_out(terms, state, view), RejectedAggregate(view.number, str(error))


def _left_out(terms: TaskTerms, state: ModelState, view: RoundView) -> ModelState:
    recipe = terms.recipe
    if isinstance(measured := unwrapped(recipe), Evaluated):
        return replace(measured.left_out(state, terms.round_spec(view)), l2_clip=state.l2_clip)
    return replace(state, round_number=view.number)
