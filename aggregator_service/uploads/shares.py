"""What the committee of a one-shot round downloads, streamed in constant memory: statements and sealed shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from sqlalchemy.orm import Session

from aggregator_service.access.principals import Enrolled
from aggregator_service.problems import Problem
from aggregator_service.rounds.oneshot import committee_of, oneshot_context, proposed_survivors
from aggregator_service.storage.blobs import BlobDamagedError, BlobStore, Piece
from aggregator_service.storage.database import Database
from aggregator_service.storage.round_rows import find_round
from aggregator_service.storage.schema import RoundRow, TaskRow
from aggregator_service.storage.stage_rows import takes_part
from aggregator_service.tasks.committee_keys import StatedContribution, stated_contributions, statement_bytes
from protocols.codec import Reader
from protocols.crypto.keys import KEY_BYTES, SIGNATURE_BYTES
from protocols.messages import BadShares
from protocols.sums.oneshot.plan import OneshotPlan
from protocols.sums.oneshot.wire import Statement, body_digest

_PAGE: Final = 256
"""Contributions that are read at a time, and whose parts are sent together: each part costs a thread and a write."""
_HEAD: Final = KEY_BYTES + SIGNATURE_BYTES
"""Bytes of a ticket before its first share."""


@dataclass(frozen=True)
class Download:
    """Bytes for a member of the committee."""

    survivors: str
    """Digest (hex) of the set that they belong to."""
    length: int
    pieces: Iterator[bytes]


def statements(database: Database, member: Enrolled, number: int) -> Download:
    """Return the encoded statements of the proposed survivors, in order of their ids.

    Raises `Problem`: 404 before there is such a set and once the round is over, 403 not-in-cohort for clients outside
    the committee.
    """
    with database.read() as session:
        round_, survivors = _proposal(session, member, number)
        _, length = statement_bytes(session, round_.id)
    pages = _stated(database, round_.id, survivors)
    return Download(survivors.hex(), length, (b"".join(row.statement for row in page) for page in pages))


def sealed_shares(
    database: Database, blobs: BlobStore, member: Enrolled, number: int, after: str = "", most: int | None = None
) -> Download:
    """Return the shares that the proposed survivors sealed for this member, in the order of their statements.

    after: id of the client before the first one, "" for all. most: how many, None for all that are left. Raises
    `Problem` as `statements`. A damaged share ends the stream early.
    """
    with database.read() as session:
        round_, survivors = _proposal(session, member, number)
        left, _ = statement_bytes(session, round_.id, after)
        plan = oneshot_context(session.get_one(TaskRow, member.task_id), round_).plan
    place, count = _place(database, member, number), left if most is None else min(most, left)
    pages = _stated(database, round_.id, survivors, after, count)
    pieces = (b"".join(_sealed(blobs, plan, place, page)) for page in pages)
    return Download(survivors.hex(), count * plan.sealed_bytes, pieces)


def check_shares(database: Database, blobs: BlobStore, member: Enrolled, number: int, named: BadShares) -> None:
    """Raise `BlobDamagedError` if a share of `named` clients for this member is not stored as its client signed it.

    A member that names them may then be right, although the fault is the server's. Does nothing when another set is
    proposed, or none. Raises `Problem`: 404 for an unknown round, 403 not-in-cohort outside the committee.
    """
    with database.read() as session:
        round_, survivors = _round_of(session, member, number), bytes.fromhex(named.survivors_digest or "")
        if proposed_survivors(session, round_.id) != survivors:
            return
        plan = oneshot_context(session.get_one(TaskRow, member.task_id), round_).plan
    place, clients = _place(database, member, number), frozenset(named.clients)
    for page in _stated(database, round_.id, survivors):
        _sealed(blobs, plan, place, [row for row in page if row.client_id in clients])


def _round_of(session: Session, member: Enrolled, number: int) -> RoundRow:
    round_ = find_round(session, member.task_id, number)
    if round_ is None or not round_.committee:
        raise Problem("not-found", "there is no such round, or it has no committee")
    if not takes_part(session, round_.id, "committee", member.client_id):
        raise Problem("not-in-cohort", "this client is not in the committee of this round")
    return round_


def _proposal(session: Session, member: Enrolled, number: int) -> tuple[RoundRow, bytes]:
    round_ = _round_of(session, member, number)
    survivors = proposed_survivors(session, round_.id)
    if survivors is None:
        raise Problem("not-found", "the round has no proposed survivors, not yet or no longer")
    return round_, survivors


def _place(database: Database, member: Enrolled, number: int) -> int:
    try:
        return committee_of(database, member.task_id, number).place(member.client_id)
    except LookupError:
        raise Problem("not-found", "the round is over") from None


def _stated(
    database: Database, round_id: int, survivors: bytes, after: str = "", most: int | None = None
) -> Iterator[list[StatedContribution]]:
    """Iterate over pages of the contributions of the proposed set, from the one after `after` on, `most` in all.

    Ends early when another set is proposed meanwhile.
    """
    last, left = after, inf if most is None else most
    while left:
        limit = int(min(left, _PAGE))
        with database.read() as session:
            same = proposed_survivors(session, round_id) == survivors
            page = stated_contributions(session, round_id, last, limit) if same else []
        if page:
            yield page
            last = page[-1].client_id
        left = left - limit if len(page) == limit else 0


def _sealed(blobs: BlobStore, plan: OneshotPlan, place: int, rows: Sequence[StatedContribution]) -> Sequence[bytes]:
    """Return a member's sealed shares from stored uploads.

    Raises `BlobDamagedError` unless they are what the clients signed.
    """
    first = _HEAD + place * plan.sealed_bytes
    shares = blobs.pieces([Piece(row.key, row.start + first, plan.sealed_bytes) for row in rows])
    for row, share in zip(rows, shares, strict=True):
        if body_digest(share) != Statement.read(plan, Reader(row.statement)).share_digests[place]:
            raise BlobDamagedError(f"a sealed share in the blob {row.key} does not match its digest")
    return shares
