"""Plans: recipe, mechanism and sum plan of a task, rebuilt from its parameters and cached.

Exact lengths follow from the plan, never from a request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from protocols.contribution import plan_of_task
from protocols.layout import Route, SumClass, VectorLayout
from protocols.messages import Evaluation, Schedule
from protocols.messages.privacy import Privacy
from protocols.recipes.base import Recipe, RoundSpec, main_layout
from protocols.recipes.evaluated import with_evaluation
from protocols.recipes.private import Private, with_privacy
from protocols.recipes.registry import recipe
from protocols.sums.base import Mechanism, SumPlan
from protocols.sums.registry import mechanism
from protocols.task_terms import check_combination

if TYPE_CHECKING:  # workers make plans, too, and need no database
    from aggregator_service.storage.schema import RoundRow, TaskRow, TermsColumns


@dataclass(frozen=True)
class StoredTerms:
    """The values that determine a plan, picklable for worker processes. Parameters are canonical JSON."""

    recipe_name: str
    recipe_parameters: str
    mechanism_name: str
    mechanism_parameters: str
    cohort_size: int
    evaluation: tuple[str, int] | None = None
    """The evaluation block as JSON and the rounds of the schedule; None without one."""
    privacy: tuple[str, int, int] | None = None
    """The privacy block as JSON, and rounds and min_clients of the schedule; None without one."""


@dataclass(frozen=True)
class TaskPlan:
    """What a task sums (recipe), how (mechanism), and with which lengths (sum plan)."""

    recipe: Recipe
    mechanism: Mechanism
    sum_plan: SumPlan

    @property
    def sum_class(self) -> SumClass:
        """The class of the sum."""
        return self.sum_plan.layout.sum_class

    def upload_bytes(self, route: Route) -> int:
        """Return the exact length in bytes of an upload along `route`: of the ticket, if any, and the contribution."""
        return self.sum_plan.ticket_bytes + self.sum_plan.contribution_bytes(route)

    def contribution_bytes(self, spec: RoundSpec, client_id: str) -> int:
        """Return the exact length in bytes of this client's upload in a round."""
        return self.upload_bytes(self.recipe.route(spec, client_id))


def _canonical(parameters: Mapping[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True, separators=(",", ":"))


def task_terms(
    recipe_name: str,
    recipe_parameters: Mapping[str, Any],
    mechanism_name: str,
    mechanism_parameters: Mapping[str, Any],
    schedule: Schedule,
    evaluation: Evaluation | None = None,
    privacy: Privacy | None = None,
) -> StoredTerms:
    """Return the terms of a task. Equal terms share one cached plan."""
    return StoredTerms(
        recipe_name,
        _canonical(recipe_parameters),
        mechanism_name,
        _canonical(mechanism_parameters),
        schedule.cohort_size,
        None if evaluation is None else (evaluation.model_dump_json(), schedule.rounds),
        None if privacy is None else (privacy.model_dump_json(), schedule.rounds, schedule.min_clients),
    )


def row_terms(task: TermsColumns) -> StoredTerms:
    """Return the terms of a stored task, with the public key that its holder published, if any."""
    schedule = Schedule.model_validate(task.schedule)
    parameters: Mapping[str, Any] = task.mechanism_parameters
    method = mechanism(task.mechanism_name)
    if task.public_key is not None and method.names_public_key:
        parameters = method.name_public_key(parameters, task.public_key)
    return task_terms(
        task.recipe_name,
        task.recipe_parameters,
        task.mechanism_name,
        parameters,
        schedule,
        row_evaluation(task),
        row_privacy(task),
    )


def most_sums(task: TaskRow) -> int:
    """Return how many sums a task can release at most: of its schedule, its recipe, and its abandoned ones."""
    ends_after = plan_task(row_terms(task)).recipe.ends_after
    rounds = Schedule.model_validate(task.schedule).rounds
    return (rounds if ends_after is None else min(rounds, ends_after)) - task.abandoned_sums


def row_evaluation(task: TermsColumns) -> Evaluation | None:
    """Return the evaluation block of a stored task; None without one."""
    return None if task.evaluation is None else Evaluation.model_validate(task.evaluation)


def row_privacy(task: TermsColumns) -> Privacy | None:
    """Return the privacy block of a stored task; None without one."""
    return None if task.privacy is None else Privacy.model_validate(task.privacy)


def row_most_sums(task: TaskRow) -> int | None:
    """Return to how many sums of a stored task one member contributes at most; None without a privacy block."""
    if task.privacy is None:
        return None
    recipe = plan_task(row_terms(task)).recipe
    return recipe.terms.sums if isinstance(recipe, Private) else None


def keeps_best(task: TaskRow) -> bool:
    """Return whether a task ends with the best measured model instead of the newest."""
    evaluation = row_evaluation(task)
    return evaluation is not None and evaluation.keep == "best"


def check_terms(terms: StoredTerms) -> None:
    """Raise `CombinationError` if the recipe of a task cannot be combined with its mechanism."""
    check_combination(_recipe(terms), terms.mechanism_name)


def plan_task(terms: StoredTerms, sum_index: int | None = None, size: Sequence[int] = ()) -> TaskPlan:
    """Return the plan of sum `sum_index` of a task, or of the recipe's main sum if None.

    size: rows and columns, where they follow from earlier sums; () for the largest sum. Sums with equal layouts share
    one cached plan.

    Raises `ParameterError` or `BudgetError` when the terms cannot work. What may not be combined is checked by
    `check_terms` when a task is created.
    """
    summed = _recipe(terms)
    return _plan(terms, summed.layout(summed.main_sum if sum_index is None else sum_index, tuple(size)))


def plan_round(task: TaskRow, round_: RoundRow) -> TaskPlan:
    """Return the plan of a stored round."""
    return plan_task(row_terms(task), round_.sum_index, round_.size or ())


@lru_cache(maxsize=64)
def _recipe(terms: StoredTerms) -> Recipe:
    evaluation, privacy = terms.evaluation, terms.privacy
    block, rounds = (None, 0) if evaluation is None else (Evaluation.model_validate_json(evaluation[0]), evaluation[1])
    made = recipe(terms.recipe_name, json.loads(terms.recipe_parameters), noisy=privacy is not None)
    measured = with_evaluation(made, block, rounds)
    if privacy is None:
        return measured
    noise, rounds, min_clients = privacy
    return with_privacy(measured, Privacy.model_validate_json(noise), rounds, terms.cohort_size, min_clients)


@lru_cache(maxsize=64)
def _plan(terms: StoredTerms, layout: VectorLayout) -> TaskPlan:
    summed = _recipe(terms)
    method = mechanism(terms.mechanism_name)
    parameters = json.loads(terms.mechanism_parameters)
    return TaskPlan(summed, method, plan_of_task(method, parameters, layout, terms.cohort_size, main_layout(summed)))


def round_spec(round_: RoundRow) -> RoundSpec:
    """Return the specification of a stored round: number, seed, sum index, levels in use and size."""
    return RoundSpec(round_.number, round_.seed, round_.sum_index, tuple(round_.levels), tuple(round_.size or ()))
