"""Disputes: a neighbour in a masked round, or a member of a one-shot round's committee, reports sealed shares.

It says that the shares which a client sealed for it do not open. Nobody can prove who is right without giving shares
away: the key that opens a sealed pair opens a good one, too, and AES-GCM does not show whether a key is the right one.
So reports are counted.

Masked rounds:

| reports | what happens |
|---|---|
| of an owner with t good shares or more | nothing: its secret can be reconstructed without the reporter's share |
| of an owner with fewer than t | the round fails before its survivors are fixed: its sum could not be opened |
| a client in dispute with more others than may collude, as owner or as reporter | it is named, and leaves the task |
| the others | the two are not asked together again, as long as `min_clients` others are there |

An honest client is in dispute with clients at fault only. So neither a few neighbours nor one lying reporter can retire
it, and each round that fails keeps one more pair apart. It counts towards `max_failed_rounds` only if the next cohort
could not be another one.

One-shot rounds, with a committee of which t open a sum and at most `corrupt` collude:

| reports | what happens |
|---|---|
| t members or more can open the shares of all clients of the set | nothing: the reporters do not confirm |
| fewer can | those whom t members have reported leave the set: the t that reported the fewest clients in this task |
| of a client by more than `corrupt` members | an honest one is among them: the client leaves the task |

No member is blamed, because the number of clients at fault has no bound. Later cohorts are without the clients without
which t members of the new committee can open all, as long as `min_clients` others are there. A member that lies about
more clients than an honest one has found at fault is not among the t. So a liar retires nobody, and keeps no more
honest clients out of sums than there are clients at fault.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from aggregator_service.storage.schema import DisputeRow, RoundRow
from aggregator_service.storage.stage_rows import clients_with
from protocols.sums.oneshot.server import kept_from_opening

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
    pairs = {frozenset(dispute) for dispute in _disputes_of(session, task_id)}
    staying = list(clients)
    while len(staying) > least:
        here = frozenset(staying)
        disputed = Counter(client for pair in pairs if pair <= here for client in sorted(pair))
        if not disputed:
            break
        most = max(disputed.values())
        staying.remove(_RANDOM.choice([client for client, count in sorted(disputed.items()) if count == most]))
    return staying


def with_unreadable_shares(session: Session, round_: RoundRow, threshold: int) -> list[str]:
    """Return the clients that must leave the proposed set of a one-shot round, sorted. Empty if t members can open it.

    threshold: t, members that must open the shares of all.
    """
    members = session.scalars(clients_with(round_.id, "committee")).all()
    present = set(session.scalars(clients_with(round_.id, "contribute")))
    reports = _by_reporter(one for one in disputes_in(session, round_.id) if one[0] in present)
    return sorted(kept_from_opening(members, reports, threshold, _distrust(_disputes_of(session, round_.task_id))))


def with_readable_shares(
    session: Session, task_id: str, clients: Sequence[str], members: Collection[str], threshold: int, least: int
) -> list[str]:
    """Return `clients` without those of whom earlier reports say that t of `members` cannot open their shares.

    At least `least` stay; those reported by the most members are left out first, equal ones by chance.
    """
    disputes, here = _disputes_of(session, task_id), frozenset(clients)
    reports = _by_reporter(one for one in disputes if one[0] in here)
    leaving = kept_from_opening(members, reports, threshold, _distrust(disputes))
    times = Counter(owner for owner, _ in set(disputes) if owner in leaving)
    worst = sorted(times, key=lambda owner: (-times[owner], _RANDOM.random()))[: max(0, len(clients) - least)]
    return [client for client in clients if client not in worst]


def reported_by_many(session: Session, task_id: str, corrupt: int) -> set[str]:
    """Return the clients that more than `corrupt` members of a task's committees have reported."""
    times = Counter(owner for owner, _ in set(_disputes_of(session, task_id)))
    return {owner for owner, count in times.items() if count > corrupt}


def _disputes_of(session: Session, task_id: str) -> list[tuple[str, str]]:
    """Return (owner, reporter) for each report in any round of a task."""
    query = select(DisputeRow.owner, DisputeRow.reporter).join(RoundRow, RoundRow.id == DisputeRow.round_id)
    return [(owner, reporter) for owner, reporter in session.execute(query.where(RoundRow.task_id == task_id))]


def _by_reporter(disputes: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for owner, reporter in disputes:
        found.setdefault(reporter, set()).add(owner)
    return found


def _distrust(disputes: Iterable[tuple[str, str]]) -> Mapping[str, int]:
    """Return how many clients each member of a task's committees has reported."""
    return {member: len(owners) for member, owners in _by_reporter(disputes).items()}
