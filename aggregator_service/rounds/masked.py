"""The stages of a masked round: end a stage and hand out its result, in one transaction, so that a restart resumes it.

The rows hold the state (which client sent what); the rules are those of `protocols.sums.masked.server`. A stage ends
when all clients that it waits for have sent their message, or at its deadline. When the thresholds are not met, the
round fails and the next one starts with new keys.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from aggregator_service.compute.unmasking import Masks
from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.round_states import RoundEvent
from aggregator_service.rounds.cohorts import least_cohort, retire_at_fault
from aggregator_service.rounds.disputes import add_disputes, disputes_in, kept_apart
from aggregator_service.rounds.transactions import (
    LostRaceError,
    Stages,
    enforce_min_difference,
    enforce_routes,
    fail_round,
)
from aggregator_service.storage.blobs import BlobStore
from aggregator_service.storage.database import Database, announce
from aggregator_service.storage.round_rows import lock_round_exclusive
from aggregator_service.storage.schema import ClientRow, RoundRow, StageMessageRow, TaskRow
from aggregator_service.storage.stage_rows import (
    Handout,
    PackedInboxes,
    StoredShares,
    add_handout,
    clients_with,
    find_handout,
    handed_out_bytes,
    message_bodies,
)
from aggregator_service.tasks.joining import holds_certificate
from aggregator_service.tasks.plans import plan_round
from protocols.crypto.certificates import NO_CERTIFICATE
from protocols.crypto.sealing import agreement_key
from protocols.errors import AtFaultError, ParameterError, ThresholdError
from protocols.messages.stages import RoundState
from protocols.sums.masked import server
from protocols.sums.masked.plan import MaskedPlan, RoundContext
from protocols.sums.masked.roster import Roster, RosterEntry, make_roster, open_roster
from protocols.sums.masked.wire import decode_advertisement

_LOG = logging.getLogger(__name__)
_RANDOM = secrets.SystemRandom()


def round_context(task: TaskRow, round_: RoundRow) -> RoundContext:
    """Return the context that all messages of a masked round are bound to."""
    return RoundContext(
        task_id=task.id,
        round_number=round_.number,
        round_seed=round_.seed,
        plan=MaskedPlan.of(plan_round(task, round_).sum_plan),
        model_digest=round_.model_digest or b"",
        cohort=round_.cohort,
    )


@lru_cache(maxsize=8)
def roster_of(database: Database, round_id: int) -> Roster:
    """Return the roster of an active round; it never changes, so it is cached. `LookupError` when there is none."""
    with database.read() as session:
        round_ = session.get_one(RoundRow, round_id)
        return _roster(session, session.get_one(TaskRow, round_.task_id), round_)


@lru_cache(maxsize=8)
def survivors_of(database: Database, round_id: int) -> server.SurvivorSet:
    """Return what clients confirm in a round whose collecting is over: it never changes then, so it is cached.

    `LookupError` when the round is over.
    """
    roster = roster_of(database, round_id)
    with database.read() as session:
        return server.SurvivorSet.of(
            roster, *(session.scalars(clients_with(round_id, part)) for part in ("share", "contribute"))
        )


def _roster(session: Session, task: TaskRow, round_: RoundRow) -> Roster:
    handout = find_handout(session, round_.id, "roster")
    if handout is None:
        raise LookupError("this round has no roster")
    return open_roster(round_context(task, round_), handout.body)


def fail_at_fault(session: Session, task: TaskRow, round_: RoundRow, error: AtFaultError, now: float) -> None:
    """Fail a masked round that clients made fail, and retire them: later cohorts do without them.

    Each such failure leaves fewer clients that can cause another.
    """
    retire_at_fault(session, error.clients, round_)
    fail_round(session, task, round_, RoundEvent.STAGE_MISSED, str(error), now)
    announce(session, task.id, "members")


def _check_min_clients(stage: str, present: int, floor: int) -> None:
    """Check the task's `min_clients`, or that all are back in a repeated round, besides the masked sum's thresholds.

    present: clients in the smallest group.
    """
    if present < floor:
        raise ThresholdError(stage, floor, present)


def _check_confirmers(roster: Roster, survivors: int) -> None:
    """Raise `ParameterError` if the same data are summed again, and clients would not confirm so few survivors."""
    plan = roster.context.plan
    quorum = plan.quorum(len(roster))
    if plan.repeated and survivors < quorum:
        raise ParameterError(
            f"all sums are over the same data, and clients confirm none over {survivors} clients: {quorum} are needed"
        )


def _bytes_handed_out(session: Session, task: TaskRow, round_: RoundRow, event: RoundEvent) -> int:
    """Return the bytes that all clients together fetch after a stage; of the roster each gets its neighbours' keys."""
    kind = _HANDED_OUT[event]
    if kind != "roster":
        return handed_out_bytes(session, round_, kind)
    roster = _roster(session, task, round_)
    return len(roster) * len(roster.handout(roster.entries[0].client_id))


