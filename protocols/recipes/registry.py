"""Recipes by name: ours, and those of installed packages (`protocols.plugins`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import ValidationError

from protocols.errors import ParameterError
from protocols.parameter_text.first_fault import first_fault
from protocols.plugins import RECIPE_GROUP, load, places
from protocols.recipes.base import Recipe
from protocols.recipes.entry import RecipeEntry

__all__ = ["OWN", "recipe", "recipe_entry", "recipes"]

OWN: Final[dict[str, str]] = {
    "arrays": "protocols.recipes.arrays.recipe:ENTRY",
    "colr": "protocols.recipes.colr.colr:ENTRY",
    "fair": "protocols.recipes.fair.recipe:ENTRY",
    "fedmf": "protocols.recipes.fedmf:ENTRY",
    "pfedclr": "protocols.recipes.pfedclr:ENTRY",
    "privirec": "protocols.recipes.privirec.recipe:PRIVIREC",
    "privirec-k": "protocols.recipes.privirec.recipe:PRIVIREC_K",
    "rfrec": "protocols.recipes.rfrec.recipe:RFREC",
    "rfrecf": "protocols.recipes.rfrec.recipe:RFRECF",
    "scolr": "protocols.recipes.colr.scolr:ENTRY",
    "svd": "protocols.recipes.svd:ENTRY",
    "topk": "protocols.recipes.topk.recipe:ENTRY",
}
"""Our recipes: name -> "module:attribute" of the entry, as pyproject.toml declares them."""


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


def recipe(name: str, parameters: Mapping[str, Any], version: int | None = None) -> Recipe:
    """Return the recipe called `name` with these parameters.

    Raises what `recipe_entry` raises, and `ParameterError` for an invalid parameter (the text names it).
    """
    entry = recipe_entry(name, version)
    try:
        return entry.make(entry.parameters.model_validate(dict(parameters)))
    except ValidationError as error:
        raise ParameterError(f"recipe {name!r}: {first_fault(error, entry.parameters.model_fields)}") from None
