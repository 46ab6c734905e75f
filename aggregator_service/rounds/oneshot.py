"""The stages of a one-shot round after its contributions: the committee confirms one set of survivors, then unmasks.

The rows hold the state; the rules are those of `protocols.sums.oneshot.server`. A stage ends when every member that it
waits for has answered, or at its deadline. The round fails when fewer than t members answered. The keys that absent
members published for later rounds are deleted then, so that no further round opens without them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from aggregator_service.compute.unmasking import OneshotMasks
from aggregator_service.logs import fields
from aggregator_service.problems import Problem
from aggregator_service.round_states import RoundEvent, next_state
from aggregator_service.rounds.cohorts import count_contributions, least_cohort, remaining_clients, retire_at_fault
from aggregator_service.rounds.disputes import (
    add_disputes,
    disputes_in,
    reported_by_many,
    with_readable_shares,
    with_unreadable_shares,
)
from aggregator_service.rounds.transactions import Stages, enforce_min_difference, fail_round
from aggregator_service.storage.database import Database, announce, changed_rows, discard, in_batches
from aggregator_service.storage.round_rows import cohort_clients, entered_states, find_round, lock_round_exclusive
from aggregator_service.storage.schema import ClientRow, ContributionRow, HandoutRow, RoundRow, TaskRow
from aggregator_service.storage.stage_rows import (
    StagePart,
    add_handout,
    clients_with,
    count_of,
    find_handout,
    handed_out_bytes,
    message_bodies,
    takes_part,
)
from aggregator_service.tasks.committee_keys import (
    committee_keys,
    delete_later_keys,
    each_statement,
    statement_bytes,
)
from aggregator_service.tasks.plans import plan_round
from protocols.codec import Reader
from protocols.messages import Schedule
from protocols.messages.stages import RoundState
from protocols.sums.groups import group_of_each
from protocols.sums.oneshot.committee import Committee, join_confirmations, make_committee
from protocols.sums.oneshot.plan import OneshotContext, OneshotPlan
from protocols.sums.oneshot.wire import CommitteeKey, Statement, survivors_digest

_LOG: Final = logging.getLogger(__name__)


def oneshot_context(task: TaskRow, round_: RoundRow) -> OneshotContext:
    """Return the context to which all messages of a one-shot round are bound."""
    return OneshotContext(
        task_id=task.id,
        round_number=round_.number,
        step=round_.sum_index,
        plan=OneshotPlan.of(plan_round(task, round_).sum_plan),
        model_digest=round_.model_digest or b"",
        cohort=round_.cohort,
    )


@lru_cache(maxsize=8)
def committee_of(database: Database, task_id: str, number: int) -> Committee:
    """Return the committee of a round; it never changes, so it is cached. `LookupError` when there is none any more."""
    with database.read() as session:
        round_ = find_round(session, task_id, number)
        keys = [] if round_ is None else committee_keys(session, round_.id)
        if round_ is None or not keys:
            raise LookupError("this round has no committee, or it is no longer kept")
        return _committee(session.get_one(TaskRow, task_id), round_, keys)


def _committee(task: TaskRow, round_: RoundRow, keys: Collection[bytes]) -> Committee:
    """Return the committee; certificates were checked when the keys were stored, and when the round opened."""
    return make_committee(oneshot_context(task, round_), map(CommitteeKey.decode, keys), lambda _: True)


def _end_collecting(session: Session, task: TaskRow, round_: RoundRow, _floor: int, now: float) -> RoundEvent | None:
    return RoundEvent.SURVIVORS_TO_CONFIRM if _propose(session, task, round_, now) else None


def _propose(session: Session, task: TaskRow, round_: RoundRow, now: float, *, counts: bool = True) -> bool:
    """Store the digest of the contributions' set, for the committee to confirm; return False if the round failed."""
    plan = OneshotPlan.of(plan_round(task, round_).sum_plan)
    contributed, _ = statement_bytes(session, round_.id)
    floor = round_.cohort if round_.again else Schedule.model_validate(task.schedule).min_clients * plan.groups
    if contributed < floor:
        reason = f"{contributed} of {round_.cohort} clients contributed in time, but {floor} are needed"
        fail_round(session, task, round_, RoundEvent.STAGE_MISSED, reason, now, counts=counts)
        return False
    if not enforce_min_difference(session, task, round_, now):
        return False
    stated = (Statement.read(plan, Reader(statement)) for statement in each_statement(session, round_.id))
    digest = survivors_digest(stated)
    session.execute(delete(HandoutRow).where(HandoutRow.round_id == round_.id, HandoutRow.kind == "survivors"))
    add_handout(session, round_.id, "survivors", digest)
    return True


