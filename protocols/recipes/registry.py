"""Recipes by name: ours, in the table below, and those of installed packages (`protocols.plugins`).

A recipe is found by its entry, which holds everything that the server and the clients need to find and combine it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from protocols.parameter_text import validated
from protocols.plugins import Capability, Entry, Registry, check_capabilities
from protocols.recipes.base import ItemParameters, Recipe, RecipeParameters
from protocols.recipes.defaults import TaskDefaults


@dataclass(frozen=True, kw_only=True)
class RecipeEntry(Entry):
    """One recipe.

    Raises `ParameterError` for an unknown capability.
    """

    parameters: type[RecipeParameters]
    """The model of its parameters."""
    make: Callable[[Any], Recipe]
    """Returns the recipe for validated parameters."""
    client_side: str
    """"module:function" of its client side, which only clients import; the function is called with the recipe, the
    training settings and the name of a graph filter (both None where the user gave none)."""
    needs: frozenset[Capability] = frozenset[Capability]({"dense"})
    """What a mechanism must be able to do."""
    why_not: str = ""
    """Why mechanisms that cannot are impossible."""
    ratings: bool = False
    """Whether its model predicts ratings; else it ranks items."""
    needs_start: bool = False
    """Whether its recommended settings rank above popularity only in a task that starts from a spectrum."""
    defaults: TaskDefaults = TaskDefaults()
    """Parameters of a new task whose maker names none."""

    def __post_init__(self) -> None:
        check_capabilities(f"recipe {self.name!r} needs", self.needs)

    @property
    def frozen(self) -> bool:
        """Whether all sums of a task are over the same clients, as those of a spectrum are."""
        return "frozen cohort" in self.needs

    @property
    def has_items(self) -> bool:
        """Whether the model is about numbered items, which it scores."""
        return issubclass(self.parameters, ItemParameters)


OWN: Final[dict[str, str]] = {
    "arrays": "protocols.recipes.arrays:ENTRY",
    "colr": "protocols.recipes.colr:ENTRY",
    "fair": "protocols.recipes.fair:ENTRY",
    "fedmf": "protocols.recipes.colr:FEDMF_ENTRY",
    "pfedclr": "protocols.recipes.pfedclr:ENTRY",
    "privirec": "protocols.recipes.privirec:PRIVIREC",
    "privirec-k": "protocols.recipes.privirec:PRIVIREC_K",
    "rfrec": "protocols.recipes.rfrec:RFREC",
    "rfrecf": "protocols.recipes.rfrec:RFRECF",
    "scolr": "protocols.recipes.colr:SCOLR_ENTRY",
    "svd": "protocols.recipes.colr:SVD_ENTRY",
    "topk": "protocols.recipes.topk:ENTRY",
}
"""Our recipes: name -> "module:attribute" of the entry."""


_RECIPES: Final = Registry("recipe", RecipeEntry, OWN)
recipes: Final = _RECIPES.places
recipe_entry: Final = _RECIPES.entry


def recipe(name: str, parameters: Mapping[str, Any], version: int | None = None, noisy: bool = False) -> Recipe:
    """Return the recipe called `name` with these parameters.

    noisy: whether its sums have the noise of a privacy block, which covers what needs consent otherwise. Raises what
    `recipe_entry` raises, and `ParameterError` for an invalid parameter (the text names it).
    """
    entry = recipe_entry(name, version)
    return entry.make(validated(f"recipe {name!r}", entry.parameters, parameters, {"noisy": noisy}))
