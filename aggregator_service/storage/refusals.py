"""Clients that left a round because of what the server sent, or of their policy."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import RefusalRow, RoundRow
from aggregator_service.storage.stages import awaited_message, clients_with, prerequisite

__all__ = ["add_refusal", "refusals_by_reason", "refused_now"]


def add_refusal(session: Session, round_id: int, client_id: str, reason: str, now: float) -> bool:
    """Store a client's refusal of a round; return whether it is its first. The first reason stays."""
    if session.get(RefusalRow, (round_id, client_id)) is not None:
        return False
    session.add(RefusalRow(round_id=round_id, client_id=client_id, reason=reason, refused_at=now))
    session.flush()
    return True


def refusals_by_reason(session: Session, round_ids: Iterable[int]) -> dict[int, dict[str, int]]:
    """Return the number of clients that refused each round, by reason; rounds without refusals are left out."""
    count = select(RefusalRow.round_id, RefusalRow.reason, func.count()).where(RefusalRow.round_id.in_(list(round_ids)))
    found: dict[int, dict[str, int]] = {}
    grouped = count.group_by(RefusalRow.round_id, RefusalRow.reason).order_by(RefusalRow.reason)
    for round_id, reason, clients in session.execute(grouped):
        found.setdefault(round_id, {})[reason] = clients
    return found


def refused_now(session: Session, round_: RoundRow) -> int:
    """Number of clients that the current stage waits for and that have refused the round: no message will come."""
    awaited, required = awaited_message(round_), prerequisite(round_)
    if awaited is None or required is None:
        return 0
    query = select(func.count()).select_from(RefusalRow).where(RefusalRow.round_id == round_.id)
    query = query.where(RefusalRow.client_id.in_(clients_with(round_.id, required)))
    query = query.where(RefusalRow.client_id.not_in(clients_with(round_.id, awaited)))
    return session.execute(query).scalar_one()