def _hand_out_confirmations(
    session: Session, task: TaskRow, round_: RoundRow, _floor: int, now: float
) -> RoundEvent | None:
    confirmed = message_bodies(session, round_.id, "confirm")
    if len(confirmed) < OneshotPlan.of(plan_round(task, round_).sum_plan).threshold:
        fail_committee_absent(session, task, round_, now)
        return None
    body = join_confirmations(session.scalars(clients_with(round_.id, "committee")).all(), confirmed)
    add_handout(session, round_.id, "confirmations", body)
    return RoundEvent.CONFIRMED


def _handed_out_bytes(session: Session, task: TaskRow, round_: RoundRow, _event: RoundEvent) -> int:
    """Return the bytes that the committee gets in the round's state, if all of it does."""
    if round_.state == RoundState.UNMASKING:
        return handed_out_bytes(session, round_, "confirmations")
    survivors, length = statement_bytes(session, round_.id)
    sealed = survivors * OneshotPlan.of(plan_round(task, round_).sum_plan).sealed_bytes
    return round_.committee * (length + sealed)


ONESHOT_STAGES: Final = Stages(
    {RoundState.COLLECTING: _end_collecting, RoundState.CONFIRMING: _hand_out_confirmations}, _handed_out_bytes
)


def proposed_survivors(session: Session, round_id: int) -> bytes | None:
    """Return the digest of the set that the committee is asked to confirm; None before there is one."""
    found = find_handout(session, round_id, "survivors")
    return None if found is None else found.body


def grouped_survivors(database: Database, round_id: int, groups: int) -> tuple[bytes, Mapping[str, int]]:
    """Return the digest of the proposed set of a round with groups, and the group of each of its clients.

    Raises `LookupError` when there is none.
    """
    with database.read() as session:
        survivors = proposed_survivors(session, round_id)
    if survivors is None:
        raise LookupError("this round has no proposed survivors")
    return survivors, _groups(database, round_id, groups, survivors)


@lru_cache(maxsize=8)
def _groups(database: Database, round_id: int, groups: int, survivors: bytes) -> Mapping[str, int]:
    """Return the group of each client of a proposed set; `LookupError` when another set is proposed meanwhile."""
    with database.read() as session:
        task_id = session.get_one(RoundRow, round_id).task_id
        clients = session.scalars(clients_with(round_id, "contribute")).all()
        if proposed_survivors(session, round_id) != survivors:
            raise LookupError("another set of survivors is proposed")
    return group_of_each(task_id, clients, groups)


def fail_committee_absent(session: Session, task: TaskRow, round_: RoundRow, now: float) -> None:
    """Fail a round in which too few members of the committee answered, and delete the absent ones' later keys.

    The failure does not count towards `max_failed_rounds`: the next round opens only when members publish keys again.
    """
    members = count_of(session, round_.id, "committee")
    answered = count_of(session, round_.id, "unmask" if round_.state == RoundState.UNMASKING else "confirm")
    absent = absent_members(session, round_)
    threshold = OneshotPlan.of(plan_round(task, round_).sum_plan).threshold
    delete_later_keys(session, task.id, round_.number, absent)
    reason = (
        f"{round_.state}: {answered} of {members} members of the committee answered in time, but {threshold} "
        "are needed. The task waits until those that did not, or others, publish keys again"
    )
    for member in absent:
        _LOG.warning("member of the committee absent", extra=fields(task=task.id, round=round_.number, client=member))
    fail_round(session, task, round_, RoundEvent.COMMITTEE_ABSENT, reason, now, counts=False)


def absent_members(session: Session, round_: RoundRow) -> list[str]:
    """Return the members that did not answer in the last stage of the committee that a round came to; [] before it.

    A member that reported shares of the proposed set, and so could not answer, was there.
    """
    states = {row.state for row in entered_states(session, round_.id)}
    if RoundState.CONFIRMING not in states:
        return []
    stage: StagePart = "unmask" if RoundState.UNMASKING in states else "confirm"
    members, answered = (set(session.scalars(clients_with(round_.id, part))) for part in ("committee", stage))
    present = set(session.scalars(clients_with(round_.id, "contribute")))
    return sorted(
        members - answered - {reporter for owner, reporter in disputes_in(session, round_.id) if owner in present}
    )


