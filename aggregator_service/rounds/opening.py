"""The transaction that opens a round: its plan, its keys and its cohort, the clients that are asked to contribute."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.round_states import ACTIVE, RoundEvent
from aggregator_service.rounds.cohorts import (
    draw_cohort,
    end_at_budget,
    enough_members,
    frozen_cohort,
    least_cohort,
    update_clients,
)
from aggregator_service.rounds.disputes import kept_apart, with_readable_shares
from aggregator_service.rounds.oneshot import absent_members
from aggregator_service.rounds.repeats import abandon_sum, repeat_or_abandon
from aggregator_service.rounds.transactions import fail_round
from aggregator_service.storage.database import announce
from aggregator_service.storage.round_rows import last_completed, last_round
from aggregator_service.storage.schema import ClientRow, CohortRow, CommitteeKeyRow, RoundRow, RoundStateRow, TaskRow
from aggregator_service.tasks.committee_keys import choose_committee, delete_keys_before
from aggregator_service.tasks.membership import able_members, able_to_add
from aggregator_service.tasks.plans import TaskPlan, plan_task, row_terms
from aggregator_service.tasks.starts import awaited_catalogue
from aggregator_service.tasks.task_views import agreed_digest
from protocols.crypto.aggregate_chain import extend_chain, first_chain
from protocols.messages import Schedule
from protocols.messages.stages import RoundState
from protocols.recipes.base import RoundSpec
from protocols.sums.registry import mechanism_entry
from protocols.task_terms import states_chain

_LOG = logging.getLogger(__name__)


def open_round(session: Session, task: TaskRow, now: float) -> RoundRow | None:
    """Open the next round of a task and draw its cohort.

    Returns None when a round is active, the task is over, its item catalogue is not uploaded, too few members can
    contribute, or the committee has not published the round's keys. A task also ends here when the last sum of its
    schedule is abandoned (`repeats`), when its privacy block pays for too few members (`end_at_budget`), and when too
    few clients of its frozen cohort are left. Each cohort has at least `least_cohort` clients.
    """
    previous = last_round(session, task.id)
    if task.state != "open" or (previous is not None and previous.state in ACTIVE) or awaited_catalogue(task):
        return None
    schedule = Schedule.model_validate(task.schedule)
    number = 1 if previous is None else previous.number + 1
    terms = row_terms(task)
    repeated = repeat_or_abandon(session, task, previous)
    if task.state != "open":
        return None
    sum_index = task.next_sum
    completed = last_completed(session, task.id)
    size = [] if completed is None else completed.next_size or []
    plan = plan_task(terms, sum_index, size)
    if repeated is None and end_at_budget(session, task, plan, sum_index):
        return None
    if repeated is None and _too_few_are_left(session, task, plan, sum_index, number, now):
        return open_round(session, task, now)
    committee = choose_committee(session, task, number, now) if plan.sum_plan.committee else []
    if committee is None:
        return None
    if repeated is not None:
        clients: list[str] | None = repeated.clients
    else:
        clients = _choose_cohort(session, task, plan, sum_index, first=previous is None)
        if clients and previous is not None and plan.sum_plan.committee:
            needed = plan.sum_plan.answers_needed(len(clients))
            clients = _with_readable_shares(
                session, task, previous, committee, clients, needed, least_cohort(session, task, plan)
            )
    if clients is None:
        return None
    spec = replace(plan.recipe.round_spec(task.seed, number, sum_index), size=tuple(size))
    levels = plan.recipe.levels_in_use(spec, clients, schedule.min_clients)
    interactive = plan.mechanism.interactive
    collects = mechanism_entry(task.mechanism_name).opens_in == RoundState.COLLECTING
    round_ = _add_round(
        session,
        task,
        plan,
        spec,
        now,
        seconds=schedule.collect_seconds if collects else schedule.stage_seconds,
        levels=list(levels),
        size=list(size),
        model_digest=agreed_digest(session, task, sum_index, completed, levels) if interactive else None,
        aggregate_chain=_chain_to_state(task, plan, completed),
        again=None if repeated is None else repeated.first,
        cohort=len(clients),
        committee=len(committee),
    )
    _write_cohort(session, round_, clients)
    for member in committee:
        member.round_id = round_.id
    if committee:
        delete_keys_before(session, task.id, number - 1)
    announce(session, task.id, "round")
    _LOG.info("round opened", extra=fields(task=task.id, round=number, cohort=len(clients)))
    return round_


def _add_round(
    session: Session, task: TaskRow, plan: TaskPlan, spec: RoundSpec, now: float, seconds: float, **more: Any
) -> RoundRow:
    """Add a round of a sum in its first state, which lasts `seconds`, and return its row. more: its other columns."""
    round_ = RoundRow(
        task_id=task.id,
        number=spec.number,
        state=mechanism_entry(task.mechanism_name).opens_in.value,
        sum_index=spec.sum_index,
        sum_rule=plan.sum_class.rule,
        sum_data=plan.sum_class.data,
        seed=spec.seed,
        confirms=plan.sum_plan.confirms,
        opened_at=now,
        deadline=now + seconds,
        **more,
    )
    session.add(round_)
    session.flush()
    session.add(RoundStateRow(round_id=round_.id, state=round_.state, entered_at=now))
    return round_


def _chain_to_state(task: TaskRow, plan: TaskPlan, completed: RoundRow | None) -> str | None:
    """Return the chain (hex) that the contributions of the next round state; None where they state nothing.

    completed: the last completed round, whose chain and digests are stored where contributions state them.
    """
    if not states_chain(plan.recipe, plan.mechanism.interactive, plan.sum_plan.opened_by):
        return None
    if completed is None:
        return first_chain(task.id).hex()
    before = bytes.fromhex(completed.aggregate_chain or "")
    digest, state = bytes.fromhex(completed.aggregate_digest or ""), bytes.fromhex(completed.state_digest or "")
    return extend_chain(before, completed.number, digest, state).hex()


def _with_readable_shares(
    session: Session,
    task: TaskRow,
    previous: RoundRow,
    committee: Sequence[CommitteeKeyRow],
    clients: Sequence[str],
    threshold: int,
    least: int,
) -> list[str]:
    """Leave out clients without which t members can open a sum, as long as `least` others are there (`disputes`).

    Members that did not answer in a round before, which failed, are not relied on, where t others are there.
    """
    absent = absent_members(session, previous) if previous.state == RoundState.FAILED else []
    members = [row.client_id for row in committee]
    here = [member for member in members if member not in absent]
    return with_readable_shares(
        session, task.id, clients, here if len(here) >= threshold else members, threshold, least
    )


def _too_few_are_left(session: Session, task: TaskRow, plan: TaskPlan, sum_index: int, number: int, now: float) -> bool:
    """End a task, or abandon its next sum, if too few clients are left for that sum; return whether it did.

    A frozen cohort gets no new clients: the task fails, but goes on without a measurement of its model. It also goes on
    without one for which no cohort can be drawn although enough members can train. Other sums wait for new members.
    plan: of the next sum. number: of the round that it would have.
    """
    sum_class, least = plan.sum_class, least_cohort(session, task, plan)
    frozen = frozen_cohort(session, task, plan) if sum_class.repeated else None
    if sum_class.data == "held-out":
        train = able_members(session, task, plan.recipe)[plan.recipe.device_group_of(sum_index)]
        left = able_to_add(session, task, plan, sum_index) if frozen is None else len(frozen)
        if left >= least or (frozen is None and train < Schedule.model_validate(task.schedule).min_clients):
            return False
        _fail_unasked(session, task, plan, sum_index, number, now, f"{left} clients are left, and {least} are needed")
        abandon_sum(session, task, number)
        return True
    if frozen is None or len(frozen) >= least:
        return False
    task.state = "failed"
    task.ended = (
        f"all its sums are over one cohort, of which {len(frozen)} clients are left, and a sum needs {least}: create a "
        "new task"
    )
    session.flush()
    announce(session, task.id, "round", "members", "snapshot")
    _LOG.warning("task failed: %s", task.ended, extra=fields(task=task.id))
    return True


def _fail_unasked(
    session: Session, task: TaskRow, plan: TaskPlan, sum_index: int, number: int, now: float, reason: str
) -> None:
    """Add a failed round that asked nobody: the sums of a task are never ahead of its rounds."""
    spec = plan.recipe.round_spec(task.seed, number, sum_index)
    round_ = _add_round(session, task, plan, spec, now, seconds=0.0, levels=[], cohort=0, committee=0)
    event = RoundEvent.DEADLINE_MISSED if round_.state == RoundState.COLLECTING else RoundEvent.STAGE_MISSED
    fail_round(session, task, round_, event, f"the model is not measured: {reason}", now, counts=False)


def _choose_cohort(session: Session, task: TaskRow, plan: TaskPlan, sum_index: int, *, first: bool) -> list[str] | None:
    """Return the client ids of the next cohort, at least `least_cohort`; None when too few members can contribute."""
    recipe, sum_class, least = plan.recipe, plan.sum_class, least_cohort(session, task, plan)
    frozen = frozen_cohort(session, task, plan) if sum_class.repeated else None
    if frozen is not None:
        return kept_apart(session, task.id, frozen, least)
    schedule, device_group = Schedule.model_validate(task.schedule), recipe.device_group_of(sum_index)
    able = able_members(session, task, recipe, sum_class, sum_index)
    if not enough_members(schedule, able, device_group, least, first=first):
        return None
    return kept_apart(session, task.id, draw_cohort(session, task, plan, sum_index, least), least)


def _write_cohort(session: Session, round_: RoundRow, clients: Sequence[str]) -> None:
    """Insert the rows of a cohort and count how often each of its members was asked."""
    session.execute(insert(CohortRow), [{"round_id": round_.id, "client_id": client} for client in clients])
    update_clients(session, clients, times_asked=ClientRow.times_asked + 1)
