"""The ledger of released sums, whose rows are never deleted; what a privacy block promises, and has spent on them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from aggregator_service.problems import Problem
from aggregator_service.storage.schema import ClientRow, ContributionRow, RoundRow, TaskRow
from aggregator_service.tasks.choice_checks import held_against
from aggregator_service.tasks.plans import StoredTerms, plan_task, row_terms
from protocols.messages import LedgerEntry, LedgerPage, Schedule
from protocols.messages.privacy import NOT_HIDDEN, RELEASED, PrivacyView, SumNoiseView
from protocols.privacy.noise import epsilon_of
from protocols.recipes.evaluation_curve import MODEL_ROUND
from protocols.recipes.private import Private


def task_ledger(session: Session, task: TaskRow, after: int, limit: int) -> LedgerPage:
    """Return at most `limit` released sums of a task after round `after`."""
    query = select(RoundRow).where(RoundRow.task_id == task.id, RoundRow.state == "complete", RoundRow.number > after)
    rows = session.scalars(query.order_by(RoundRow.number).limit(limit + 1)).all()
    return LedgerPage(entries=[_entry(task, row, None) for row in rows[:limit]], more=len(rows) > limit)


def client_ledger(session: Session, task: TaskRow, client_id: str, after: int, limit: int) -> LedgerPage:
    """Return at most `limit` released sums after round `after` that contain a contribution of this client.

    Those of rounds whose rows of members are deleted are not listed (`tasks.tidying`).
    """
    query = select(RoundRow, ContributionRow.digest).join(ContributionRow, ContributionRow.round_id == RoundRow.id)
    query = query.where(RoundRow.task_id == task.id, RoundRow.state == "complete", RoundRow.number > after)
    query = query.where(ContributionRow.client_id == client_id)
    rows = session.execute(query.order_by(RoundRow.number).limit(limit + 1)).all()
    entries = [_entry(task, row, digest) for row, digest in rows[:limit]]
    return LedgerPage(
        entries=entries, more=len(rows) > limit, complete_after=0 if task.privacy is not None else task.tidied_upto
    )


def _entry(task: TaskRow, round_: RoundRow, contribution: str | None) -> LedgerEntry:
    return LedgerEntry(
        round=round_.number,
        step=round_.sum_index,
        recipe=task.recipe_name,
        mechanism=task.mechanism_name,
        data_set=task.data_set,
        survivors=round_.survivors,
        survivors_digest=round_.survivors_digest or "",
        released_at=round_.released_at or 0.0,
        contribution_digest=contribution,
    )


def measurements(session: Session, task: TaskRow) -> list[dict[str, float]]:
    """Return the figures of each measurement, oldest first; empty without evaluation, and where members open the sums.

    A figure's name is that of a metric, such as hr@10, or says of which model and how many clients.
    """
    if task.evaluation is None or task.opened_by != "anyone":
        return []
    query = select(RoundRow.report).where(RoundRow.task_id == task.id, RoundRow.state == "complete")
    reports = session.scalars(query.order_by(RoundRow.number))
    return [dict(report) for report in reports if report and MODEL_ROUND in report]


class Spent(NamedTuple):
    """What an open task has spent of its budget."""

    task: str
    """Its name."""
    spent: float
    budget: float
    """Epsilon."""


def privacy_view(session: Session, task: TaskRow) -> PrivacyView:
    """Return the promise of a task's privacy block and what is spent; `Problem` not-found (404) without a block."""
    terms, schedule = row_terms(task), Schedule.model_validate(task.schedule)
    plan = plan_task(terms)
    recipe = plan.recipe
    if not isinstance(recipe, Private):
        raise Problem("not-found", "the task has no privacy block: its sums hold no noise")
    of_task = ClientRow.task_id == task.id
    largest = session.execute(select(func.max(ClientRow.times_contributed)).where(of_task)).scalar_one() or 0
    reached = of_task, ClientRow.times_contributed >= recipe.terms.sums, ClientRow.revoked_at.is_(None)
    spent = _epsilon(terms, largest)
    return PrivacyView(
        terms=recipe.privacy,
        honest_clients=recipe.terms.honest,
        multiplier=recipe.multiplier,
        most_sums=recipe.terms.sums,
        released_sums=task.completed_rounds,
        largest_epsilon=spent,
        spent_members=session.execute(select(func.count()).select_from(ClientRow).where(*reached)).scalar_one(),
        sums=[_noise(recipe, sum_index, schedule.min_clients) for sum_index in recipe.sum_kinds()],
        against=[held_against(plan, schedule, recipe.privacy.corrupt), RELEASED, NOT_HIDDEN],
    )


def _noise(recipe: Private, sum_index: int, min_clients: int) -> SumNoiseView:
    noise = recipe.noise(sum_index)
    return SumNoiseView(
        sum_index=sum_index,
        bound=noise.bound,
        share_variance=noise.share,
        deviation=noise.deviation(min_clients),
    )


def spent_budgets(session: Session) -> Iterator[Spent]:
    """Yield what each open task with a privacy block has spent."""
    largest = func.max(ClientRow.times_contributed)
    query = select(TaskRow, largest).join(ClientRow, ClientRow.task_id == TaskRow.id, isouter=True)
    query = query.where(TaskRow.state == "open", TaskRow.privacy.is_not(None)).group_by(TaskRow.id)
    for task, contributions in session.execute(query):
        terms = row_terms(task)
        yield Spent(task.name, _epsilon(terms, contributions or 0), _private(terms).privacy.epsilon)


@lru_cache(maxsize=256)
def _epsilon(terms: StoredTerms, contributions: int) -> float:
    """Return what so many contributions cost at the block's delta."""
    recipe = _private(terms)
    return epsilon_of(recipe.cost(contributions), recipe.privacy.delta)


def _private(terms: StoredTerms) -> Private:
    recipe = plan_task(terms).recipe
    if not isinstance(recipe, Private):
        raise TypeError("these terms have no privacy block")
    return recipe
