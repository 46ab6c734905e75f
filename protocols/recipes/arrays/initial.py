"""Initial values that an operator uploads with an `arrays` task: the state of round 0, its digest in the terms."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.errors import ParameterError
from protocols.recipes.arrays.recipe import Arrays
from protocols.recipes.arrays.state import state_of
from protocols.recipes.base import Recipe

__all__ = ["initial_parameters", "shapes_of"]


def shapes_of(arrays: Mapping[str, NDArray[np.floating]]) -> dict[str, list[int]]:
    """Return the parameter `shapes` for these arrays."""
    return {name: list(array.shape) for name, array in arrays.items()}


def initial_parameters(
    recipe: Recipe, parameters: Mapping[str, Any], arrays: Mapping[str, NDArray[np.floating]]
) -> tuple[dict[str, Any], bytes]:
    """Return `parameters` with `initial`, and the encoded state of round 0 with the values of `arrays`.

    recipe: made from `parameters`. Raises `ParameterError`, naming the array, for arrays that are not the recipe's, and
    for another recipe than `arrays`.
    """
    if not isinstance(recipe, Arrays):
        raise ParameterError(f"recipe {recipe.name!r} takes no initial values: only 'arrays' does")
    body = recipe.encode_state(state_of(recipe.parameters, arrays))
    return {**parameters, "initial": {"digest": hashlib.sha256(body).hexdigest()}}, body
