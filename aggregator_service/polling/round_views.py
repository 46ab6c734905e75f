"""Views of rounds, receipts and snapshots: rows converted to the messages that operators and clients get."""

from __future__ import annotations

import hashlib

from sqlalchemy.orm import Session

from aggregator_service.access.principals import Enrolled, Principal
from aggregator_service.storage.refusals import refusals_by_reason
from aggregator_service.storage.rounds import find_contribution, in_cohort, received_count
from aggregator_service.storage.schema import ContributionRow, RoundRow, SnapshotRow, TaskRow, ViewRow
from aggregator_service.storage.stages import awaited_message, count_of, find_handout, prerequisite, takes_part
from aggregator_service.tasks.plans import plan_round, round_spec
from protocols.codec import b64encode
from protocols.messages import RoundView, SnapshotView, UploadReceipt

__all__ = ["compact_round", "receipt", "round_etag", "round_view", "snapshot_view"]


def compact_round(session: Session, round_: RoundRow, now: float) -> RoundView:
    """Return the view of a round that is the same for everybody; now: seconds since the epoch."""
    waiting = awaited_message(round_) is not None
    return RoundView.model_validate(
        {
            "task_id": round_.task_id,
            "number": round_.number,
            "step": round_.sum_index,
            "state": round_.state,
            "seed": b64encode(round_.seed),
            "cohort": round_.cohort,
            "received": received_count(session, round_.id),
            "survivors": round_.survivors,
            "folded": round_.folded,
            "seconds_left": max(0.0, round_.deadline - now) if waiting else None,
            "aggregate_bytes": round_.aggregate_bytes,
            "aggregate_digest": round_.aggregate_digest,
            "committee": round_.committee,
            "answered": _answered(session, round_),
            "survivors_digest": _proposed(session, round_),
            "failure": round_.failure,
            "report": round_.report,
        }
    )


def _answered(session: Session, round_: RoundRow) -> int:
    """Number of members of the committee that have sent the message of the current stage."""
    awaited = awaited_message(round_)
    return count_of(session, round_.id, awaited) if round_.committee and awaited in ("confirm", "unmask") else 0


def _proposed(session: Session, round_: RoundRow) -> str | None:
    """Digest of the survivors that the committee is asked to confirm, hex; None when there is no such set."""
    found = find_handout(session, round_.id, "survivors") if round_.committee else None
    return None if found is None else found.body.hex()


def round_view(session: Session, task: TaskRow, round_: RoundRow, principal: Principal, now: float) -> RoundView:
    """Return the view of a round; for a client it also says what the round expects of it."""
    view = compact_round(session, round_, now)
    if not isinstance(principal, Enrolled):
        refusals = refusals_by_reason(session, [round_.id])
        return view.model_copy(update={"refusals": refusals.get(round_.id, {})})
    asked = in_cohort(session, round_.id, principal.client_id)
    length = plan_round(task, round_).contribution_bytes(round_spec(round_), principal.client_id)
    required, awaited = prerequisite(round_), awaited_message(round_)
    return view.model_copy(
        update={
            "in_cohort": asked,
            "in_committee": takes_part(session, round_.id, "committee", principal.client_id),
            "expected": required is not None and takes_part(session, round_.id, required, principal.client_id),
            "delivered": awaited is not None and takes_part(session, round_.id, awaited, principal.client_id),
            "contributed": find_contribution(session, round_.id, principal.client_id) is not None,
            "contribution_bytes": length if asked else None,
        }
    )


def round_etag(task: TaskRow, view: RoundView) -> str:
    """Return a weak ETag that changes when the view does, apart from the remaining seconds.

    A client's ETag also ignores the numbers of messages: each one would otherwise answer the polls of all clients.
    The task's state is part of the ETag, so that its end answers every poll.
    """
    excluded = {"seconds_left", "received", "folded", "answered"} if view.in_cohort is not None else {"seconds_left"}
    body = f"{task.state} {view.model_dump_json(exclude=excluded)}"
    return f'W/"{hashlib.sha256(body.encode()).hexdigest()[:24]}"'


def receipt(round_: RoundRow, row: ContributionRow) -> UploadReceipt:
    """Return the receipt of a stored contribution."""
    return UploadReceipt(round=round_.number, client_id=row.client_id, bytes=row.bytes, digest=row.digest)


def snapshot_view(row: SnapshotRow, seen: SnapshotRow | ViewRow | None = None) -> SnapshotView:
    """Return the view of a snapshot; seen: what the client's device group downloads instead of all of it."""
    body = seen or row
    return SnapshotView(round=row.round_number, bytes=body.bytes, digest=body.digest, author=row.author)
