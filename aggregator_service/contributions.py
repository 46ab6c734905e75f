"""Contributions: admitted, checked, made durable, and only then acknowledged."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.auth import Enrolled, Principal, member_of, task_of
from aggregator_service.faults import crash_point
from aggregator_service.logs import fields
from aggregator_service.plans import TaskPlan, plan_round, round_spec
from aggregator_service.problems import Problem
from aggregator_service.services import Services
from aggregator_service.storage.blobs import new_key
from aggregator_service.storage.chunks import drop_chunks, upload_standing
from aggregator_service.storage.database import Delivery, progress
from aggregator_service.storage.rounds import find_contribution, find_round, hold_round, in_cohort
from aggregator_service.storage.schema import ContributionRow, RoundRow
from aggregator_service.storage.stages import expected, takes_part
from aggregator_service.uploads import map_file
from aggregator_service.views import receipt
from protocols.layout import Route
from protocols.messages import UploadReceipt

__all__ = ["Admission", "admit", "admit_soon", "commit_contribution", "same_or_conflict"]

_LOG = logging.getLogger(__name__)
_NEW: Final = insert(ContributionRow.__table__)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Admission:
    """A client that is asked in a round: what it must send, and what of it is there already."""

    round: RoundRow
    client: Enrolled
    plan: TaskPlan
    route: Route
    length: int
    stored: ContributionRow | None
    standing: tuple[int, int] = (0, 0)
    """Bytes that are stored of an upload in chunks, and how many chunks they are."""

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
        before = expected(round_) if round_.state == "collecting" else None
        if before is not None and not takes_part(session, round_.id, before, client.client_id):
            raise Problem("not-in-cohort", "this client shared no keys in this round, so it has left it")
        plan = plan_round(task, round_)
        route = plan.route(round_spec(round_), client.client_id)
        return Admission(
            round=round_,
            client=client,
            plan=plan,
            route=route,
            length=plan.plan.contribution_bytes(route),
            stored=find_contribution(session, round_.id, client.client_id),
            standing=upload_standing(session, round_.id, client.client_id) if resumable else (0, 0),
        )


async def admit_soon(services: Services, principal: Principal, task_id: str, number: int, client_id: str) -> Admission:
    """`admit`, from memory where a contribution is awaited. Whether it still is, is asked again when it is stored."""
    client = member_of(principal, task_id, client_id)
    board = await services.memory.look(task_id)
    awaited = None if board is None else board.awaited_contribution(number, client_id)
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
    """Check a received file, make it durable and count it in: receipt, and whether it is new.

    The file at `path` is on disk already; it is gone afterwards, whatever happens. `ContributionError` (the sender's
    fault) when the bytes must not enter the sum.
    """
    async with services.checking:
        try:
            await run_in_threadpool(_check, admission, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    return await run_in_threadpool(_store, services, admission, path, digest)


def _check(admission: Admission, path: Path) -> None:
    admission.plan.mechanism.check(admission.plan.plan, admission.route, map_file(path))


def _store(services: Services, admission: Admission, path: Path, digest: str) -> tuple[UploadReceipt, bool]:
    key = new_key("contributions", admission.round.task_id, admission.round.number, admission.client.client_id)
    try:
        services.blobs.adopt(path, key)
    finally:
        path.unlink(missing_ok=True)
    crash_point("upload.stored-before-row")
    try:
        answer, is_new = services.database.transact(
            lambda session: _insert(session, services.clock.now(), admission, key, digest)
        )
    except BaseException:
        _let_go_of(services, admission, key)
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


def _let_go_of(services: Services, admission: Admission, key: str) -> None:
    """Delete a blob unless its row is there after all: a commit may take effect and its answer be lost."""
    try:
        with services.database.read() as session:
            stored = find_contribution(session, admission.round.id, admission.client.client_id)
    except SQLAlchemyError:
        return  # nobody can tell now; if no row names it, the next start collects it
    if stored is None or stored.blob_key != key:
        services.blobs.delete(key)


def _insert(session: Session, now: float, admission: Admission, key: str, digest: str) -> tuple[UploadReceipt, bool]:
    # The round is held until the commit: a contribution is either in before the collecting ends, or refused.
    client_id = admission.client.client_id
    round_ = hold_round(session, admission.round.id, client_id)
    stored = find_contribution(session, round_.id, client_id)
    if stored is not None:
        return same_or_conflict(round_, stored, digest), False
    if round_.state != "collecting" or now >= round_.deadline:
        raise Problem("round-closed", "the round no longer takes contributions")
    row = {
        "round_id": round_.id,
        "client_id": client_id,
        "digest": digest,
        "bytes": admission.length,
        "stored_at": now,
        "blob_key": key,
        "folded": False,
    }
    drop_chunks(session, round_.id, client_id)
    try:
        session.execute(_NEW, row)
    except IntegrityError:  # another process was quicker by a hair: the primary key decides
        raise Problem("contribution-conflict", "another upload of this client is being stored; ask again") from None
    progress(session, Delivery(round_.task_id, round_.id, "contribute", client_id))
    return UploadReceipt(round=round_.number, client_id=client_id, bytes=admission.length, digest=digest), True
