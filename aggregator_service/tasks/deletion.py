"""Delete a task that has ended: its rows and its blobs, and keep what later tasks and the audit need, as digests.

Tasks with the same data set label are judged together, also after one of them is deleted: of its sums of class `once`
and `repeated` the sets of survivors stay, as digests of identity keys, and its terms, which limit what later tasks may
ask (`protocols.exposure`). Of the ledger of released sums a digest stays: who has the list can prove that it is whole.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from aggregator_service.access.audit_trail import Actor, record
from aggregator_service.problems import Problem
from aggregator_service.storage.bodies import delete_small_bodies, is_small
from aggregator_service.storage.database import announce, changed_rows, discard, void_token
from aggregator_service.storage.round_rows import lock_task, summed_clause
from aggregator_service.storage.schema import (
    ChunkRow,
    ClientRow,
    CommitteeKeyRow,
    ContributionRow,
    HandoutRow,
    InvitationRow,
    PastSummandRow,
    PastSumRow,
    PastTaskRow,
    RoundRow,
    SnapshotRow,
    StageMessageRow,
    TaskRow,
    TermsColumns,
    ViewRow,
    references_to,
)
from aggregator_service.tasks.ledger import task_ledger
from protocols.messages import DeletedTask

_PAGE: Final = 1000


def delete_task(session: Session, task: TaskRow, actor: Actor) -> DeletedTask:
    """Delete a task for good, with its members; return what was kept of it.

    Raises `Problem` conflict (409) while the task is open.
    """
    announce(session, task.id, "round", "members", "snapshot", "tokens")
    task = lock_task(session, task.id)
    if task.state == "open":
        raise Problem("conflict", "the task is open: close it first, then delete it")
    digest, released = _ledger_digest(session, task)
    sums = _keep(session, task, digest, released)
    members = session.execute(select(ClientRow.token_hash).where(ClientRow.task_id == task.id)).all()
    for (token_hash,) in members:
        void_token(session, token_hash)
    blobs = _discard_blobs(session, task)
    rounds = select(RoundRow.id).where(RoundRow.task_id == task.id)
    for row, column in references_to("rounds"):
        changed_rows(session, delete(row).where(getattr(row, column).in_(rounds)))
    for owned in (CommitteeKeyRow, ViewRow, SnapshotRow, RoundRow, InvitationRow, ClientRow):
        changed_rows(session, delete(owned).where(owned.task_id == task.id))
    done = DeletedTask(
        task_id=task.id, members=len(members), blobs=blobs, released_sums=released, ledger_digest=digest, kept_sets=sums
    )
    record(session, actor, "task deleted", task=task, members=len(members), blobs=blobs, kept_sets=sums)
    session.flush()
    session.delete(task)
    session.flush()
    return done


def _ledger_digest(session: Session, task: TaskRow) -> tuple[str, int]:
    """Return the SHA-256 (hex) of the task's list of released sums as JSON, one a line, and their number."""
    hashed, count, after = hashlib.sha256(), 0, 0
    while True:
        page = task_ledger(session, task, after, _PAGE)
        for entry in page.entries:
            hashed.update(f"{json.dumps(entry.model_dump(mode='json'), sort_keys=True)}\n".encode())
            count, after = count + 1, entry.round
        if not page.more:
            return hashed.hexdigest(), count


def _keep(session: Session, task: TaskRow, digest: str, released: int) -> int:
    """Keep the terms and, with a data set label, each set of survivors that guards need; return their number."""
    terms = {name: getattr(task, name) for name in TermsColumns.__annotations__}
    session.add(PastTaskRow(name=task.name, **terms, released_sums=released, ledger_digest=digest))
    session.flush()
    if task.data_set is None:
        return 0
    judged = select(RoundRow).where(RoundRow.task_id == task.id, RoundRow.sum_data.is_not(None), summed_clause())
    kept: set[tuple[str, str, frozenset[bytes]]] = set()
    for round_ in session.scalars(judged.order_by(RoundRow.id)):
        persons = select(ClientRow.person).join(ContributionRow, ContributionRow.client_id == ClientRow.id)
        survivors = frozenset(map(bytes, session.scalars(persons.where(ContributionRow.round_id == round_.id))))
        if survivors:
            kept.add((round_.sum_rule, str(round_.sum_data), survivors))
    for rule, data, survivors in kept:
        past = PastSumRow(task_id=task.id, data_set=task.data_set, sum_rule=rule, sum_data=data)
        session.add(past)
        session.flush()
        session.add_all(PastSummandRow(sum_id=past.id, person=person) for person in sorted(survivors))
    session.flush()
    return len(kept)


def _discard_blobs(session: Session, task: TaskRow) -> int:
    """Discard every blob and small body of a task; return the number of blobs."""
    rounds = list(session.scalars(select(RoundRow.id).where(RoundRow.task_id == task.id)))
    for round_id in rounds:
        delete_small_bodies(session, round_id)
    in_rounds = select(RoundRow.id).where(RoundRow.task_id == task.id)
    keys = {
        *session.scalars(select(ContributionRow.blob_key).where(ContributionRow.round_id.in_(in_rounds))),
        *session.scalars(select(ChunkRow.blob_key).where(ChunkRow.round_id.in_(in_rounds))),
        *session.scalars(select(StageMessageRow.blob_key).where(StageMessageRow.round_id.in_(in_rounds))),
        *session.scalars(select(HandoutRow.blob_key).where(HandoutRow.round_id.in_(in_rounds))),
        *session.scalars(select(RoundRow.partial_key).where(RoundRow.task_id == task.id)),
        *session.scalars(select(RoundRow.aggregate_key).where(RoundRow.task_id == task.id)),
        *session.scalars(select(SnapshotRow.blob_key).where(SnapshotRow.task_id == task.id)),
        *session.scalars(select(ViewRow.blob_key).where(ViewRow.task_id == task.id)),
        *session.scalars(select(ClientRow.envelope_key).where(ClientRow.task_id == task.id)),
        task.catalogue_key,
    }
    for key in keys:
        discard(session, key)
    return sum(key is not None and not is_small(key) for key in keys)
