"""Snapshots of the model: reading a downloaded one, publishing a sealed one."""

from __future__ import annotations

from client_sdk.agreement.terms import TaskTerms
from client_sdk.api.calls import ApiCalls
from client_sdk.api.effects import Program
from client_sdk.errors import Conflict
from client_sdk.local_state.followed_state import FollowedState
from protocols.crypto.envelope import open_snapshot, seal_snapshot
from protocols.crypto.keyring import Keyring
from protocols.errors import CodecError, KeyringError, ParameterError
from protocols.messages import SnapshotView

__all__ = ["publish_snapshot", "publish_snapshot_when_due", "read_snapshot"]


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
