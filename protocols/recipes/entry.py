"""The entry of a recipe: everything that the server and the clients need to find and combine it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocols.capabilities import ALL, Capability
from protocols.errors import ParameterError
from protocols.recipes.base import ItemParameters, Recipe, RecipeParameters

__all__ = ["RecipeEntry"]


@dataclass(frozen=True)
class RecipeEntry:
    """One recipe.

    name: the name by which tasks choose it. parameters: the model of its parameters. make: returns the recipe for
    validated parameters. half: "module:function" of its client half, which only clients import; the function is called
    with the recipe, the training settings and the name of a graph filter (both None where the user gave none).
    version: raised when equal parameters mean something else than before; server and clients must agree on it.
    needs: what a mechanism must be able to do. why_not: why mechanisms that cannot are impossible. source: where the
    recipe comes from, for the page of parameters. Raises `ParameterError` for an unknown capability.
    """

    name: str
    parameters: type[RecipeParameters]
    make: Callable[[Any], Recipe]
    half: str
    version: int = 1
    needs: frozenset[Capability] = frozenset[Capability]({"dense"})
    why_not: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        unknown = sorted(self.needs - ALL)
        if unknown:
            raise ParameterError(f"recipe {self.name!r} needs {unknown[0]!r}: choose from {', '.join(sorted(ALL))}")

    @property
    def has_items(self) -> bool:
        """Whether the model is about numbered items, which it scores."""
        return issubclass(self.parameters, ItemParameters)
