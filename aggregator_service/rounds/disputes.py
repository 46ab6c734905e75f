"""Disputes: a neighbour of a masked round reports that the shares which a client sealed for it do not open.

Nobody can prove who is right without giving shares away: the key that opens a sealed pair opens a good one, too, and
AES-GCM does not show whether a key is the right one. So reports are counted.

| reports | what happens |
|---|---|
| of an owner with t good shares or more | nothing: its secret can be reconstructed without the reporter's share |
| of an owner with fewer than t | the round fails before its survivors are fixed: its sum could not be opened |
| a client in dispute with more others than may collude, as owner or as reporter | it is named, and leaves the task |
| the others | the two are not asked together again, as long as `min_clients` others are there |

An honest client is in dispute with clients at fault only. So neither a few neighbours nor one lying reporter can retire
it, and each round that fails keeps one more pair apart. It counts towards `max_failed_rounds` only if the next cohort
could not be another one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import DisputeRow, RoundRow

__all__ = ["add_disputes", "disputes_in", "kept_apart"]

_RANDOM: Final = random.SystemRandom()


def add_disputes(session: Session, round_id: int, owners: Collection[str], reporter: str) -> bool:
    """Store that what `owners` sealed for `reporter` does not open; return whether any of it is new."""
    new = [owner for owner in sorted(owners) if session.get(DisputeRow, (round_id, owner, reporter)) is None]
    session.add_all(DisputeRow(round_id=round_id, owner=owner, reporter=reporter) for owner in new)
    session.flush()
    return bool(new)


def disputes_in(session: Session, round_id: int) -> list[tuple[str, str]]:
    """Return (owner, reporter) for each report of a round."""
    query = select(DisputeRow.owner, DisputeRow.reporter).where(DisputeRow.round_id == round_id)
    return [(owner, reporter) for owner, reporter in session.execute(query)]


def kept_apart(session: Session, task_id: str, clients: Sequence[str], least: int) -> list[str]:
    """Return `clients` without one of each two that are in dispute, but at least `least` of them.

    Those with the most disputes are left out first; equal ones by chance.
    """
    query = select(DisputeRow.owner, DisputeRow.reporter).join(RoundRow, RoundRow.id == DisputeRow.round_id)
    disputes = session.execute(query.where(RoundRow.task_id == task_id))
    pairs = {frozenset((owner, reporter)) for owner, reporter in disputes}
    staying = list(clients)
    while len(staying) > least:
        here = frozenset(staying)
        disputed = Counter(client for pair in pairs if pair <= here for client in sorted(pair))
        if not disputed:
            break
        most = max(disputed.values())
        staying.remove(_RANDOM.choice([client for client, count in sorted(disputed.items()) if count == most]))
    return staying
