"""Recipe, mechanism and sum plans of a task, rebuilt from its parameters and kept: lengths never come from the wire."""

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
    """What fixes a plan, as plain values that travel to a fold worker; parameters are canonical JSON."""

    recipe_name: str
    recipe_parameters: str
    mechanism_name: str
    mechanism_parameters: str
    cohort_size: int


@dataclass(frozen=True)
class TaskPlan:
    """What is summed, how, and with which lengths."""

    recipe: Recipe
    mechanism: Mechanism
    sum_plan: SumPlan

    def route(self, spec: RoundSpec, client_id: str) -> Route:
        """The blocks that this client feeds in this round."""
        return self.recipe.route(spec, client_id)

    def contribution_bytes(self, spec: RoundSpec, client_id: str) -> int:
        """Exact length of this client's contribution in this round."""
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
    """The terms of a task; equal terms share one plan."""
    return TaskTerms(
        recipe_name,
        _canonical(recipe_parameters),
        mechanism_name,
        _canonical(mechanism_parameters),
        schedule.cohort_size,
    )


def row_terms(task: TaskRow) -> TaskTerms:
    """The terms of a stored task, the public key that its holder published among them."""
    schedule = Schedule.model_validate(task.schedule)
    parameters: Mapping[str, Any] = task.mechanism_parameters
    how = mechanism(task.mechanism_name)
    if task.public_key is not None and isinstance(how, NamesPublicKey):
        parameters = how.name_public_key(parameters, task.public_key)
    return task_terms(task.recipe_name, task.recipe_parameters, task.mechanism_name, parameters, schedule)


def plan_task(terms: TaskTerms, sum_index: int = 1) -> TaskPlan:
    """What sum `sum_index` of a task is: equal layouts share one plan.

    `ParameterError`, `BudgetError` or `CombinationError` says what cannot work.
    """
    return _plan(terms, _recipe(terms.recipe_name, terms.recipe_parameters).layout(sum_index))


def plan_round(task: TaskRow, round_: RoundRow) -> TaskPlan:
    """What a stored round sums."""
    return plan_task(row_terms(task), round_.sum_index)


@lru_cache(maxsize=64)
def _recipe(name: str, parameters: str) -> Recipe:
    return recipe(name, json.loads(parameters))


@lru_cache(maxsize=64)
def _plan(terms: TaskTerms, layout: VectorLayout) -> TaskPlan:
    what, how = _recipe(terms.recipe_name, terms.recipe_parameters), mechanism(terms.mechanism_name)
    check_combination(what, how.name)
    return TaskPlan(what, how, how.plan(json.loads(terms.mechanism_parameters), layout, terms.cohort_size))


def round_spec(round_: RoundRow) -> RoundSpec:
    """The broadcast of a stored round."""
    return RoundSpec(round_.number, round_.seed, round_.sum_index)