def _close_roster(session: Session, task: TaskRow, round_: RoundRow, floor: int, now: float) -> RoundEvent | None:
    advertised = message_bodies(session, round_.id, "advertise")
    found = session.scalars(select(ClientRow).where(ClientRow.id.in_(clients_with(round_.id, "advertise")))).all()
    uncertified = {client.id for client in found if not holds_certificate(task, client, now)}
    refused = uncertified | _with_shared_keys(advertised)
    _drop_advertisements(session, round_, refused)
    clients = [client for client in found if client.id not in refused]
    groups = plan_round(task, round_).sum_plan.groups
    spare = _RANDOM.sample(clients, len(clients) % groups)  # groups are equal, so that all have the same threshold
    _drop_advertisements(session, round_, [client.id for client in spare])
    clients = [client for client in clients if client not in spare]
    _check_min_clients("advertising", len(clients) // groups, floor)
    if not enforce_routes(session, task, round_, "advertise", RoundEvent.STAGE_MISSED, now):
        return None
    entries = [
        RosterEntry(
            client_id=client.id,
            identity_key=client.identity_key,
            mailbox_key=client.mailbox_key,
            certificate=client.certificate or NO_CERTIFICATE,
            advertisement=advertised[client.id],
        )
        for client in clients
    ]
    roster = make_roster(round_context(task, round_), entries)
    _check_confirmers(roster, len(roster))
    add_handout(session, round_.id, "roster", roster.whole)
    return RoundEvent.ROSTER_CLOSED


def _with_shared_keys(advertised: Mapping[str, bytes]) -> set[str]:
    """Clients that advertised a key which another client advertised, too: a roster that held them would be refused."""
    keys = {
        client: [agreement_key(key) for key in decode_advertisement(body).keys] for client, body in advertised.items()
    }
    seen = Counter(key for pair in keys.values() for key in pair)
    return {client for client, pair in keys.items() if any(seen[key] > 1 for key in pair)}


def _drop_advertisements(session: Session, round_: RoundRow, clients: Collection[str]) -> None:
    """Leave these clients out of the round: they count as dropouts."""
    row = StageMessageRow
    for client in clients:
        _LOG.warning("client left out of the roster", extra=fields(round=round_.number, client=client))
        session.execute(delete(row).where(row.round_id == round_.id, row.client_id == client))


@dataclass(frozen=True)
class Inboxes:
    """What the sharers of a round sealed for each other, written for each of them."""

    sharers: frozenset[str]
    packed: PackedInboxes


def write_inboxes(database: Database, blobs: BlobStore, round_: RoundRow) -> Inboxes:
    """Write the inboxes of the clients that have shared so far: none if they are too few, or the round is over.

    Call it outside of transactions. Raises `BlobDamagedError`, and `BlobsUnavailableError`.
    """
    shares = StoredShares(database, blobs, round_.id)
    bodies: Iterable[tuple[str, bytes]] = ()
    with suppress(LookupError, ThresholdError):  # whoever ends the stage finds the same
        roster = roster_of(database, round_.id)
        server.check_sharers(roster, shares.keys())
        bodies = server.inboxes(roster, shares)
    return Inboxes(frozenset(shares), PackedInboxes(blobs, round_, bodies))


def _hand_out_shares(
    inboxes: Inboxes, session: Session, task: TaskRow, round_: RoundRow, floor: int, _now: float
) -> RoundEvent:
    sharers = frozenset(session.scalars(clients_with(round_.id, "share")))
    roster = _roster(session, task, round_)
    _check_min_clients("sharing", roster.smallest_group(roster.indices(sharers)), floor)
    server.check_sharers(roster, sharers)
    if sharers != inboxes.sharers:
        raise LostRaceError
    inboxes.packed.add(session)
    return RoundEvent.SHARES_HANDED_OUT


def _fix_survivors(session: Session, task: TaskRow, round_: RoundRow, floor: int, now: float) -> RoundEvent | None:
    sharers = session.scalars(clients_with(round_.id, "share")).all()
    survivors = session.scalars(clients_with(round_.id, "contribute")).all()
    roster = _roster(session, task, round_)
    _check_min_clients("collecting", roster.smallest_group(roster.indices(survivors)), floor)
    server.check_survivors(roster, sharers, survivors)
    _check_confirmers(roster, len(survivors))
    if _fail_for_disputes(session, task, round_, roster, sharers, now):
        return None
    if not enforce_routes(session, task, round_, "contribute", RoundEvent.STAGE_MISSED, now):
        return None
    if not enforce_min_difference(session, task, round_, now):
        return None
    add_handout(session, round_.id, "survivors", roster.encode_set(survivors))
    return RoundEvent.SURVIVORS_TO_CONFIRM if round_.confirms else RoundEvent.SURVIVORS_KNOWN


def report_shares(session: Session, round_id: int, reporter: str, owners: Collection[str], now: float) -> RoundRow:
    """Store that the shares which `owners` sealed for their neighbour `reporter` do not open; return the round.

    The round fails as soon as that is certain and somebody is at fault, otherwise when collecting ends. Idempotent.
    Raises `Problem`: 409 round-closed unless contributions are collected, 422 invalid-parameters for others than
    neighbours that shared.
    """
    task, round_ = lock_round_exclusive(session, round_id)
    if round_.state != RoundState.COLLECTING or round_.committee:
        raise Problem("round-closed", f"the round is {round_.state}: shares are reported before contributions")
    roster, sharers = _roster(session, task, round_), session.scalars(clients_with(round_id, "share")).all()
    neighbours = {roster.entries[place].client_id for place in roster.neighbours_of(roster.index(reporter))}
    if not neighbours.intersection(sharers).issuperset(owners):
        raise Problem("invalid-parameters", "a client reports only shares of its neighbours that shared")
    if add_disputes(session, round_id, owners, reporter):
        for owner in owners:
            _LOG.warning(
                "sealed shares do not open, says their holder",
                extra=fields(task=task.id, round=round_.number, client=owner, holder=reporter),
            )
        if server.at_fault(roster, disputes_in(session, round_id)):
            _fail_for_disputes(session, task, round_, roster, sharers, now)
    return round_


def _fail_for_disputes(
    session: Session, task: TaskRow, round_: RoundRow, roster: Roster, sharers: Collection[str], now: float
) -> bool:
    """Fail a round in which a sharer has fewer than t good shares, and retire who is at fault; return if it fails."""
    disputes = disputes_in(session, round_.id)
    short = server.short_of_shares(roster, sharers, disputes)
    if not short:
        return False
    guilty = server.at_fault(roster, disputes)
    retire_at_fault(session, guilty, round_)
    least, members = least_cohort(session, task, plan_round(task, round_)), [one.client_id for one in roster.entries]
    parted = len(kept_apart(session, task.id, members, least)) < len(members)
    reason = f"the shares that {', '.join(short)} sealed do not open for so many neighbours that too few are left. "
    reason += (
        f"At fault, and retired: {', '.join(sorted(guilty))}"
        if guilty
        else "Who is at fault is not known: those in dispute are not asked together again"
    )
    fail_round(session, task, round_, RoundEvent.STAGE_MISSED, reason, now, counts=not (guilty or parted))
    announce(session, task.id, "members")
    return True


def _hand_out_confirmations(session: Session, task: TaskRow, round_: RoundRow, _floor: int, _now: float) -> RoundEvent:
    sharers = session.scalars(clients_with(round_.id, "share")).all()
    survivors = session.scalars(clients_with(round_.id, "contribute")).all()
    confirmed = message_bodies(session, round_.id, "confirm")
    roster = _roster(session, task, round_)
    server.check_confirmed(roster, sharers, survivors, confirmed.keys())
    add_handout(session, round_.id, "confirmations", server.confirmations(roster, confirmed))
    return RoundEvent.CONFIRMED


_HANDED_OUT: Final[Mapping[RoundEvent, Handout]] = {
    RoundEvent.ROSTER_CLOSED: "roster",
    RoundEvent.SHARES_HANDED_OUT: "inbox",
    RoundEvent.SURVIVORS_TO_CONFIRM: "survivors",
    RoundEvent.SURVIVORS_KNOWN: "survivors",
    RoundEvent.CONFIRMED: "confirmations",
}
MASKED_STAGES: Final = Stages(
    {
        RoundState.ADVERTISING: _close_roster,
        RoundState.COLLECTING: _fix_survivors,
        RoundState.CONFIRMING: _hand_out_confirmations,
    },
    _bytes_handed_out,
)
"""The stages of a masked round but for `sharing`."""


def sharing(inboxes: Inboxes) -> Stages:
    """Return the stage in which clients share; its end adds `inboxes`, or raises `LostRaceError`: others shared."""
    return Stages({RoundState.SHARING: partial(_hand_out_shares, inboxes)}, _bytes_handed_out)


def read_masks(database: Database, blobs: BlobStore, round_: RoundRow) -> Masks:
    """Return all that a worker needs to remove the masks: of what clients sealed for each other, one is read at a time.

    Raises `LostRaceError` when the round is over, `ThresholdError` when a secret has too few replies, and
    `BlobDamagedError`.
    """
    with database.read() as session:
        context = round_context(session.get_one(TaskRow, round_.task_id), round_)
        handout = find_handout(session, round_.id, "roster")
        sharers, survivors = (tuple(session.scalars(clients_with(round_.id, part))) for part in ("share", "contribute"))
        replies = message_bodies(session, round_.id, "unmask")
    if handout is None:
        raise LostRaceError
    shares = StoredShares(database, blobs, round_.id)
    held = server.collect_shares(open_roster(context, handout.body), sharers, shares.items(), survivors, replies)
    return Masks(context, handout.body, sharers, survivors, held)
