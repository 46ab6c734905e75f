"""Contributions: admitted, checked, made durable, and only then acknowledged."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from sqlalchemy import BigInteger, ColumnElement, Float, Insert, String, Table, bindparam, false, insert, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from aggregator_service.access.principals import Enrolled, Principal
from aggregator_service.crash_points import crash_point
from aggregator_service.http.authentication import member_of, task_of
from aggregator_service.logs import fields
from aggregator_service.polling.round_views import receipt
from aggregator_service.problems import Problem
from aggregator_service.services import Services
from aggregator_service.storage.blobs import new_key
from aggregator_service.storage.chunks import drop_chunks, upload_progress
from aggregator_service.storage.database import Delivery, changed_rows, progress
from aggregator_service.storage.rounds import find_contribution, find_round, in_cohort, lock_round_shared
from aggregator_service.storage.schema import ChunkRow, ContributionRow, RoundRow
from aggregator_service.storage.stages import prerequisite, takes_part
from aggregator_service.tasks.plans import TaskPlan, plan_round, round_spec
from aggregator_service.uploads.receive import Received, map_file, received
from protocols.layout import Route
from protocols.messages import UploadReceipt

__all__ = ["Admission", "admit", "admit_soon", "commit_contribution", "receive_contribution", "same_or_conflict"]

_LOG = logging.getLogger(__name__)
_HERE: Final = ContributionRow.round_id == bindparam("round"), ContributionRow.client_id == bindparam("client")
_CHUNKS: Final = ChunkRow.round_id == bindparam("round"), ChunkRow.client_id == bindparam("client")
_COLLECTS: Final = RoundRow.state == "collecting", RoundRow.deadline > bindparam("now", type_=Float)
_LACKS: Final = (
    ~select(ContributionRow.round_id).where(*_HERE).exists(),
    ~select(ChunkRow.round_id).where(*_CHUNKS).exists(),
)


def _inserted_where(*conditions: ColumnElement[bool]) -> Insert:
    asked = select(
        RoundRow.id,
        bindparam("client", type_=String),
        bindparam("digest_", type_=String),
        bindparam("bytes_", type_=BigInteger),
        bindparam("now", type_=Float),
        bindparam("key", type_=String),
        false(),
    )
    held = asked.where(RoundRow.id == bindparam("round"), *conditions).with_for_update(read=True, of=RoundRow)
    table = cast(Table, ContributionRow.__table__)  # with ORM rows it costs twice as much
    columns = ["round_id", "client_id", "digest", "bytes", "stored_at", "blob_key", "folded"]
    return insert(table).from_select(columns, held)


_INSERT: Final = _inserted_where(*_COLLECTS, *_LACKS)
"""A contribution of a round that collects, of a client that has neither one nor chunks of one there."""


@dataclass(frozen=True)
class Admission:
    """A client that is asked in a round: what it must send, and what of it is there already."""

    round: RoundRow
    client: Enrolled
    plan: TaskPlan
    route: Route
    length: int
    stored: ContributionRow | None
    status: tuple[int, int] = (0, 0)
    """Bytes that are stored of an upload in chunks, and how many chunks they are."""

    def check(self, body: memoryview) -> None:
        """`ContributionError` when the bytes must not enter the sum."""
        self.plan.mechanism.check(self.plan.sum_plan, self.route, body)

    def refuse_late(self, now: float) -> None:
        """409 round-closed unless the round takes contributions."""
        if self.round.state != "collecting" or now >= self.round.deadline:
            raise Problem("round-closed", f"the round is {self.round.state}: it takes no contributions now")


def admit(
    services: Services, principal: Principal, task_id: str, number: int, client_id: str, *, resumable: bool = False
) -> Admission:
    """Who may contribute to what: 403 for other clients, for those outside the cohort and, in masked rounds, for those
    that did not share; 404 for unknown rounds. `resumable`: where an upload in chunks stands is wanted, too."""
    client = member_of(principal, task_id, client_id)
    with services.database.read() as session:
        task = task_of(session, principal, task_id)
        round_ = find_round(session, task_id, number)
        if round_ is None:
            raise Problem("not-found", "there is no such round")
        if not in_cohort(session, round_.id, client.client_id):
            raise Problem("not-in-cohort", "this client is not asked in this round")
        before = prerequisite(round_) if round_.state == "collecting" else None
        if before is not None and not takes_part(session, round_.id, before, client.client_id):
            raise Problem("not-in-cohort", "this client shared no keys in this round, so it has left it")
        plan = plan_round(task, round_)
        route = plan.route(round_spec(round_), client.client_id)
        return Admission(
            round=round_,
            client=client,
            plan=plan,
            route=route,
            length=plan.sum_plan.contribution_bytes(route),
            stored=find_contribution(session, round_.id, client.client_id),
            status=upload_progress(session, round_.id, client.client_id) if resumable else (0, 0),
        )


async def admit_soon(services: Services, principal: Principal, task_id: str, number: int, client_id: str) -> Admission:
    """`admit`, from memory where a contribution is awaited. Whether it still is, is asked again when it is stored."""
    client = member_of(principal, task_id, client_id)
    cached_round = await services.task_cache.look(task_id)
    awaited = None if cached_round is None else cached_round.awaited_contribution(number, client_id)
    if awaited is None:
        return await run_in_threadpool(admit, services, principal, task_id, number, client_id)
    return Admission(client=client, stored=None, **vars(awaited))


def same_or_conflict(round_: RoundRow, stored: ContributionRow, digest: str) -> UploadReceipt:
    """The receipt again for the same bytes; 409 contribution-conflict for others: the first one stands."""
    if stored.digest != digest:
        raise Problem("contribution-conflict", "another contribution of this client is stored, and it stands")
    return receipt(round_, stored)


async def commit_contribution(
    services: Services, admission: Admission, path: Path, digest: str
) -> tuple[UploadReceipt, bool]:
    """Check a file that is on disk already and count it in: receipt, and whether it is new.

    The file at `path` is gone afterwards, whatever happens. `ContributionError` (the sender's fault) when the bytes
    must not enter the sum.
    """
    async with services.checking:
        try:
            await run_in_threadpool(lambda: admission.check(map_file(path)))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return await run_in_threadpool(_store, services, admission, path, digest)


async def receive_contribution(
    services: Services, admission: Admission, request: Request, digest: str
) -> tuple[UploadReceipt, bool]:
    """Receive a whole contribution, check it, make it durable and count it in; as `commit_contribution`."""
    path = services.settings.upload_dir / new_key("body", "contribution").replace("/", "-")

    def take(body: Received) -> tuple[UploadReceipt, bool]:
        admission.check(body.verified())
        body.keep()
        return _store(services, admission, path, digest)

    async with received(request, services.settings, path, admission.length, digest) as body:
        return await run_in_threadpool(take, body)


def _store(services: Services, admission: Admission, path: Path, digest: str) -> tuple[UploadReceipt, bool]:
    key = new_key("contributions", admission.round.task_id, admission.round.number, admission.client.client_id)
    try:
        services.blobs.adopt(path, key)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    crash_point("upload.stored-before-row")
    try:
        answer, is_new = _count_in(services, admission, key, digest)
    except BaseException:
        _delete_unacknowledged(services, admission, key)
        raise
    if is_new:
        crash_point("upload.row-before-ack")
        _LOG.info(
            "contribution stored",
            extra=fields(
                task=admission.round.task_id,
                round=admission.round.number,
                client=admission.client.client_id,
                bytes=admission.length,
                digest=digest,
            ),
        )
    else:
        services.blobs.delete(key)
    return answer, is_new


def _delete_unacknowledged(services: Services, admission: Admission, key: str) -> None:
    """Delete a blob unless its row is there after all: a commit may take effect and its answer be lost."""
    try:
        with services.database.read() as session:
            stored = find_contribution(session, admission.round.id, admission.client.client_id)
    except SQLAlchemyError:
        return  # nobody can tell now; if no row names it, the next start collects it
    if stored is None or stored.blob_key != key:
        services.blobs.delete(key)


def _count_in(services: Services, admission: Admission, key: str, digest: str) -> tuple[UploadReceipt, bool]:
    now = services.clock.now()

    def work(session: Session) -> tuple[UploadReceipt, bool]:
        return _insert(session, now, admission, key, digest)

    try:
        return services.database.transact(work)
    except IntegrityError:  # another process was quicker by a hair: the primary key decides, and it is there now
        return services.database.transact(work)


def _insert(session: Session, now: float, admission: Admission, key: str, digest: str) -> tuple[UploadReceipt, bool]:
    """One statement where nothing is in the way. It holds the round until the commit: a contribution is either in
    before the collecting ends, or refused."""
    row = {
        "round": admission.round.id,
        "client": admission.client.client_id,
        "digest_": digest,
        "bytes_": admission.length,
        "now": now,
        "key": key,
    }
    if changed_rows(session, _INSERT, row) != 1:
        stored = _stored_instead(session, now, admission, digest)
        if stored is not None:
            return stored, False
        drop_chunks(session, admission.round.id, admission.client.client_id)
        if changed_rows(session, _INSERT, row) != 1:
            raise AssertionError("nothing speaks against the contribution, and it is not taken")
    progress(session, Delivery(admission.round.task_id, admission.round.id, "contribute", admission.client.client_id))
    return _receipt(admission, digest), True


def _stored_instead(session: Session, now: float, admission: Admission, digest: str) -> UploadReceipt | None:
    """Why a contribution is not taken: the same one is there, or a problem; None when only chunks are in its way.

    The round is held until the commit, and so is the client's place: another upload of the same client waits.
    """
    client_id = admission.client.client_id
    round_ = lock_round_shared(session, admission.round.id, client_id)
    stored = find_contribution(session, round_.id, client_id)
    if stored is not None:
        return same_or_conflict(round_, stored, digest)
    if round_.state != "collecting" or now >= round_.deadline:
        raise Problem("round-closed", "the round no longer takes contributions")
    return None


def _receipt(admission: Admission, digest: str) -> UploadReceipt:
    return UploadReceipt(
        round=admission.round.number, client_id=admission.client.client_id, bytes=admission.length, digest=digest
    )
