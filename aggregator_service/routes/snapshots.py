"""Snapshots of the model state, for clients that join late or cannot open sums."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Final

from fastapi import Query, Request
from fastapi.responses import Response
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.principals import Enrolled, Principal, client_id_of, existing_task, round_of, task_of
from aggregator_service.http.authentication import MemberOf, PrincipalOf
from aggregator_service.http.fields import check_length
from aggregator_service.logs import fields
from aggregator_service.polling.views import snapshot_view
from aggregator_service.problems import Problem
from aggregator_service.routes.common import (
    AnswerOf,
    RawBodyOf,
    RoundNumber,
    SnapshotNumber,
    TaskId,
    Wait,
    api_router,
    binary_request,
    binary_response,
    guarded,
)
from aggregator_service.services import Services, ServicesOf
from aggregator_service.storage.blobs import new_key
from aggregator_service.storage.data_directory import body_path
from aggregator_service.storage.database import Database, announce, discard
from aggregator_service.storage.round_rows import KEPT_SNAPSHOTS, add_snapshot, find_snapshot, newest_snapshot, seen_by
from aggregator_service.storage.schema import ClientRow, SnapshotRow, TaskRow
from aggregator_service.tasks.membership import is_keyed
from aggregator_service.tasks.plans import keeps_best, plan_task, row_terms
from aggregator_service.uploads.receive import store_file, stream_body
from protocols.crypto.envelope import sealed_bytes
from protocols.messages import SnapshotView

Group = Annotated[
    int | None,
    Query(description="Operators, committee: the state as this device group sees it.", ge=0, le=1_000_000),
]

_LOG = logging.getLogger(__name__)
_NOT_KEPT: Final = "there is no snapshot of this round, or it is no longer kept"
router = api_router("/v1/tasks/{task}/snapshots", tag="snapshots")


@router.get("/latest", summary="Find the newest snapshot", responses=guarded())
async def latest(
    services: ServicesOf,
    principal: PrincipalOf,
    http: Request,
    task: TaskId,
    at_least: Annotated[int, Query(description="Oldest round to return.", ge=0, le=2**31 - 1)] = 0,
    before: Annotated[
        int | None, Query(description="Return only snapshots of earlier rounds than this.", ge=1, le=2**31 - 1)
    ] = None,
    group: Group = None,
    wait: Wait = 0.0,
) -> SnapshotView:
    """Return the newest snapshot as the asking member's device group sees it; wait up to `wait`, then 404."""

    def find() -> SnapshotView | None:
        with services.database.read() as session:
            device_group = _device_group(session, principal, task, group)
            row = newest_snapshot(session, task, at_least, before)
            return None if row is None else snapshot_view(row, seen_by(session, row, device_group))

    found = await services.notifier.poll(
        task, "snapshot", wait, find, asked_by=client_id_of(principal), scope=http.scope
    )
    if found is None:
        raise Problem("not-found", "there is no such snapshot yet")
    return found


@router.get("/best", summary="Find the snapshot of the best model", responses=guarded())
def best(services: ServicesOf, principal: PrincipalOf, task: TaskId) -> SnapshotView:
    """Return the snapshot of the best measured model, in tasks that end with it and whose sums the server can open."""
    with services.database.read() as session:
        device_group = _device_group(session, principal, task, None)
        row = session.get_one(TaskRow, task)
        kept = find_snapshot(session, task, row.best_round) if keeps_best(row) and row.best_round else None
        if kept is None or kept.blob_key is None:
            raise Problem("not-found", "the server keeps no best model of this task")
        return snapshot_view(kept, seen_by(session, kept, device_group))


@router.get(
    "/{number}",
    summary="Fetch a snapshot",
    **binary_response("The model state: made by the server if it can open the sums, else sealed by a member."),
)
def fetch(
    services: ServicesOf,
    principal: PrincipalOf,
    task: TaskId,
    number: SnapshotNumber,
    answer: AnswerOf,
    group: Group = None,
) -> Response:
    """Return the model state after a round as the asking member's device group sees it. The newest two are kept."""
    with services.database.read() as session:
        device_group = _device_group(session, principal, task, group)
        kept = find_snapshot(session, task, number)
        row = None if kept is None else seen_by(session, kept, device_group)
    if row is None:
        raise Problem("not-found", _NOT_KEPT)
    return answer.blob(row.blob_key, row.digest, row.bytes, missing=_NOT_KEPT)


