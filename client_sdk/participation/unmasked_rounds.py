"""One client in one round without stages: catch up, train, seal, upload."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from client_sdk.api.effects import Program, Traffic, metered, work
from client_sdk.history import History
from client_sdk.model.catch_up import CaughtUp
from client_sdk.participation.events import (
    ClipWarning,
    Progress,
    RoundReport,
    SnapshotPublished,
)
from client_sdk.participation.ledger import deliver
from client_sdk.participation.local_work import LocalWork
from client_sdk.training.base import LocalResult
from protocols.messages import RoundView
from protocols.recipes.base import RoundSpec

__all__ = ["take_unmasked_part"]

_SNAPSHOT_VOLUNTEERS = 3.0
"""Cohort members that look, on average, whether a snapshot is due: all of them would upload for one to win."""


def take_unmasked_part(
    own: LocalWork, view: RoundView, history: History, progress: Progress | None, traffic: Traffic
) -> Program[RoundReport]:
    """Catch up, train, seal and upload: one contribution to the round `view`, counted in `traffic`.

    Raises `PolicyRefused`, the upload's problems, and `ParameterError` when training diverged.
    """
    own.policy.check_round(view)
    spec = own.spec(view)
    started = perf_counter()
    yield from own.ready(progress)
    caught_up = yield from metered(own.follower.follow(view.number - 1, snapshot_wait=60.0), traffic)
    current = perf_counter()
    local = yield from work(lambda: own.train(spec, own.follower.view(caught_up.state), history))
    trained = perf_counter()
    body = yield from work(lambda: _seal(own, spec, local))
    sealed = perf_counter()
    if progress and own.policy.too_much_clipped(local.clipped, local.values):
        progress(ClipWarning(view.number, local.clipped, local.values))
    client_id = own.membership.client_id
    delivery = deliver(own.calls, own.client_store, own.terms.task_id, view.number, client_id, body)
    yield from metered(delivery, traffic)
    uploaded = perf_counter()
    finishing = yield from own.settle(local)
    yield from metered(_offer_snapshot(own, view, caught_up, progress), traffic)
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
        train_seconds=trained - current + finishing,
        seal_seconds=sealed - trained,
        upload_seconds=uploaded - sealed,
        caught_up=caught_up.plan.kind,
    )


def _seal(own: LocalWork, spec: RoundSpec, local: LocalResult) -> bytes:
    route = own.terms.recipe.route(spec, own.membership.client_id)
    plan = own.terms.sum_plan_at(spec.sum_index)
    return own.terms.mechanism.seal(plan, route, local.blocks, own.follower.keyring)


def _offer_snapshot(own: LocalWork, view: RoundView, caught_up: CaughtUp, progress: Progress | None) -> Program[None]:
    if own.terms.opened_by != "members" or not own.policy.snapshot_every:
        return
    if np.random.default_rng().random() * view.cohort > _SNAPSHOT_VOLUNTEERS:
        return
    if (yield from own.follower.publish_when_due(caught_up.state, own.policy.snapshot_every)) and progress:
        progress(SnapshotPublished(caught_up.state.round_number))
