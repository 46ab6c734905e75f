"""One client in one unmasked round: catch up, train, seal, upload."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from client_sdk.api.wire import Program, Traffic, through, work
from client_sdk.errors import Abstained, AggregateMismatch, RoundLost
from client_sdk.history import History
from client_sdk.model.follow import CaughtUp
from client_sdk.rounds.checks import require_attested, require_no_equivocation
from client_sdk.rounds.events import (
    AggregateRejected,
    ClipWarning,
    Progress,
    RoundReport,
    SnapshotPublished,
    TrainingFailed,
)
from client_sdk.rounds.ledger import deliver
from client_sdk.rounds.member import LocalWork
from client_sdk.training.base import LocalResult
from protocols.crypto.aggregate_chain import AGGREGATE_CHAIN
from protocols.errors import HushRecError
from protocols.messages import RoundView
from protocols.recipes.base import RoundSpec
from protocols.sums.participation import with_participation

__all__ = [
    "report_rejected",
    "take_unmasked_part",
]


_SNAPSHOT_VOLUNTEERS = 3.0
"""Average number of cohort members that check whether a snapshot is due: of several uploads only one is kept."""


def take_unmasked_part(
    client: LocalWork, view: RoundView, history: History, progress: Progress | None, traffic: Traffic
) -> Program[RoundReport]:
    """Catch up, train, seal and upload one contribution to the round `view`; return the report.

    traffic: counts the bytes of the round. Raises `PolicyRefused`, the errors of catching up, of `require_attested` and
    of the upload, `Abstained`, and in tasks whose sums anyone can open `ParameterError` when training diverges.
    """
    client.policy.check_round(view)
    require_no_equivocation(client)
    spec = client.spec(view)
    started = perf_counter()
    yield from client.ready(progress)
    if client.terms.chained and client.follower.known >= view.number:
        raise RoundLost(
            f"this device holds the sums up to round {client.follower.known}, and the server would release others for "
            "the same rounds: an encrypted task cannot go on after its server was restored from a backup; its operator "
            "closes it and creates another"
        )
    caught_up = yield from through(client.follower.follow(view.number - 1, snapshot_wait=60.0), traffic)
    report_rejected(caught_up, progress)
    yield from through(require_attested(client, caught_up.followed), traffic)
    client.report_measured(caught_up.state, progress)
    client.require_data(spec, caught_up.state, history)
    current = perf_counter()
    local, failure = yield from work(lambda: _train(client, spec, caught_up, history))
    if progress and failure is not None:
        progress(TrainingFailed(view.number, failure))
    trained = perf_counter()
    body = yield from work(lambda: _seal(client, spec, local, participates=failure is None))
    sealed = perf_counter()
    if progress and client.policy.too_much_clipped(local.clipped, local.values):
        progress(ClipWarning(view.number, local.clipped, local.values))
    client_id = client.membership.client_id
    task_id = client.terms.task_id
    chain = caught_up.followed.chain
    statements = {} if chain is None else {AGGREGATE_CHAIN: chain.digest.hex()}
    delivery = deliver(client.calls, client.client_store, task_id, view.number, client_id, body, statements)
    try:
        yield from through(delivery, traffic)
    except AggregateMismatch:
        if caught_up.followed.from_snapshot and client.terms.opened_by == "members":
            client.follower.replay_all()  # the snapshot may be false
        raise
    uploaded = perf_counter()
    finish_seconds = yield from client.settle(local)
    yield from through(_publish_snapshot_when_due(client, view, caught_up, progress), traffic)
    return RoundReport(
        round=view.number,
        client_id=client_id,
        loss=local.loss,
        samples=local.samples,
        values=local.values,
        clipped=local.clipped,
        scaled=local.scaled,
        contribution_bytes=len(body),
        bytes_up=traffic.up,
        bytes_down=traffic.down,
        bytes_spared=caught_up.bytes_spared,
        catch_up_seconds=current - started,
        train_seconds=trained - current + finish_seconds,
        seal_seconds=sealed - trained,
        upload_seconds=uploaded - sealed,
        caught_up=caught_up.plan.kind,
    )


def report_rejected(caught_up: CaughtUp, progress: Progress | None) -> None:
    """Report the aggregates that the model lacks."""
    if progress:
        for rejected in caught_up.rejected:
            progress(AggregateRejected(rejected.round, rejected.reason))


def _train(client: LocalWork, spec: RoundSpec, caught_up: CaughtUp, history: History) -> tuple[LocalResult, str | None]:
    """Return the result of training, or zeros and the reason when training fails in an encrypted task.

    Whether training works may depend on an opened sum, so a client that sent nothing would tell the server about it;
    a ciphertext of zeros looks like any other, and is not counted as a participant. Counting depends on no sum, and
    blocks that a contribution chooses are named in the clear, so zeros hide nothing there: `Abstained` when it fails.
    """
    try:
        return client.train(spec, client.follower.view(caught_up.state), history), None
    except (HushRecError, ValueError, ArithmeticError) as error:
        if client.terms.opened_by == "anyone":
            raise
        reason = str(error)
        layout = client.terms.recipe.layout(spec.sum_index)
        if layout.sum_class.once or layout.chosen:
            raise Abstained(reason) from error
    route = client.terms.recipe.route(spec, client.membership.client_id)
    blocks = [np.zeros(block.length) for block in layout.contribution_blocks(route)]
    kept = client.client_state() or client.half.initial_client_state(client.rng)
    return LocalResult(blocks, 0, kept, float("nan"), 0), reason


def _seal(client: LocalWork, spec: RoundSpec, local: LocalResult, participates: bool) -> bytes:
    route = client.terms.recipe.route(spec, client.membership.client_id)
    plan = client.terms.sum_plan_at(spec.sum_index)
    blocks = with_participation(plan, local.blocks, participates)
    return client.terms.mechanism.seal(plan, route, blocks, client.follower.keyring)


def _publish_snapshot_when_due(
    client: LocalWork, view: RoundView, caught_up: CaughtUp, progress: Progress | None
) -> Program[None]:
    if client.terms.opened_by != "members" or not client.policy.snapshot_every:
        return
    if np.random.default_rng().random() * view.cohort > _SNAPSHOT_VOLUNTEERS:
        return
    if (yield from client.follower.publish_when_due(caught_up.followed, client.policy.snapshot_every)) and progress:
        progress(SnapshotPublished(caught_up.state.round_number))
