"""Messages of the stages of masked and one-shot rounds: admit, check, store and acknowledge them; read handouts.

And what the committee of a one-shot round downloads: statements and sealed shares, streamed in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from aggregator_service.access.principals import Enrolled, Principal, member_of, task_of
from aggregator_service.crash_points import crash_point
from aggregator_service.problems import Problem
from aggregator_service.rounds.masked_stages import roster_of, round_context, survivors_of
from aggregator_service.rounds.oneshot_stages import committee_of, oneshot_context, proposed_survivors
from aggregator_service.services import Services
from aggregator_service.storage.blobs import BlobDamagedError
from aggregator_service.storage.database import Delivery, progress
from aggregator_service.storage.rounds import find_round, lock_round_shared
from aggregator_service.storage.schema import ClientRow, HandoutRow, RoundRow, StageMessageRow, TaskRow
from aggregator_service.storage.stages import Handout, count_of, find_handout, find_message, prerequisite, takes_part
from aggregator_service.tasks.committee import StatedContribution, stated_contributions, statement_bytes
from aggregator_service.tasks.plans import plan_round
from aggregator_service.tasks.tasks import differing_binding
from aggregator_service.uploads.contributions import AlreadyStored, Stored, UploadOutcome
from protocols.codec import Reader
from protocols.crypto.keys import KEY_BYTES, SIGNATURE_BYTES
from protocols.errors import ContributionError
from protocols.messages import BadShares, UploadReceipt
from protocols.messages.stages import STATE_FOR, StageMessage
from protocols.sums.masked import server, wire
from protocols.sums.masked.plan import MaskedPlan
from protocols.sums.oneshot import server as oneshot
from protocols.sums.oneshot.plan import OneshotPlan
from protocols.sums.oneshot.wire import Statement, body_digest

_PAGE: Final = 500
_HEAD: Final = KEY_BYTES + SIGNATURE_BYTES
"""Bytes of a ticket before its first share."""


@dataclass(frozen=True)
class StageAdmission:
    """A client that may send the message of a stage.

    length: exact bytes of the message. stored: the message that is stored already, if any. survivors: in a one-shot
    round, the digest of the set that the committee is asked to confirm.
    """

    task: TaskRow
    round: RoundRow
    client: Enrolled
    stage: StageMessage
    length: int
    stored: StageMessageRow | None
    survivors: bytes | None = None

    def receipt(self, stored: StageMessageRow) -> UploadReceipt:
        return UploadReceipt(
            round=self.round.number, client_id=stored.client_id, bytes=stored.length, digest=stored.digest
        )


def admit_to_stage(
    services: Services, principal: Principal, task_id: str, number: int, stage: StageMessage, client_id: str
) -> StageAdmission:
    """Admit a client to a stage of round `number`. A client whose message is stored is admitted in any state.

    Raises `Problem`: 404 for a round without stages, 409 round-closed when the round is not in this stage, 403
    not-in-cohort for a client that did not take part in the stage before, or is not in the committee.
    """
    client = member_of(principal, task_id, client_id)
    with services.database.read() as session:
        task = task_of(session, principal, task_id)
        round_ = _masked_round(session, task_id, number)
        stored = find_message(session, round_.id, stage, client_id)
        if stored is None:
            services.outages.judge(round_.deadline)
            _check_may_send(session, round_, stage, client_id, services.clock.now())
        length = stored.length if stored is not None else _length(session, task, round_, stage)
        survivors = proposed_survivors(session, round_.id) if round_.committee else None
        return StageAdmission(task, round_, client, stage, length, stored, survivors)


def _masked_round(session: Session, task_id: str, number: int) -> RoundRow:
    round_ = find_round(session, task_id, number)
    if round_ is None or round_.model_digest is None:
        raise Problem("not-found", "there is no such round, or its clients send nothing but contributions")
    return round_


def _check_may_send(session: Session, round_: RoundRow, stage: StageMessage, client_id: str, now: float) -> None:
    if not takes_part(session, round_.id, "committee" if round_.committee else "asked", client_id):
        group = "committee" if round_.committee else "cohort"
        raise Problem("not-in-cohort", f"this client is not in the {group} of this round")
    if round_.state != STATE_FOR[stage] or now >= round_.deadline:
        raise Problem("round-closed", f"the round is {round_.state}: it takes no messages of this stage now")
    before = prerequisite(round_)
    if before is not None and not takes_part(session, round_.id, before, client_id):
        raise Problem("not-in-cohort", "this client did not take part in the stage before, so it has left the round")


def _length(session: Session, task: TaskRow, round_: RoundRow, stage: StageMessage) -> int:
    if stage == "advertise":
        return wire.ADVERTISEMENT_BYTES
    if stage == "confirm":
        return wire.CONFIRMATION_BYTES
    if round_.committee:
        return oneshot_context(task, round_).plan.summed_share_bytes
    members = count_of(session, round_.id, "advertise")
    degree = MaskedPlan.of(plan_round(task, round_).sum_plan).neighbourhood(members).degree
    return wire.share_bytes(degree) if stage == "share" else wire.reply_bytes(degree)


def same_or_conflict(admission: StageAdmission, stored: StageMessageRow, digest: str) -> UploadReceipt:
    """Return the receipt of the stored message again when its SHA-256 is `digest`.

    Raises `Problem` contribution-conflict (409) otherwise: the first message stays.
    """
    if stored.digest != digest:
        raise Problem("contribution-conflict", "another message of this client is stored for the stage and stays")
    return admission.receipt(stored)


def store_message(
    services: Services, admission: StageAdmission, body: bytes, digest: str, binding: str = ""
) -> UploadOutcome:
    """Check the message of a stage and store it; binding: the header Round-Binding of an advertisement.

    Raises `ContributionError` (the sender's fault) when it breaks a rule that the server can check, `Problem`
    contribution-conflict (409) when another message is stored, and as `admit_to_stage` when the stage ended meanwhile.
    """
    _check(services, admission, body, binding)
    outcome = services.database.transact(
        lambda session: _insert(session, services.clock.now(), admission, body, digest)
    )
    if isinstance(outcome, Stored):
        crash_point("stage.stored-before-ack")
    return outcome


def _check(services: Services, admission: StageAdmission, body: bytes, binding: str) -> None:
    round_, client_id = admission.round, admission.client.client_id
    if round_.committee:
        _check_of_committee(services, admission, body)
        return
    if admission.stage == "advertise":
        _check_advertisement(services, admission, body, binding)
        return
    try:
        roster = roster_of(services.database, round_.id)
    except LookupError:
        raise Problem("round-closed", "the round is over and takes no more messages") from None
    if admission.stage == "share":
        server.check_shares(roster, body)
    elif admission.stage == "unmask":
        server.check_reply(roster, body)
    else:
        sharers, survivors = survivors_of(services.database, round_.id)
        server.check_confirmation(roster, sharers, survivors, client_id, body)


def _check_advertisement(services: Services, admission: StageAdmission, body: bytes, binding: str) -> None:
    task, round_, client_id = admission.task, admission.round, admission.client.client_id
    context = round_context(task, round_)
    with services.database.read() as session:
        identity_key = session.get_one(ClientRow, client_id).identity_key
        try:
            server.check_advertisement(context, client_id, identity_key, body)
        except ContributionError as error:
            differs = differing_binding(session, task, round_, context, binding) if binding else ""
            if not differs:
                raise
            raise ContributionError(f"{error}: {differs}") from None
        _check_keys(session, task.id, body)


def _check_keys(session: Session, task_id: str, body: bytes) -> None:
    """Raise `ContributionError` for an advertised key that is a client's identity key; all members would refuse it.

    Keys that two clients advertise are found when the roster is made, which neither of them is in then.
    """
    advertised = wire.decode_advertisement(body)
    keys = (advertised.mask_key, advertised.sealing_key)
    found = select(ClientRow.id).where(ClientRow.task_id == task_id, ClientRow.identity_key.in_(keys))
    if session.execute(found).first() is not None:
        raise ContributionError("a key of the round is the identity key of a client: make new keys for each round")


def _check_of_committee(services: Services, admission: StageAdmission, body: bytes) -> None:
    task_id, member_id, survivors = admission.task.id, admission.client.client_id, admission.survivors
    try:
        committee = committee_of(services.database, task_id, admission.round.number)
    except LookupError:
        committee = None
    if committee is None or survivors is None:
        raise Problem("round-closed", "the round is over and takes no more messages")
    if admission.stage == "confirm":
        oneshot.check_confirmation(committee, member_id, survivors, body)
    else:
        oneshot.check_summed_share(committee, member_id, survivors, body)


def _insert(session: Session, now: float, admission: StageAdmission, body: bytes, digest: str) -> UploadOutcome:
    # The round is locked until the commit: a message is stored before the stage ends, or refused.
    client_id = admission.client.client_id
    round_ = lock_round_shared(session, admission.round.id, client_id)
    stored = find_message(session, round_.id, admission.stage, client_id)
    if stored is not None:
        return AlreadyStored(same_or_conflict(admission, stored, digest))
    _check_may_send(session, round_, admission.stage, client_id, now)
    if round_.committee and proposed_survivors(session, round_.id) != admission.survivors:
        raise ContributionError("another set of survivors was proposed meanwhile: fetch the statements again")
    row = StageMessageRow(
        round_id=round_.id,
        stage=admission.stage,
        client_id=client_id,
        digest=digest,
        length=len(body),
        stored_at=now,
        body=body,
    )
    session.add(row)
    try:
        session.flush()
    except IntegrityError:  # another process inserted this client's message after our check
        raise Problem("contribution-conflict", "another message of this client is being stored; try again") from None
    progress(session, Delivery(round_.task_id, round_.id, admission.stage, client_id))
    return Stored(admission.receipt(row))


def handed_out(services: Services, principal: Principal, task_id: str, number: int, kind: Handout) -> HandoutRow:
    """Return what the server hands out to a client of the roster, or to a member of the committee.

    Raises `Problem`: 404 before it exists and once the round is over, 403 not-in-cohort for other clients.
    """
    client = member_of(principal, task_id)
    with services.database.read() as session:
        round_ = _masked_round(session, task_id, number)
        if not takes_part(session, round_.id, "committee" if round_.committee else "advertise", client.client_id):
            raise Problem("not-in-cohort", "this client does not take part in this round")
        recipient = client.client_id if kind == "inbox" else ""
        found = find_handout(session, round_.id, kind, recipient)
    if found is None:
        raise Problem("not-found", "the round has nothing of this kind for the client, not yet or no longer")
    return found


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
