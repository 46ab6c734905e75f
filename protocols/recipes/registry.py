"""Recipes by name, built from validated parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from protocols.errors import CombinationError, ParameterError
from protocols.faults import first_fault
from protocols.recipes.base import Recipe
from protocols.recipes.colr import CoLR, CoLRParameters
from protocols.recipes.fedmf import FedMF, FedMFParameters
from protocols.recipes.privirec import PriviRec, PriviRecK
from protocols.recipes.privirec_parameters import PriviRecKParameters, PriviRecParameters
from protocols.recipes.scolr import SCoLR, SCoLRParameters

__all__ = ["CARRIERS", "RECIPES", "check_combination", "recipe"]

RECIPES: Final[dict[str, Callable[[Mapping[str, Any]], Recipe]]] = {
    "colr": lambda p: CoLR(CoLRParameters.model_validate(dict(p))),
    "fedmf": lambda p: FedMF(FedMFParameters.model_validate(dict(p))),
    "privirec": lambda p: PriviRec(PriviRecParameters.model_validate(dict(p))),
    "privirec-k": lambda p: PriviRecK(PriviRecKParameters.model_validate(dict(p))),
    "scolr": lambda p: SCoLR(SCoLRParameters.model_validate(dict(p))),
}
_PARAMETERS: Final[dict[str, type[BaseModel]]] = {
    "colr": CoLRParameters,
    "fedmf": FedMFParameters,
    "privirec": PriviRecParameters,
    "privirec-k": PriviRecKParameters,
    "scolr": SCoLRParameters,
}

CARRIERS: Final[dict[str, frozenset[str]]] = {
    "colr": frozenset({"ckks", "masked", "plain"}),
    "fedmf": frozenset({"ckks", "masked", "plain"}),
    "privirec": frozenset({"masked", "plain"}),
    "privirec-k": frozenset({"masked", "plain"}),
    "scolr": frozenset({"ckks", "masked", "plain"}),
}
"""Which mechanisms can carry a recipe (the table of the architecture page)."""


def recipe(name: str, parameters: Mapping[str, Any]) -> Recipe:
    """The recipe called `name`; `ParameterError` names the recipes that exist, or the parameter that is wrong."""
    if name not in RECIPES:
        raise ParameterError(f"unknown recipe {name!r}: choose one of {', '.join(sorted(RECIPES))}")
    try:
        return RECIPES[name](parameters)
    except ValidationError as error:
        known = _PARAMETERS[name].model_fields
        raise ParameterError(f"recipe {name!r}: {first_fault(error, known)}") from None


def check_combination(recipe_name: str, mechanism_name: str) -> None:
    """Raise `CombinationError` when the mechanism cannot carry the recipe."""
    carriers = CARRIERS.get(recipe_name, frozenset())
    if mechanism_name not in carriers:
        raise CombinationError(
            f"recipe {recipe_name!r} cannot ride on {mechanism_name!r}; it can on: {', '.join(sorted(carriers))}"
        )
