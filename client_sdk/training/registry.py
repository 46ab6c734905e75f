"""Client halves by recipe."""

from __future__ import annotations

from client_sdk.training.base import ClientHalf
from client_sdk.training.factors import FactorHalf
from client_sdk.training.mf import MFConfig
from protocols.errors import ParameterError
from protocols.recipes.base import Recipe
from protocols.recipes.rows import FactorRecipe

__all__ = ["client_half"]


def client_half(recipe: Recipe, training: MFConfig | None = None) -> ClientHalf:
    """What a client does for `recipe`; `training` is for the recipes that train. `ParameterError` for unknown ones."""
    if isinstance(recipe, FactorRecipe):
        return FactorHalf(recipe, training or MFConfig())
    raise ParameterError(f"this client has no part to play in recipe {recipe.name!r}")