def _device_group(session: Session, principal: Principal, task_id: str, asked: int | None) -> int | None:
    """Return the device group whose view to show, None for the whole state.

    Members see the view of their own group; operators and the committee, who are in none, choose with `asked`.
    """
    task = task_of(session, principal, task_id)
    if isinstance(principal, Enrolled) and principal.role != "committee":
        if asked not in (None, principal.device_group):
            raise Problem("forbidden", "a member may read the snapshots of its own device group only")
        return principal.device_group
    groups = plan_task(row_terms(task)).recipe.device_groups
    if asked is not None and asked >= groups:
        raise Problem("invalid-parameters", f"the task has device groups 0 to {groups - 1}")
    return asked


@router.put(
    "/{number}",
    status_code=201,
    summary="Leave a snapshot",
    response_model=SnapshotView,
    openapi_extra=binary_request("The model state after this round, sealed under the task's state key."),
    responses={
        201: {"description": "Stored."},
        200: {"model": SnapshotView, "description": "The same snapshot was stored before."},
        **guarded("body-too-short", "conflict", "length-required"),
    },
)
async def put(
    services: ServicesOf,
    member: MemberOf,
    request: Request,
    raw: RawBodyOf,
    response: Response,
    task: TaskId,
    number: RoundNumber,
) -> SnapshotView:
    """Store a snapshot made by a member. The first one stands."""
    length, digest = raw.announced()
    known, expected = await run_in_threadpool(_admit, services.database, member, task, number, digest)
    if known is not None:
        response.status_code = 200
        return known
    check_length(length, expected)
    path = body_path(services.settings.upload_dir, "snapshot")
    async with stream_body(services.settings, request, path, length, digest) as body:
        await run_in_threadpool(body.persist)
        return await run_in_threadpool(_store, services, member, task, number, path, digest, length)


def _admit(
    database: Database, member: Enrolled, task_id: str, number: int, digest: str
) -> tuple[SnapshotView | None, int]:
    """Return the stored snapshot of the round, if there is one, and the bytes that a new one must have."""
    with database.read() as session:
        task = existing_task(session, task_id)
        if task.opened_by == "anyone":
            raise Problem("conflict", "the server itself makes the snapshots of this task")
        if member.role != "holder" and not is_keyed(session.get_one(ClientRow, member.client_id)):
            raise Problem("forbidden", "only members that have received the keys may store snapshots")
        round_ = round_of(session, task_id, number)
        if round_.state != "complete":
            raise Problem("conflict", f"the round is {round_.state}: it has no sum to make a model from")
        known = find_snapshot(session, task_id, number)
        if known is not None:
            return _same_or_conflict(known, digest), 0
        newest = newest_snapshot(session, task_id)
        if newest is not None and newest.round_number >= number + KEPT_SNAPSHOTS:
            raise Problem("conflict", "newer snapshots are stored already")
        return None, sealed_bytes(plan_task(row_terms(task)).recipe.state_bytes(round_.sum_index))


def _same_or_conflict(known: SnapshotRow, digest: str) -> SnapshotView:
    if known.digest != digest:
        raise Problem("conflict", "another snapshot of this round is stored already")
    return snapshot_view(known)


def _store(
    services: Services, member: Enrolled, task_id: str, number: int, path: Path, digest: str, length: int
) -> SnapshotView:
    key = new_key("snapshots", task_id, number)

    def insert(session: Session) -> SnapshotView:
        known = find_snapshot(session, task_id, number)
        if known is not None:  # another client stored one first
            discard(session, key)
            return _same_or_conflict(known, digest)
        row = SnapshotRow(
            task_id=task_id, round_number=number, author=member.client_id, digest=digest, bytes=length, blob_key=key
        )
        add_snapshot(session, row)
        announce(session, task_id, "snapshot")
        _LOG.info("snapshot stored", extra=fields(task=task_id, round=number, bytes=length, digest=digest))
        return snapshot_view(row)

    def is_named(session: Session) -> bool:
        stored = find_snapshot(session, task_id, number)
        return stored is not None and stored.blob_key == key

    return store_file(services.database, services.blobs, path, key, insert, is_named)
