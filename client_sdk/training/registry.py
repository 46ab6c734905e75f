"""The client side of each recipe."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from client_sdk.training.arrays import ArraysHalf
from client_sdk.training.base import ClientHalf, TrainingConfig, training_for
from client_sdk.training.evaluated import EvaluatedHalf
from client_sdk.training.factors import FactorHalf
from client_sdk.training.fair import FairConfig, FairHalf
from client_sdk.training.mf import MFConfig
from client_sdk.training.pfedclr import PFedCLRConfig, PFedCLRHalf
from client_sdk.training.rfrec import RFRecHalf
from client_sdk.training.topk import TopKHalf
from protocols.errors import ParameterError
from protocols.recipes.arrays.recipe import Arrays
from protocols.recipes.base import Recipe
from protocols.recipes.evaluated import Evaluated
from protocols.recipes.fair.recipe import Fair
from protocols.recipes.item_counts import BiasedParameters
from protocols.recipes.pfedclr import PFedCLR
from protocols.recipes.privirec.recipe import PriviRecK
from protocols.recipes.rfrec.recipe import RFRec
from protocols.recipes.rows import FactorRecipe
from protocols.recipes.topk.recipe import TopKRecipe

__all__ = ["client_half"]

C = TypeVar("C", bound=TrainingConfig)


def task_training(name: str, p: BaseModel, given: TrainingConfig | None, kind: type[C]) -> C:
    """Return `given`, or the training settings of the task's parameters `p`, with `kind`'s defaults for the others.

    Raises `ParameterError` for settings of another class.
    """
    if given is None and isinstance(p, BiasedParameters):
        return kind(**p.training_settings())
    return training_for(name, given, kind)


def client_half(recipe: Recipe, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientHalf:
    """Return the client side of `recipe`.

    training: training settings, the defaults of the recipe if None. graph_filter: for PriviRec, a name from
    `client_sdk.filters.FILTERS`; the default for the recipe if None. Raises `ParameterError` for an unknown recipe, and
    for settings that the recipe does not have.
    """
    if isinstance(recipe, Evaluated):
        return EvaluatedHalf(recipe, client_half(recipe.inner, training, graph_filter))
    if graph_filter is not None and not isinstance(recipe, PriviRecK):
        raise ParameterError(f"recipe {recipe.name!r} has no graph filter: leave it out")
    if isinstance(recipe, Arrays):
        if training is not None:
            raise ParameterError("the application trains the arrays itself: leave out the training settings")
        return ArraysHalf(recipe)
    if isinstance(recipe, TopKRecipe):
        return TopKHalf(recipe, training_for(recipe.name, training, MFConfig))
    if isinstance(recipe, Fair):
        return FairHalf(recipe, training_for(recipe.name, training, FairConfig))
    if isinstance(recipe, FactorRecipe):
        return FactorHalf(recipe, task_training(recipe.name, recipe.parameters, training, MFConfig))
    if isinstance(recipe, PFedCLR):
        return PFedCLRHalf(recipe, task_training(recipe.name, recipe.parameters, training, PFedCLRConfig))
    if isinstance(recipe, RFRec):
        if training is not None:
            raise ParameterError(
                f"the task determines how recipe {recipe.name!r} trains: leave out the training settings"
            )
        return RFRecHalf(recipe)
    if isinstance(recipe, PriviRecK):
        # Imported here, because it needs scipy, which takes half a second to import.
        from client_sdk.training.privirec import PriviRecHalf, matching_filter

        return PriviRecHalf(recipe, matching_filter(recipe, graph_filter))
    raise ParameterError(f"this client does not support recipe {recipe.name!r}")
