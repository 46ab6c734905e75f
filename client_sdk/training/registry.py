"""Client halves by recipe."""

from __future__ import annotations

from client_sdk.training.base import ClientHalf, TrainingConfig, training_for
from client_sdk.training.factors import FactorHalf
from client_sdk.training.fair import FairConfig, FairHalf
from client_sdk.training.mf import MFConfig
from client_sdk.training.pfedclr import PFedCLRConfig, PFedCLRHalf
from client_sdk.training.rfrec import RFRecHalf
from client_sdk.training.topk import TopKHalf
from protocols.errors import ParameterError
from protocols.recipes.base import Recipe
from protocols.recipes.fair.recipe import Fair
from protocols.recipes.pfedclr import PFedCLR
from protocols.recipes.privirec.recipe import PriviRecK
from protocols.recipes.rfrec.recipe import RFRec
from protocols.recipes.rows import FactorRecipe
from protocols.recipes.topk.recipe import TopKRecipe

__all__ = ["client_half"]


def client_half(recipe: Recipe, training: TrainingConfig | None = None, graph_filter: str | None = None) -> ClientHalf:
    """What a client does for `recipe`; `ParameterError` for unknown ones.

    training: for the recipes that train. graph_filter: for those that aggregate a spectrum, a name from
    `client_sdk.filters.FILTERS`; what fits the recipe when None.
    """
    if graph_filter is not None and not isinstance(recipe, PriviRecK):
        raise ParameterError(
            f"recipe {recipe.name!r} recommends by what it trained: there is no graph filter to choose"
        )
    if isinstance(recipe, TopKRecipe):
        return TopKHalf(recipe, training_for(recipe.name, training, MFConfig))
    if isinstance(recipe, Fair):
        return FairHalf(recipe, training_for(recipe.name, training, FairConfig))
    if isinstance(recipe, FactorRecipe):
        return FactorHalf(recipe, training_for(recipe.name, training, MFConfig))
    if isinstance(recipe, PFedCLR):
        return PFedCLRHalf(recipe, training_for(recipe.name, training, PFedCLRConfig))
    if isinstance(recipe, RFRec):
        if training is not None:
            raise ParameterError(f"how recipe {recipe.name!r} trains is part of the task: there is nothing to set here")
        return RFRecHalf(recipe)
    if isinstance(recipe, PriviRecK):
        # here, since it needs scipy: half a second that other recipes do not have to wait for
        from client_sdk.training.privirec import PriviRecHalf, fitting_filter

        return PriviRecHalf(recipe, fitting_filter(recipe, graph_filter))
    raise ParameterError(f"this client has no part to play in recipe {recipe.name!r}")
