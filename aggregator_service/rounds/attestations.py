"""What members of encrypted tasks state with their contributions about the aggregates before the round."""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import ContributionRow, RoundRow, TaskRow
from protocols.crypto.aggregate_chain import extend_chain, first_chain

__all__ = ["chain_to_state", "drop_old_attestations", "drop_attestations"]

_KEPT = 2
"""Completed rounds whose attestations are kept: clients ask for those of the newest one."""


def chain_to_state(task: TaskRow, completed: RoundRow | None) -> str | None:
    """Return the chain (hex) that the contributions of the next round state; None where anyone can open the sums.

    completed: the last completed round. None also for a task that had completed rounds before members stated chains.
    """
    if task.opened_by == "anyone":
        return None
    if completed is None:
        return first_chain(task.id).hex()
    if completed.aggregate_chain is None or completed.aggregate_digest is None:
        return None
    before, digest = bytes.fromhex(completed.aggregate_chain), bytes.fromhex(completed.aggregate_digest)
    return extend_chain(before, completed.number, digest).hex()


def drop_old_attestations(session: Session, round_: RoundRow) -> None:
    """Delete the attestations of the completed round that this one displaces from the newest ones."""
    if round_.aggregate_chain is None:
        return
    older = select(RoundRow.id).where(RoundRow.task_id == round_.task_id, RoundRow.state == "complete")
    older = older.where(RoundRow.number < round_.number).order_by(RoundRow.number.desc()).offset(_KEPT - 1).limit(1)
    found = session.scalars(older).one_or_none()
    if found is not None:
        drop_attestations(session, found)


def drop_attestations(session: Session, round_id: int) -> None:
    """Delete the attestations of a round."""
    clear = update(ContributionRow).where(ContributionRow.round_id == round_id).values(attestation=None)
    session.execute(clear, execution_options={"synchronize_session": False})
