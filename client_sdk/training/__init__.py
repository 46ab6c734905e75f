"""The client side of each recipe, found by the recipe's entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from client_sdk.training.base import ClientHalf, TrainingConfig
from protocols.plugins import load
from protocols.recipes.base import Recipe
from protocols.recipes.evaluated import Evaluated
from protocols.recipes.registry import recipe_entry

MakesHalf = Callable[[Recipe, TrainingConfig | None, str | None], ClientHalf]
"""What `RecipeEntry.half` names: recipe, training settings, name of a graph filter -> client half.

Raises `ParameterError` for settings that the recipe does not have.
"""


def client_half(recipe: Recipe, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientHalf:
    """Return the client side of `recipe`, which knows no noise: it is added to what the client side contributes.

    training: training settings, the defaults of the recipe if None. graph_filter: for PriviRec, a name from
    `graph_filters.FILTERS`; the default for the recipe if None. Raises `ParameterError` for an unknown recipe, and for
    settings that the recipe does not have.
    """
    measured = recipe.layer(Evaluated)
    if measured is not None:
        from client_sdk.training.evaluated import EvaluatedHalf  # which only tasks with evaluation need

        return EvaluatedHalf(measured, client_half(measured.inner, training, graph_filter))
    return cast(MakesHalf, load(recipe_entry(recipe.name).half))(recipe.own, training, graph_filter)
