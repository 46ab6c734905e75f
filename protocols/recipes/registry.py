"""Recipes by name: ours, in the table below, and those of installed packages (`protocols.plugins`).

A recipe is found by its entry, which holds everything that the server and the clients need to find and combine it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import ValidationError

from protocols.errors import ParameterError
from protocols.parameter_text import first_fault
from protocols.plugins import ALL, RECIPE_GROUP, Capability, load, places
from protocols.recipes.base import ItemParameters, Recipe, RecipeParameters

__all__ = ["OWN", "RecipeEntry", "recipe", "recipe_entry", "recipes"]


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


OWN: Final[dict[str, str]] = {
    "arrays": "protocols.recipes.arrays:ENTRY",
    "colr": "protocols.recipes.colr:ENTRY",
    "fair": "protocols.recipes.fair:ENTRY",
    "fedmf": "protocols.recipes.fedmf:ENTRY",
    "pfedclr": "protocols.recipes.pfedclr:ENTRY",
    "privirec": "protocols.recipes.privirec:PRIVIREC",
    "privirec-k": "protocols.recipes.privirec:PRIVIREC_K",
    "rfrec": "protocols.recipes.rfrec:RFREC",
    "rfrecf": "protocols.recipes.rfrec:RFRECF",
    "scolr": "protocols.recipes.colr:SCOLR_ENTRY",
    "svd": "protocols.recipes.fedmf:SVD_ENTRY",
    "topk": "protocols.recipes.topk:ENTRY",
}
"""Our recipes: name -> "module:attribute" of the entry."""


def recipes() -> dict[str, str]:
    """Return name -> "module:attribute" of the entry of every recipe that is installed, sorted by name."""
    return places(RECIPE_GROUP, OWN)


@cache
def _loaded(name: str, place: str) -> RecipeEntry:
    found = load(place)
    if not isinstance(found, RecipeEntry) or found.name != name:
        raise ParameterError(f"{place} is no entry of a recipe called {name!r}")
    return found


def recipe_entry(name: str, version: int | None = None) -> RecipeEntry:
    """Return the entry of the recipe called `name`.

    version: the version that the other side has; None where there is no other side. Raises `ParameterError` for an
    unknown name (the text lists the known ones), an entry that cannot be loaded, and another version.
    """
    found = recipes()
    if name not in found:
        raise ParameterError(f"unknown recipe: choose one of {', '.join(found)}")
    entry = _loaded(name, found[name])
    if version not in (None, entry.version):
        raise ParameterError(
            f"recipe {name!r} has version {version} on the other side and {entry.version} here: install the same "
            "version of its package on both"
        )
    return entry


def recipe(name: str, parameters: Mapping[str, Any], version: int | None = None, noisy: bool = False) -> Recipe:
    """Return the recipe called `name` with these parameters.

    noisy: whether its sums have the noise of a privacy block, which covers what needs consent otherwise. Raises what
    `recipe_entry` raises, and `ParameterError` for an invalid parameter (the text names it).
    """
    entry = recipe_entry(name, version)
    try:
        return entry.make(entry.parameters.model_validate(dict(parameters), context={"noisy": noisy}))
    except ValidationError as error:
        raise ParameterError(f"recipe {name!r}: {first_fault(error, entry.parameters.model_fields)}") from None
