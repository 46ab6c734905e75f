"""Items that rose: whose share of first lists grew most between two models, for an operator who looks for a lie.

A member that lies can promote an item within what groups and gate let pass (docs/security.md). Sums and measurements
do not show that; the lists that people would get do. They are computed here from two models and a public sample of
profiles, say a published data set or a few of the operator's own: no member's data are needed. An item may rise for
good reasons, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from client_sdk.agreement.terms import TaskTerms
from client_sdk.history import History
from client_sdk.model.sync import read_snapshot
from client_sdk.operator import Operator
from client_sdk.rounds.newest import top_items
from client_sdk.training import client_side
from protocols.errors import ParameterError
from protocols.layout import Floats
from protocols.recipes.base import ModelState, Recipe

LIST: Final = 10
"""Length of a first list."""


@dataclass(frozen=True)
class Rise:
    """An item."""

    item: int
    before: float
    after: float
    """Share of the profiles without it that have it in their first list, by the two models."""


@dataclass(frozen=True)
class Risen:
    """The items that rose most, most first."""

    before: int
    after: int
    """The rounds of the two models."""
    profiles: int
    """Number of them."""
    items: tuple[Rise, ...]


def risen(operator: Operator, task: str, profiles: Sequence[History], most: int = 10, length: int = LIST) -> Risen:
    """Return the items of a task that rose most from the model before the newest to the newest.

    task: id or name. profiles: what some people have, with the task's item numbers. most: items at most; only those
    that rose. length: of a first list. Raises `ParameterError` without a profile, for a task of several device groups,
    for one whose models only members can open, and until there are two models.
    """
    terms = TaskTerms.of(operator.task(task))
    if terms.opened_by != "anyone" or terms.recipe.device_groups > 1:
        raise ParameterError(f"the models of task {terms.name!r} cannot be read by its operator as a whole")
    models = operator.models(terms.task_id, terms.recipe.longest_state_bytes(), 2)
    if len(models) < 2:
        raise ParameterError(f"task {terms.name!r} has fewer than two models so far: come back after the next round")
    after, before = (read_snapshot(terms, None, None, view, body).state for view, body in models)
    rises = rises_between(terms.recipe, terms.seed, before, after, profiles, length)
    return Risen(before.round_number, after.round_number, len(profiles), rises[:most])


def rises_between(
    recipe: Recipe, seed: bytes, before: ModelState, after: ModelState, profiles: Sequence[History], length: int = LIST
) -> tuple[Rise, ...]:
    """Return the items that rose between two models, by how much, then by number. seed: the task's."""
    if not profiles:
        raise ParameterError("items rise in the lists of somebody: give at least one profile")
    first, second = (_shares(recipe, seed, state, profiles, length) for state in (before, after))
    order = np.argsort(first - second, kind="stable")
    return tuple(
        Rise(item, float(first[item]), float(second[item])) for item in order.tolist() if second[item] > first[item]
    )


def _shares(recipe: Recipe, seed: bytes, state: ModelState, profiles: Sequence[History], length: int) -> Floats:
    """Return, for each item, the share of the profiles without it whose first list has it; draws are the same."""
    side, spec = client_side(recipe), recipe.round_spec(seed, max(1, state.round_number))
    listed = lacking = np.zeros(0)
    for index, history in enumerate(profiles):
        draws = np.random.default_rng([index, 1])
        prepared = side.prepare(spec, state, history, draws)
        scores = side.scores(state, prepared, history)
        if not listed.size:
            listed, lacking = np.zeros(scores.size), np.zeros(scores.size)
        best = top_items(scores, history.items, min(length, scores.size - history.items.size))
        listed[best.items] += 1.0
        lacking += 1.0
        lacking[history.items] -= 1.0
    return listed / np.maximum(lacking, 1.0)
