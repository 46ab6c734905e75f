"""Messages of the stages of masked and one-shot rounds: admit, check, store and acknowledge them; read handouts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast

from sqlalchemy import Float, Insert, Table, bindparam, insert, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from aggregator_service.access.principals import Enrolled, Principal, member_of, task_of
from aggregator_service.clock import Clock
from aggregator_service.crash_points import crash_point
from aggregator_service.polling.views import CachedRound
from aggregator_service.problems import Problem
from aggregator_service.round_states import ACTIVE
from aggregator_service.rounds.masked import roster_of, round_context, survivors_of
from aggregator_service.rounds.oneshot import committee_of, proposed_survivors
from aggregator_service.services import Services
from aggregator_service.storage.blobs import BlobMissingError, BlobStore
from aggregator_service.storage.database import Database, Delivery, changed_rows, progress
from aggregator_service.storage.packs import Place
from aggregator_service.storage.round_rows import find_round, lock_round_shared
from aggregator_service.storage.schema import ClientRow, RoundRow, StageMessageRow, TaskRow
from aggregator_service.storage.stage_rows import (
    StagePart,
    StoredInboxes,
    did_part,
    find_message,
    prerequisite,
    takes_part,
)
from aggregator_service.tasks.plans import TaskPlan, plan_round
from aggregator_service.tasks.task_views import differing_binding
from aggregator_service.uploads.new_contributions import UploadOutcome
from protocols.crypto.sealing import agreement_key
from protocols.errors import ContributionError, ParameterError
from protocols.messages import UploadReceipt
from protocols.messages.stages import STATE_FOR, RoundState, StageMessage
from protocols.sums.masked import server, wire
from protocols.sums.masked.roster import Roster
from protocols.sums.oneshot import server as oneshot
from protocols.sums.oneshot.committee import Committee
from protocols.sums.oneshot.plan import OneshotPlan

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class StageAdmission:
    """A client that may send the message of a stage."""

    task: TaskRow
    round: RoundRow
    client: Enrolled
    stage: StageMessage
    length: int
    """Exact bytes of the message."""
    stored: StageMessageRow | None
    """The message that is stored already, if any."""
    survivors: bytes | None = None
    """In a one-shot round, the digest of the set that the committee is asked to confirm."""
    roster: Roster | None = None
    """Of a masked round, from its second stage on."""
    to_confirm: server.SurvivorSet | None = None
    """What the members of a masked round are asked to confirm."""
    committee: Committee | None = None
    """Of a one-shot round."""

    def check(self, body: bytes) -> None:
        """Raise `ContributionError` when the message breaks a rule that the server can check."""
        client_id = self.client.client_id
        if self.stage == "advertise":
            server.check_advertisement(round_context(self.task, self.round), client_id, self.client.identity_key, body)
        elif self.committee is not None and self.survivors is not None:
            check = oneshot.check_confirmation if self.stage == "confirm" else oneshot.check_summed_share
            check(self.committee, client_id, self.survivors, body)
        elif self.to_confirm is not None:
            self.to_confirm.check_confirmation(client_id, body)
        elif self.roster is not None:
            if self.stage == "share":
                server.check_shares(self.roster, client_id, body)
            else:
                server.check_reply(self.roster, body)
        else:
            raise Problem("round-closed", "the round is over and takes no more messages")

    def receipt(self, length: int, digest: str) -> UploadReceipt:
        return UploadReceipt(round=self.round.number, client_id=self.client.client_id, bytes=length, digest=digest)


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
        if stored is not None:
            return StageAdmission(task, round_, client, stage, stored.length, stored)
        services.outages.judge(round_.deadline)
        _check_may_send(session, round_, stage, client_id, services.clock.now())
        survivors = proposed_survivors(session, round_.id) if round_.committee else None
    plan, database = plan_round(task, round_), services.database
    if round_.committee:
        committee = _or_closed(committee_of, database, task_id, number)
        length = _length(plan, stage, None, client_id)
        return StageAdmission(task, round_, client, stage, length, None, survivors, committee=committee)
    roster = None if stage == "advertise" else _or_closed(roster_of, database, round_.id)
    to_confirm = _or_closed(survivors_of, database, round_.id) if stage == "confirm" else None
    length = _length(plan, stage, roster, client_id)
    return StageAdmission(task, round_, client, stage, length, None, roster=roster, to_confirm=to_confirm)


async def admit_to_stage_cached(
    services: Services, principal: Principal, task_id: str, number: int, stage: StageMessage, client_id: str
) -> StageAdmission:
    """Admit a client as `admit_to_stage` does, from the task cache when that shows that the round waits for it.

    The cache may be out of date: the insert checks the round again. The few members of a committee are read.
    """
    client = member_of(principal, task_id, client_id)
    cached_round = await services.task_cache.current_round(task_id)
    if cached_round is not None and cached_round.awaits(number, stage, client_id):
        task, round_, plan = cached_round.stages()
        if not round_.committee and services.clock.now() < round_.deadline:
            services.outages.judge(round_.deadline)
            roster = None if stage == "advertise" else (await _rosters(services.database, cached_round)).roster
            to_confirm = await _to_confirm(services.database, cached_round) if stage == "confirm" else None
            length = _length(plan, stage, roster, client_id)
            return StageAdmission(task, round_, client, stage, length, None, roster=roster, to_confirm=to_confirm)
    return await run_in_threadpool(admit_to_stage, services, principal, task_id, number, stage, client_id)


async def _rosters(database: Database, cached_round: CachedRound) -> _Rosters:
    """Return the rosters of an active round; `Problem` round-closed if it has ended."""
    round_id = cached_round.stages()[1].id
    read = partial(_or_closed, roster_of, database, round_id)
    return await cached_round.once("rosters", lambda: run_in_threadpool(lambda: _Rosters(read())))


async def _inboxes(database: Database, blobs: BlobStore, cached_round: CachedRound) -> StoredInboxes:
    """Return where the inboxes of an active round are."""
    read = partial(StoredInboxes, database, blobs, cached_round.stages()[1].id)
    return await cached_round.once("inboxes", lambda: run_in_threadpool(read))


async def _to_confirm(database: Database, cached_round: CachedRound) -> server.SurvivorSet:
    """Return what the members of an active round confirm; `Problem` round-closed if it has ended."""
    read = partial(_or_closed, survivors_of, database, cached_round.stages()[1].id)
    return await cached_round.once("survivor set", lambda: run_in_threadpool(read))


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


def _length(plan: TaskPlan, stage: StageMessage, roster: Roster | None, client_id: str) -> int:
    """Return the exact bytes of a message. roster: of a masked round, from its second stage on."""
    if stage == "advertise":
        return wire.ADVERTISEMENT_BYTES
    if stage == "confirm":
        return wire.CONFIRMATION_BYTES
    if roster is None:
        return OneshotPlan.of(plan.sum_plan).summed_share_bytes
    return server.share_bytes(roster, client_id) if stage == "share" else wire.reply_bytes(roster.degree)


def _or_closed(read: Callable[Parameters, Result], *where: Parameters.args, **rest: Parameters.kwargs) -> Result:
    """Return what `read` finds of a round; raise `Problem` round-closed where it finds no such round any more."""
    try:
        return read(*where, **rest)
    except LookupError:
        raise Problem("round-closed", "the round is over and takes no more messages") from None


def already_stored(admission: StageAdmission, stored: StageMessageRow, digest: str) -> UploadOutcome:
    """Return the receipt of the stored message again when its SHA-256 is `digest`.

    Raises `Problem` contribution-conflict (409) otherwise: the first message stays.
    """
    if stored.digest != digest:
        raise Problem("contribution-conflict", "another message of this client is stored for the stage and stays")
    return UploadOutcome(admission.receipt(stored.length, digest), is_new=False)


async def store_message(
    services: Services, admission: StageAdmission, body: bytes, digest: str, binding: str = ""
) -> UploadOutcome:
    """Check the message of a stage and store it, in a group with others that arrive at the same time.

    binding: the header Round-Binding of an advertisement. Raises `ContributionError` (the sender's fault) when the
    message breaks a rule that the server can check, `Problem` contribution-conflict (409) when another one is stored,
    and as `admit_to_stage` when the stage ended meanwhile.
    """
    try:
        admission.check(body)  # less work than handing it to a thread
    except ContributionError as error:
        if admission.stage == "advertise" and binding:
            differs = await run_in_threadpool(_differing_binding, services.database, admission, binding)
            if differs:
                raise ContributionError(f"{error}: {differs}") from None
        raise
    write = NewMessage(admission, body, digest, services.clock)
    if admission.stage == "share" and len(body) > services.settings.tuning.inline_bytes:
        round_ = admission.round
        place = await services.packs.append(round_.task_id, round_.number, len(body), lambda: memoryview(body))
        write = replace(write, place=place)
    outcome = await services.deliveries.insert(write)
    if outcome.is_new:
        crash_point("stage.stored-before-ack")
    return outcome


def _differing_binding(database: Database, admission: StageAdmission, binding: str) -> str:
    task, round_ = admission.task, admission.round
    with database.read() as session:
        return differing_binding(session, task, round_, round_context(task, round_), binding)


_MESSAGES: Final = cast(Table, StageMessageRow.__table__)  # an ORM insert takes twice the time
_PARAMETERS: Final = {
    "stage": "stage_",
    "client_id": "client",
    "digest": "digest_",
    "length": "length_",
    "stored_at": "now",
    "body": "body_",
    "blob_key": "key",
    "blob_start": "start",
}
"""Column of a message: parameter of the statement that inserts it."""
_IS_OPEN: Final = RoundRow.state == bindparam("state"), RoundRow.deadline > bindparam("now", type_=Float)
_IS_NEW: Final = ~(
    select(StageMessageRow.round_id)
    .where(StageMessageRow.round_id == bindparam("round"), StageMessageRow.stage == bindparam("stage_"))
    .where(StageMessageRow.client_id == bindparam("client"))
    .exists()
)
_IDENTITIES: Final = select(ClientRow.id).where(
    ClientRow.task_id == bindparam("task"), ClientRow.identity_key.in_([bindparam("mask_key"), bindparam("seal_key")])
)
"""Clients whose identity key is one of the two keys that a client advertises."""


@cache
def _insert_after(before: StagePart) -> Insert:
    """Return the statement that inserts a message into a masked round, where the client did the part `before`.

    It inserts nothing if the round takes no such message, the client sent one, or advertises somebody's identity key.
    """
    values = {name: bindparam(parameter, type_=_MESSAGES.c[name].type) for name, parameter in _PARAMETERS.items()}
    conditions = [*_IS_OPEN, did_part(before), _IS_NEW, *([~_IDENTITIES.exists()] if before == "asked" else [])]
    locked = select(RoundRow.id, *values.values()).where(RoundRow.id == bindparam("round"), *conditions)
    return insert(_MESSAGES).from_select(["round_id", *values], locked.with_for_update(read=True, of=RoundRow))


@dataclass(frozen=True, eq=False)
class NewMessage:
    """The message of a stage, to be inserted in a transaction (`Database.transact`)."""

    admission: StageAdmission
    body: bytes
    digest: str
    """SHA-256, hex."""
    clock: Clock
    place: Place | None = None
    """Where the body is in a pack; None: it becomes a part of the row."""

    def __call__(self, session: Session) -> UploadOutcome:
        """Insert with one statement; only when it inserts nothing, find out why.

        The round is locked in share mode until the commit: a message is stored before its stage ends, or refused.
        """
        admission, now = self.admission, self.clock.now()
        round_, client_id, before = admission.round, admission.client.client_id, prerequisite(admission.round)
        row = {
            "round": round_.id,
            "state": STATE_FOR[admission.stage],
            "stage_": admission.stage,
            "client": client_id,
            "digest_": self.digest,
            "length_": len(self.body),
            "now": now,
            "body_": self.body if self.place is None else None,
            "key": self.place and self.place.key,
            "start": self.place and self.place.start,
        }
        if admission.stage == "advertise":
            mask_key, seal_key = map(agreement_key, wire.decode_advertisement(self.body).keys)
            row |= {"task": round_.task_id, "mask_key": mask_key, "seal_key": seal_key}
        if round_.committee or before is None or changed_rows(session, _insert_after(before), row) == 0:
            stored = _find_obstacle(session, admission, row)
            if stored is not None:
                return already_stored(admission, stored, self.digest)
            values = {name: row[parameter] for name, parameter in _PARAMETERS.items()}
            session.execute(insert(_MESSAGES), {"round_id": round_.id, **values})
        progress(session, Delivery(round_.task_id, round_.id, admission.stage, client_id))
        return UploadOutcome(admission.receipt(len(self.body), self.digest), is_new=True)


def _find_obstacle(session: Session, admission: StageAdmission, row: Mapping[str, Any]) -> StageMessageRow | None:
    """Return the message that is stored already; raise `Problem` or `ContributionError` for another obstacle.

    Locks the round and the client's place in the cohort until the commit: another message of the same client waits.
    """
    client_id = admission.client.client_id
    round_ = lock_round_shared(session, admission.round.id, client_id)
    stored = find_message(session, round_.id, admission.stage, client_id)
    if stored is not None:
        return stored
    _check_may_send(session, round_, admission.stage, client_id, row["now"])
    if round_.committee and proposed_survivors(session, round_.id) != admission.survivors:
        raise ContributionError("another set of survivors was proposed meanwhile: fetch the statements again")
    # All members would refuse it. Keys that two clients advertise are found when the roster is made.
    if admission.stage == "advertise" and session.execute(_IDENTITIES, row).first() is not None:
        raise ContributionError("a key of the round is the identity key of a client: make new keys for each round")
    return None


Fetched = Literal["roster", "inbox"]
"""What clients of a masked round fetch, since it is long and differs between them; other handouts are in the view."""


def handed_out(
    database: Database, blobs: BlobStore, principal: Principal, task_id: str, number: int, kind: Fetched
) -> tuple[bytes, str]:
    """Return body and SHA-256 (hex) of what the server hands out to a client of the roster.

    Raises `Problem`: 404 before it exists and once the round is over, 403 not-in-cohort for other clients.
    """
    client = member_of(principal, task_id)
    with database.read() as session:
        round_ = _masked_round(session, task_id, number)
        if not takes_part(session, round_.id, "advertise", client.client_id):
            raise Problem(
                "not-in-cohort", "this client does not take part in this round, or is left over by its equal groups"
            )
        is_active = round_.state in ACTIVE
    found = None
    if kind == "inbox":
        found = _stored_inbox(database, blobs, round_.id, client.client_id)
    elif is_active:
        with suppress(LookupError):  # there is none yet
            found = _Rosters(roster_of(database, round_.id)).of(client.client_id)
    if found is None:
        raise Problem("not-found", "the round has nothing of this kind for the client, not yet or no longer")
    return found


def _stored_inbox(database: Database, blobs: BlobStore, round_id: int, client_id: str) -> tuple[bytes, str] | None:
    """Return what `StoredInboxes.of` returns; None also if the round ended after its row was read."""

    def look() -> tuple[bytes, str] | None:
        return StoredInboxes(database, blobs, round_id, client_id).of(client_id)

    try:
        return look()
    except BlobMissingError:
        return look()


class _Rosters:
    """What the members of a masked round are handed out as the roster; of its digest, the part of all is made once."""

    def __init__(self, roster: Roster) -> None:
        self.roster, self._state = roster, hashlib.sha256(roster.body)

    def of(self, client_id: str) -> tuple[bytes, str] | None:
        """Return the roster with the keys of a member's neighbours, and its SHA-256 (hex); None for no member."""
        try:
            body = self.roster.handout(client_id)
        except ParameterError:
            return None
        state = self._state.copy()
        state.update(memoryview(body)[len(self.roster.body) :])
        return body, state.hexdigest()


async def handed_out_cached(
    services: Services, principal: Principal, task_id: str, number: int, kind: Fetched
) -> tuple[bytes, str]:
    """Return body and SHA-256 (hex) of what `handed_out` returns; the roster is read once for all that fetch it."""
    client = member_of(principal, task_id)
    cached_round = await services.task_cache.current_round(task_id)
    if cached_round is not None and cached_round.has(number, client.client_id, "advertise"):
        round_ = cached_round.stages()[1]
        own = None
        if kind == "roster" and round_.state != RoundState.ADVERTISING:
            own = (await _rosters(services.database, cached_round)).of(client.client_id)
        elif kind == "inbox" and round_.state not in (RoundState.ADVERTISING, RoundState.SHARING):
            inboxes = await _inboxes(services.database, services.blobs, cached_round)
            with suppress(BlobMissingError):  # the round may have ended elsewhere
                own = await run_in_threadpool(inboxes.of, client.client_id)
        if own is not None:
            return own
    where = services.database, services.blobs
    return await run_in_threadpool(handed_out, *where, principal, task_id, number, kind)
