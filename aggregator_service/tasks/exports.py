"""Everything that the server stores about one member (`MemberExport`), for the person that it belongs to."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.access.audit_trail import Wanted, newest_entries
from aggregator_service.problems import Problem
from aggregator_service.storage.schema import (
    ClientRow,
    CohortRow,
    CommitteeKeyRow,
    ContributionRow,
    RefusalRow,
    RoundRow,
    SnapshotRow,
    StageMessageRow,
    TaskRow,
)
from aggregator_service.tasks.membership import member_view
from protocols.messages import MemberExport, MemberRound

_MOST_ENTRIES = 10_000


def export_member(session: Session, task: TaskRow, client_id: str) -> MemberExport:
    """Return what is stored about a member; `Problem` not-found (404) if the task has none with this id."""
    client = session.get(ClientRow, client_id)
    if client is None or client.task_id != task.id or client.erased_at is not None:
        raise Problem("not-found", "there is no such member")
    snapshots = select(SnapshotRow.round_number).where(SnapshotRow.task_id == task.id, SnapshotRow.author == client_id)
    acted_on = newest_entries(session, Wanted(target=client_id), _MOST_ENTRIES)
    return MemberExport(
        task_id=task.id,
        task_name=task.name,
        member=member_view(client),
        enrolled_at=client.enrolled_at,
        revoked_at=client.revoked_at,
        certificate_serial=None if client.subject is None else f"{int.from_bytes(client.subject, 'little'):016x}",
        times_asked=client.times_asked,
        times_contributed=client.times_contributed,
        envelope_bytes=client.envelope_bytes,
        rounds=_rounds(session, task, client_id),
        snapshots=sorted(session.scalars(snapshots)),
        acted_on=list(acted_on),
    )


def _rounds(session: Session, task: TaskRow, client_id: str) -> list[MemberRound]:
    """Return what is stored about a member in each round that names it, by number."""
    asked = set(session.scalars(select(CohortRow.round_id).where(CohortRow.client_id == client_id)))
    keys = select(CommitteeKeyRow.round_id).where(CommitteeKeyRow.client_id == client_id)
    committee = {round_id for round_id in session.scalars(keys) if round_id is not None}
    refusals = session.scalars(select(RefusalRow).where(RefusalRow.client_id == client_id))
    refused = {row.round_id: row.reason for row in refusals}
    contributions = session.scalars(select(ContributionRow).where(ContributionRow.client_id == client_id))
    given = {row.round_id: row for row in contributions}
    sent: dict[int, dict[str, int]] = {}
    for row in session.scalars(select(StageMessageRow).where(StageMessageRow.client_id == client_id)):
        sent.setdefault(row.round_id, {})[row.stage] = row.length
    numbers = session.execute(
        select(RoundRow.id, RoundRow.number).where(RoundRow.task_id == task.id).order_by(RoundRow.number)
    )
    named = asked | committee | given.keys() | sent.keys()
    return [
        MemberRound(
            round=number,
            asked=round_id in asked,
            in_committee=round_id in committee,
            contribution_bytes=given[round_id].bytes if round_id in given else None,
            contribution_digest=given[round_id].digest if round_id in given else None,
            contributed_at=given[round_id].stored_at if round_id in given else None,
            messages=sent.get(round_id, {}),
            refused=refused.get(round_id),
        )
        for round_id, number in numbers
        if round_id in named
    ]
