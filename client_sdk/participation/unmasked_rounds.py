"""One client in one unmasked round: catch up, train, seal, upload."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from client_sdk.api.effects import Program, Traffic, metered, work
from client_sdk.history import History
from client_sdk.model.catch_up import CaughtUp
from client_sdk.participation.events import ClipWarning, Progress, RoundReport, SnapshotPublished
from client_sdk.participation.ledger import deliver
from client_sdk.participation.local_work import LocalWork
from client_sdk.training.base import LocalResult
from protocols.messages import RoundView
from protocols.recipes.base import RoundSpec

__all__ = ["take_unmasked_part"]

_SNAPSHOT_VOLUNTEERS = 3.0
"""Average number of cohort members that check whether a snapshot is due: of several uploads only one is kept."""


def take_unmasked_part(
    client: LocalWork, view: RoundView, history: History, progress: Progress | None, traffic: Traffic
) -> Program[RoundReport]:
    """Catch up, train, seal and upload one contribution to the round `view`; return the report.

    traffic: counts the bytes of the round. Raises `PolicyRefused`, the errors of catching up and of the upload, and
    `ParameterError` when training diverges.
    """
    client.policy.check_round(view)
    spec = client.spec(view)
    started = perf_counter()
    yield from client.ready(progress)
    caught_up = yield from metered(client.follower.follow(view.number - 1, snapshot_wait=60.0), traffic)
    current = perf_counter()
    local = yield from work(lambda: client.train(spec, client.follower.view(caught_up.state), history))
    trained = perf_counter()
    body = yield from work(lambda: _seal(client, spec, local))
    sealed = perf_counter()
    if progress and client.policy.too_much_clipped(local.clipped, local.values):
        progress(ClipWarning(view.number, local.clipped, local.values))
    client_id = client.membership.client_id
    delivery = deliver(client.calls, client.client_store, client.terms.task_id, view.number, client_id, body)
    yield from metered(delivery, traffic)
    uploaded = perf_counter()
    finish_seconds = yield from client.settle(local)
    yield from metered(_publish_snapshot_when_due(client, view, caught_up, progress), traffic)
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
        train_seconds=trained - current + finish_seconds,
        seal_seconds=sealed - trained,
        upload_seconds=uploaded - sealed,
        caught_up=caught_up.plan.kind,
    )


def _seal(client: LocalWork, spec: RoundSpec, local: LocalResult) -> bytes:
    route = client.terms.recipe.route(spec, client.membership.client_id)
    plan = client.terms.sum_plan_at(spec.sum_index)
    return client.terms.mechanism.seal(plan, route, local.blocks, client.follower.keyring)


def _publish_snapshot_when_due(
    client: LocalWork, view: RoundView, caught_up: CaughtUp, progress: Progress | None
) -> Program[None]:
    if client.terms.opened_by != "members" or not client.policy.snapshot_every:
        return
    if np.random.default_rng().random() * view.cohort > _SNAPSHOT_VOLUNTEERS:
        return
    if (yield from client.follower.publish_when_due(caught_up.state, client.policy.snapshot_every)) and progress:
        progress(SnapshotPublished(caught_up.state.round_number))