def report_sealed_shares(
    session: Session, round_id: int, member_id: str, survivors: bytes, clients: Collection[str], now: float
) -> RoundRow:
    """Store that a member of the committee cannot open the shares of some clients; return the round.

    survivors: digest of the proposed set. If fewer than t members can open all shares of it, clients leave it
    (`disputes`): the smaller set is proposed if no member has confirmed, otherwise the round fails. Idempotent. Raises
    `Problem`: conflict (409) when the round does not confirm this set, or this member has confirmed it,
    invalid-parameters (422) for a client that did not contribute.
    """
    task, round_ = lock_round_exclusive(session, round_id)
    present, named = set(session.scalars(clients_with(round_id, "contribute"))), set(clients)
    if proposed_survivors(session, round_id) != survivors and present.isdisjoint(named):
        return round_  # this request was answered before, or another member named the same clients
    if round_.state != RoundState.CONFIRMING or proposed_survivors(session, round_id) != survivors:
        raise Problem("conflict", "the round does not wait for confirmations of this set of survivors")
    if takes_part(session, round_id, "confirm", member_id):
        raise Problem("conflict", "this member has confirmed this set of survivors")
    if not named.issubset(cohort_clients(session, round_id)):
        raise Problem("invalid-parameters", "only clients of the round can be named")
    named &= present
    if not add_disputes(session, round_id, named, member_id):
        return round_
    for client in sorted(named):
        _LOG.warning(
            "a sealed share does not open, says a member of the committee",
            extra=fields(task=task.id, round=round_.number, client=client, member=member_id),
        )
    plan = OneshotPlan.of(plan_round(task, round_).sum_plan)
    retire_at_fault(session, named & reported_by_many(session, task.id, plan.parameters.corrupt), round_)
    announce(session, task.id, "round", "members")
    leaving = with_unreadable_shares(session, round_, plan.threshold)
    if leaving:
        _leave_out(session, task, round_, leaving, now)
    return round_


def _leave_out(session: Session, task: TaskRow, round_: RoundRow, leaving: Collection[str], now: float) -> None:
    """Propose the set without `leaving`, or fail the round; a failure counts only if the next cohort could be the same.

    Nobody knows whether a client or a member is at fault, so no client is retired here.
    """
    schedule, cohort = Schedule.model_validate(task.schedule), cohort_clients(session, round_.id)
    members = session.scalars(clients_with(round_.id, "committee")).all()
    planned = plan_round(task, round_)
    threshold, least = OneshotPlan.of(planned.sum_plan).threshold, least_cohort(session, task, planned)
    able = remaining_clients(session, task, select(ClientRow.id).where(ClientRow.id.in_(cohort)))
    changes = len(with_readable_shares(session, task.id, able, members, threshold, least)) < len(cohort)
    if count_of(session, round_.id, "confirm"):
        reason = (
            f"{', '.join(leaving)}: fewer than {threshold} members of the committee say that they can open the shares "
            "of all clients, and a member had confirmed the set"
        )
        fail_round(session, task, round_, RoundEvent.STAGE_MISSED, reason, now, counts=not changes)
        return
    count_contributions(session, task, round_.id, leaving)
    _remove_contributions(session, round_, leaving)
    if _propose(session, task, round_, now, counts=not changes):
        round_.state = next_state(round_.state, RoundEvent.CLIENTS_TAKEN_OUT).value
        round_.deadline = now + schedule.stage_seconds


def _remove_contributions(session: Session, round_: RoundRow, clients: Collection[str]) -> None:
    """Delete contributions; the partial sum, which may contain them, is made anew from the others."""
    row = ContributionRow
    for some in in_batches(clients):
        gone = delete(row).where(row.round_id == round_.id, row.client_id.in_(some))
        for key, start in session.execute(gone.returning(row.blob_key, row.blob_start)):
            if start is None:  # a pack holds contributions of others
                discard(session, key)
    if round_.folded:
        changed_rows(session, update(row).where(row.round_id == round_.id).values(folded=False))
        discard(session, round_.partial_key)
        round_.partial_key = round_.partial_digest = None
        round_.folded = 0
    session.flush()


def read_oneshot_masks(session: Session, round_: RoundRow) -> OneshotMasks | None:
    """Return all that a worker needs to take the masks off; None if fewer than t members sent a summed share."""
    task = session.get_one(TaskRow, round_.task_id)
    context = oneshot_context(task, round_)
    shares, survivors = message_bodies(session, round_.id, "unmask"), proposed_survivors(session, round_.id)
    if len(shares) < context.plan.threshold or survivors is None:
        return None
    return OneshotMasks(context, tuple(committee_keys(session, round_.id)), survivors, shares)
