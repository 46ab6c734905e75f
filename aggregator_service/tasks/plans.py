"""Plans: recipe, mechanism and sum plan of a task, rebuilt from its parameters and cached.

Exact lengths follow from the plan, never from a request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from aggregator_service.storage.schema import RoundRow, TaskRow
from protocols.layout import Route, VectorLayout
from protocols.messages import Schedule
from protocols.recipes.base import Recipe, RoundSpec
from protocols.recipes.registry import check_combination, recipe
from protocols.sums.base import Mechanism, NamesPublicKey, SumPlan
from protocols.sums.registry import mechanism

__all__ = ["TaskPlan", "TaskTerms", "plan_round", "plan_task", "round_spec", "row_terms", "task_terms"]


@dataclass(frozen=True)
class TaskTerms:
    """The values that determine a plan, picklable for worker processes. Parameters are canonical JSON."""

    recipe_name: str
    recipe_parameters: str
    mechanism_name: str
    mechanism_parameters: str
    cohort_size: int


@dataclass(frozen=True)
class TaskPlan:
    """What a task sums (recipe), how (mechanism), and with which lengths (sum plan)."""

    recipe: Recipe
    mechanism: Mechanism
    sum_plan: SumPlan

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """Return the blocks to which this client contributes in a round."""
        return self.recipe.route(spec, client_id)

    def contribution_bytes(self, spec: RoundSpec, client_id: str) -> int:
        """Return the exact length in bytes of this client's contribution in a round."""
        return self.sum_plan.contribution_bytes(self.route(spec, client_id))


def _canonical(parameters: Mapping[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True, separators=(",", ":"))


def task_terms(
    recipe_name: str,
    recipe_parameters: Mapping[str, Any],
    mechanism_name: str,
    mechanism_parameters: Mapping[str, Any],
    schedule: Schedule,
) -> TaskTerms:
    """Return the terms of a task. Equal terms share one cached plan."""
    return TaskTerms(
        recipe_name,
        _canonical(recipe_parameters),
        mechanism_name,
        _canonical(mechanism_parameters),
        schedule.cohort_size,
    )


def row_terms(task: TaskRow) -> TaskTerms:
    """Return the terms of a stored task, with the public key that its holder published, if any."""
    schedule = Schedule.model_validate(task.schedule)
    parameters: Mapping[str, Any] = task.mechanism_parameters
    how = mechanism(task.mechanism_name)
    if task.public_key is not None and isinstance(how, NamesPublicKey):
        parameters = how.name_public_key(parameters, task.public_key)
    return task_terms(task.recipe_name, task.recipe_parameters, task.mechanism_name, parameters, schedule)


def plan_task(terms: TaskTerms, sum_index: int = 1) -> TaskPlan:
    """Return the plan of sum `sum_index` of a task. Sums with equal layouts share one cached plan.

    Raises `ParameterError`, `BudgetError` or `CombinationError` when the terms cannot work.
    """
    return _plan(terms, _recipe(terms.recipe_name, terms.recipe_parameters).layout(sum_index))


def plan_round(task: TaskRow, round_: RoundRow) -> TaskPlan:
    """Return the plan of a stored round."""
    return plan_task(row_terms(task), round_.sum_index)


@lru_cache(maxsize=64)
def _recipe(name: str, parameters: str) -> Recipe:
    return recipe(name, json.loads(parameters))


@lru_cache(maxsize=64)
def _plan(terms: TaskTerms, layout: VectorLayout) -> TaskPlan:
    summed, how = _recipe(terms.recipe_name, terms.recipe_parameters), mechanism(terms.mechanism_name)
    check_combination(summed, how.name)
    return TaskPlan(summed, how, how.plan(json.loads(terms.mechanism_parameters), layout, terms.cohort_size))


def round_spec(round_: RoundRow) -> RoundSpec:
    """Return the specification of a stored round: number, seed and sum index."""
    return RoundSpec(round_.number, round_.seed, round_.sum_index)
