"""Sums that were not opened although their survivors were fixed: whom the next round asks, and for which sum.

Clients that agreed to a set of survivors agree to no other one for the same sum (`client_sdk.store.states`;
in one-shot rounds the members of the committee that sent their share, `client_sdk.committee.record`). So a new cohort
could not open that sum.

| class of the sum (`protocols.layout`) | after a round that failed with fixed survivors | the next round |
|---|---|---|
| `once`, `trained` | some did not answer; all survivors are members | the same sum, of exactly them; `REPEATS` times |
| `trained` | all answered, a survivor left, not all came back; or groups | the sum is abandoned: next sum, new cohort |
| `once` | the same | the same sum, of others; where too few are left, it is abandoned. The survivors count as counted |
| `repeated` | any | the same sum, of the survivors: their set counts like a released one (`same_data`) |
| `repeated`, in groups | any | none: the survivors would be in other groups, and later sums need this one |

After a restore from a backup the server asks for sums that its clients took part in before. They do not know over whom
any more, and refuse (`survivors`, before their first message). A sum of class `trained` that too few others are left
for is abandoned as well, so that the task goes on with the sums that they did not take part in.

A measurement of the model is abandoned after `REPEATS` + 1 failed rounds of any kind, and when its cohort is too small:
a task does not end because its model cannot be measured.

None of these failures counts towards `max_failed_rounds`: the number of sums of the schedule bounds them.

The next sum of a lying server gives it nothing new. It could as well publish a model that did not change, and ask for
the next sum by the schedule: values of class `trained` depend on fresh randomness, whatever the model is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_service.logs import fields
from aggregator_service.rounds.cohorts import least_cohort, mark_retired, remaining_clients
from aggregator_service.rounds.same_data import retire_if_too_similar
from aggregator_service.storage.database import announce
from aggregator_service.storage.round_rows import (
    entered_states,
    find_round,
    fit_reason,
    has_fixed_survivors,
    refusals_by_reason,
)
from aggregator_service.storage.schema import RoundRow, TaskRow
from aggregator_service.storage.stage_rows import StagePart, clients_with, count_of
from aggregator_service.tasks.membership import able_to_add
from aggregator_service.tasks.plans import plan_round, plan_task, row_terms
from protocols.messages import Schedule
from protocols.messages.stages import RoundState

_LOG = logging.getLogger(__name__)
REPEATS: Final = 2
"""How often the same clients are asked for a sum again."""


@dataclass(frozen=True)
class Repeated:
    """A sum that is asked again of the same clients."""

    first: int
    """Number of the round that fixed them first."""
    clients: list[str]


def repeat_or_abandon(session: Session, task: TaskRow, previous: RoundRow | None) -> Repeated | None:
    """Return of whom the task's last sum is asked again; None if a cohort is chosen for `task.next_sum`.

    previous: the task's newest round; it is over. Abandons the last sum, in this transaction, if nobody can open it
    any more. The task is then over if the schedule has no other sum.
    """
    if previous is None or previous.state != RoundState.FAILED or previous.sum_index != task.next_sum:
        return None
    if previous.sum_data == "held-out" and _attempts(session, previous) > REPEATS:
        abandon_sum(session, task, previous.number)
        return None
    if _is_taken(session, task, previous):
        abandon_sum(session, task, previous.number)
        return None
    fixed = has_fixed_survivors(session, previous)
    if previous.again is None and not fixed:
        return None
    if plan_round(task, previous).sum_class.repeated:
        if fixed and plan_round(task, previous).sum_plan.groups > 1:
            _fail_unsplit(session, task, previous)
        elif fixed:
            _retire_absent(session, task, previous)
        return None
    first = previous.number if previous.again is None else previous.again
    alike = plan_round(task, previous).sum_plan.groups == 1  # other groups of the same clients would be other sums
    if alike and fixed and previous.number - first < REPEATS and not _all_answered(session, task, previous):
        clients = remaining_clients(session, task, clients_with(previous.id, "contribute"))
        if len(clients) == count_of(session, previous.id, "contribute"):
            return Repeated(first, clients)
    abandon_sum(session, task, first)
    return None


def _fail_unsplit(session: Session, task: TaskRow, failed: RoundRow) -> None:
    """End a task whose sum in groups, which its other sums need, is not asked again. failed: its round."""
    task.state = "failed"
    task.ended = fit_reason(
        "the survivors of its sum in groups were fixed, and it was not opened. They are not asked again: they would be "
        "in other groups, and the sums of both together could be of few clients: create a new task. "
        f"Round {failed.number}: {failed.failure}"
    )
    session.flush()
    announce(session, task.id, "round", "members", "snapshot")
    _LOG.warning("task failed: %s", task.ended, extra=fields(task=task.id))


def _is_taken(session: Session, task: TaskRow, round_: RoundRow) -> bool:
    """Whether so many of a round's clients took part in its sum before that too few are left for it.

    As many clients that lie about it could keep silent instead.
    """
    if round_.sum_rule != "trained" or has_fixed_survivors(session, round_):
        return False
    refused = refusals_by_reason(session, [round_.id]).get(round_.id, {}).get("survivors", 0)
    return round_.cohort - refused < least_cohort(session, task, plan_round(task, round_))


def _all_answered(session: Session, task: TaskRow, round_: RoundRow) -> bool:
    """Whether nobody was missing: the sum cannot be right, and asking the same clients again cannot help."""
    contributed = count_of(session, round_.id, "contribute")
    needed = plan_round(task, round_).sum_plan.answers_needed(contributed)
    return count_of(session, round_.id, "unmask") >= needed


def _attempts(session: Session, round_: RoundRow) -> int:
    """Return how many rounds were of the sum of `round_`."""
    same = RoundRow.task_id == round_.task_id, RoundRow.sum_index == round_.sum_index
    return session.execute(select(func.count()).select_from(RoundRow).where(*same)).scalar_one()


def abandon_sum(session: Session, task: TaskRow, first: int) -> None:
    """Go on with the next sum of the schedule, if there is one. first: round in which this one failed first."""
    schedule, plan = Schedule.model_validate(task.schedule), plan_task(row_terms(task), task.next_sum)
    if plan.sum_class.once and able_to_add(session, task, plan, task.next_sum) >= least_cohort(session, task, plan):
        return  # the others can be counted in this sum
    _LOG.warning("sum abandoned", extra=fields(task=task.id, round=first, sum=task.next_sum))
    task.abandoned_sums += 1
    if task.next_sum > schedule.rounds:
        task.state = "complete" if task.completed_rounds else "failed"
    session.flush()
    announce(session, task.id, "round", "members", "snapshot")


def _retire_absent(session: Session, task: TaskRow, round_: RoundRow) -> None:
    """Retire those who did not answer in a masked round, if it was the last of `REPEATS` over one frozen cohort.

    As many others leave as the minimum difference requires. Without this, a member that never answers would keep a
    frozen cohort from opening any sum.
    """
    asked = [round_] if round_.confirms else []
    while asked and len(asked) <= REPEATS:
        before = find_round(session, task.id, asked[-1].number - 1)
        if before is None or not _missed_again(session, before, asked[-1]):
            return
        asked.append(before)
    answer: StagePart = "unmask" if count_of(session, round_.id, "unmask") else "confirm"
    answered = set(session.scalars(clients_with(round_.id, answer)))
    absent = set(session.scalars(clients_with(round_.id, "contribute"))) - answered
    if not asked or not absent or not answered:
        return
    retire_if_too_similar(session, task, round_, present=answer)
    mark_retired(session, absent, round_.number)


def _missed_again(session: Session, before: RoundRow, after: RoundRow) -> bool:
    """Whether two rounds fixed the same survivors of the same sum, and both failed when a deadline was over."""
    ends = [entered_states(session, round_.id)[-1].entered_at for round_ in (before, after)]
    survivors = [count_of(session, round_.id, "contribute") for round_ in (before, after)]
    return (
        before.sum_index == after.sum_index
        and has_fixed_survivors(session, before)
        and survivors[0] == survivors[1]
        and ends[0] >= before.deadline
        and ends[1] >= after.deadline
    )


def counts_as_failure(session: Session, task: TaskRow, round_: RoundRow) -> bool:
    """Return whether a round that fails now counts towards `max_failed_rounds`.

    A round with fixed survivors, or one that asks for a sum again, does not, nor one for a sum that its clients took
    part in before, unless the next one would ask the same clients for ever: all of a frozen cohort have answered, and
    nobody was found at fault.
    """
    if round_.sum_data == "held-out" or _is_taken(session, task, round_):
        return False
    if not has_fixed_survivors(session, round_):
        return round_.again is None
    return plan_round(task, round_).sum_class.repeated and _all_answered(session, task, round_)
