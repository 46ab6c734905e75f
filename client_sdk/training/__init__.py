"""The client side of each recipe, found by the recipe's entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from client_sdk.training.base import ClientSide, TrainingConfig
from protocols.plugins import load
from protocols.recipes.base import Recipe
from protocols.recipes.evaluated import Evaluated
from protocols.recipes.registry import recipe_entry

MakesClientSide = Callable[[Recipe, TrainingConfig | None, str | None], ClientSide]
"""What `RecipeEntry.client_side` names: recipe, training settings, name of a graph filter -> client side.

Raises `ParameterError` for settings that the recipe does not have.
"""


def client_side(recipe: Recipe, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientSide:
    """Return the client side of `recipe`, which knows no noise: it is added to what the client side contributes.

    training: training settings, the defaults of the recipe if None. graph_filter: for PriviRec, a name from
    `graph_filters.FILTERS`; the default for the recipe if None. Raises `ParameterError` for an unknown recipe, and for
    settings that the recipe does not have.
    """
    measured = recipe.layer(Evaluated)
    if measured is not None:
        from client_sdk.training.evaluated import EvaluatedSide  # which only tasks with evaluation need

        return EvaluatedSide(measured, client_side(measured.inner, training, graph_filter))
    return cast(MakesClientSide, load(recipe_entry(recipe.name).client_side))(recipe.own, training, graph_filter)
