"""One client in one unmasked round: catch up, train, seal, upload."""

from __future__ import annotations

import numpy as np

from client_sdk.api.wire import Program, work
from client_sdk.errors import Abstained, AggregateMismatch, RoundLost
from client_sdk.history import History
from client_sdk.model.follow import CaughtUp
from client_sdk.rounds.events import Progress, RoundReport, SnapshotPublished, TrainingFailed
from client_sdk.rounds.ledger import deliver
from client_sdk.rounds.part import OwnRound, Part
from client_sdk.training.base import LocalResult
from protocols.crypto.aggregate_chain import AGGREGATE_CHAIN
from protocols.errors import HushRecError
from protocols.messages import RoundView
from protocols.recipes.base import RoundSpec
from protocols.sums.base import WorksAhead, one_message
from protocols.sums.participation import with_participation

__all__ = ["take_unmasked_part"]

_SNAPSHOT_VOLUNTEERS = 3.0
"""Average number of cohort members that check whether a snapshot is due: of several uploads only one is kept."""


def take_unmasked_part(
    part: Part, view: RoundView, history: History, progress: Progress | None
) -> Program[RoundReport]:
    """Catch up, train, seal and upload one contribution to the round `view`; return the report.

    Raises `PolicyRefused`, the errors of catching up, of `require_attested` and of the upload, `Abstained`, and in
    tasks whose sums anyone can open `ParameterError` when training diverges.
    """
    member, own = part.member, OwnRound(part, view, history, progress)
    member.policy.check_round(view)
    member.store.require_no_equivocation(member.task_id)
    spec = part.spec(view)
    with own.timed("catch_up"):
        yield from part.ready(progress)
        _require_unknown(part, view)
        caught_up = yield from own.catch_up()
        yield from own.metered(part.check_attested(caught_up))
        part.require_data(spec, caught_up.state, history)
    with own.timed("train"):
        local, failure = yield from _train(part, spec, caught_up, history)
    if progress and failure is not None:
        progress(TrainingFailed(view.number, failure))
    with own.timed("seal"):
        body = yield from work(lambda: _seal(part, spec, local, participates=failure is None))
    own.warn_of_clipping(local)
    chain = caught_up.followed.chain
    statements = {} if chain is None else {AGGREGATE_CHAIN: chain.digest.hex()}
    try:
        with own.timed("upload"):
            yield from own.metered(deliver(member, view.number, body, statements))
    except AggregateMismatch:
        if caught_up.followed.from_snapshot and member.terms.opened_by == "members":
            part.follower.replay_all()  # the snapshot may be false
        raise
    yield from own.settle(local)
    yield from own.metered(_publish_snapshot_when_due(own, caught_up))
    return own.report(caught_up, local, len(body))


def _require_unknown(part: Part, view: RoundView) -> None:
    if part.member.terms.chained and part.follower.known >= view.number:
        raise RoundLost(
            f"this device holds the sums up to round {part.follower.known}, and the server would release others for "
            "the same rounds: an encrypted task cannot go on after its server was restored from a backup; its operator "
            "closes it and creates another"
        )


def _train(
    part: Part, spec: RoundSpec, caught_up: CaughtUp, history: History
) -> Program[tuple[LocalResult, str | None]]:
    """Return the result of training, or zeros and the reason when training fails in an encrypted task.

    Whether training works may depend on an opened sum, so a client that sent nothing would tell the server about it;
    a ciphertext of zeros looks like any other, and is not counted as a participant. Counting depends on no sum, and
    blocks that a contribution chooses are named in the clear, so zeros hide nothing there: `Abstained` when it fails.
    """
    try:
        return (yield from part.train(spec, caught_up.state, history)), None
    except (HushRecError, ValueError, ArithmeticError) as error:
        if part.member.terms.opened_by == "anyone":
            raise
        reason = str(error)
        layout = part.member.terms.recipe.layout(spec.sum_index)
        if layout.sum_class.once or layout.chosen:
            raise Abstained(reason) from error
    kept = part.client_state() or part.half.initial_client_state(part.rng)
    return LocalResult(part.zeros(spec, caught_up.state), kept, float("nan"), 0), reason


def _seal(part: Part, spec: RoundSpec, local: LocalResult, participates: bool) -> bytes:
    terms = part.member.terms
    plan = terms.sum_plan_at(spec.sum_index)
    blocks = with_participation(plan, local.blocks, participates)
    mechanism, route, keyring = one_message(terms.mechanism), part.route(spec), part.follower.keyring
    if part.ahead is not None and isinstance(mechanism, WorksAhead):
        return mechanism.seal_ahead(plan, route, blocks, keyring, part.ahead.take)
    return mechanism.seal(plan, route, blocks, keyring)


def _publish_snapshot_when_due(own: OwnRound, caught_up: CaughtUp) -> Program[None]:
    member, follower = own.part.member, own.part.follower
    if member.terms.opened_by != "members" or not member.policy.snapshot_every:
        return
    if np.random.default_rng().random() * own.view.cohort > _SNAPSHOT_VOLUNTEERS:
        return
    published = yield from follower.publish_when_due(caught_up.followed, member.policy.snapshot_every)
    if published and own.progress:
        own.progress(SnapshotPublished(caught_up.state.round_number))
