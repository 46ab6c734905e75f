"""What the committee of a one-shot round downloads: statements and sealed shares, streamed in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from aggregator_service.access.principals import Enrolled
from aggregator_service.problems import Problem
from aggregator_service.rounds.oneshot_stages import committee_of, oneshot_context, proposed_survivors
from aggregator_service.services import Services
from aggregator_service.storage.blobs import BlobDamagedError
from aggregator_service.storage.rounds import find_round
from aggregator_service.storage.schema import RoundRow, TaskRow
from aggregator_service.storage.stages import takes_part
from aggregator_service.tasks.committee import StatedContribution, stated_contributions, statement_bytes
from protocols.codec import Reader
from protocols.messages import BadShares
from protocols.sums.oneshot.plan import KEY_BYTES, SIGNATURE_BYTES, OneshotPlan
from protocols.sums.oneshot.wire import Statement, body_digest

__all__ = ["Download", "check_shares", "sealed_shares", "statements"]

_PAGE: Final = 500
_HEAD: Final = KEY_BYTES + SIGNATURE_BYTES
"""Bytes of a ticket before its first share."""


@dataclass(frozen=True)
class Download:
    """Bytes for a member of the committee. survivors: digest (hex) of the set that they belong to."""

    survivors: str
    length: int
    pieces: Iterator[bytes]


def statements(services: Services, member: Enrolled, number: int) -> Download:
    """Return the encoded statements of the proposed survivors, in order of their ids.

    Raises `Problem`: 404 before there is such a set and once the round is over, 403 not-in-cohort for clients outside
    the committee.
    """
    with services.database.read() as session:
        round_, survivors = _proposal(session, member, number)
        _, length = statement_bytes(session, round_.id)
    pieces = (row.statement for row in _stated(services, round_.id, survivors))
    return Download(survivors.hex(), length, pieces)


def sealed_shares(services: Services, member: Enrolled, number: int) -> Download:
    """Return the shares that the proposed survivors sealed for this member, in the order of their statements.

    Raises `Problem` as `statements`. A damaged share ends the stream early.
    """
    with services.database.read() as session:
        round_, survivors = _proposal(session, member, number)
        count, _ = statement_bytes(session, round_.id)
        plan = oneshot_context(session.get_one(TaskRow, member.task_id), round_).plan
    place = _place(services, member, number)
    pieces = (_sealed(services, plan, place, row) for row in _stated(services, round_.id, survivors))
    return Download(survivors.hex(), count * plan.sealed_bytes, pieces)


def check_shares(services: Services, member: Enrolled, number: int, named: BadShares) -> None:
    """Raise `BlobDamagedError` if a share of `named` clients for this member is not stored as its client signed it.

    A member that names them may then be right, although the fault is the server's. Does nothing when another set is
    proposed, or none. Raises `Problem`: 404 for an unknown round, 403 not-in-cohort outside the committee.
    """
    with services.database.read() as session:
        round_, survivors = _round_of(session, member, number), bytes.fromhex(named.survivors_digest or "")
        if proposed_survivors(session, round_.id) != survivors:
            return
        plan = oneshot_context(session.get_one(TaskRow, member.task_id), round_).plan
    place, clients = _place(services, member, number), frozenset(named.clients)
    for row in _stated(services, round_.id, survivors):
        if row.client_id in clients:
            _sealed(services, plan, place, row)


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


def _place(services: Services, member: Enrolled, number: int) -> int:
    try:
        return committee_of(services.database, member.task_id, number).place(member.client_id)
    except LookupError:
        raise Problem("not-found", "the round is over") from None


def _stated(services: Services, round_id: int, survivors: bytes) -> Iterator[StatedContribution]:
    """Iterate over the contributions of the proposed set; ends early when another set is proposed meanwhile."""
    after: str | None = ""
    while after is not None:
        with services.database.read() as session:
            same = proposed_survivors(session, round_id) == survivors
            page = stated_contributions(session, round_id, after, _PAGE) if same else []
        yield from page
        after = page[-1].client_id if len(page) == _PAGE else None


def _sealed(services: Services, plan: OneshotPlan, place: int, row: StatedContribution) -> bytes:
    """Return a sealed share from the stored upload. Raises `BlobDamagedError` unless it is what the client signed."""
    share = services.blobs.piece(row.key, _HEAD + place * plan.sealed_bytes, plan.sealed_bytes)
    if body_digest(share) != Statement.read(plan, Reader(row.statement)).share_digests[place]:
        raise BlobDamagedError(f"a sealed share in the blob {row.key} does not match its digest")
    return share
