"""Recipes by name, and which mechanisms each can be combined with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from protocols.errors import CombinationError, ParameterError
from protocols.layout import VectorLayout
from protocols.parameter_text.first_fault import first_fault
from protocols.recipes.arrays.recipe import Arrays, ArraysParameters
from protocols.recipes.base import ItemParameters, Recipe
from protocols.recipes.colr.colr import CoLR, CoLRParameters
from protocols.recipes.colr.scolr import SCoLR, SCoLRParameters
from protocols.recipes.fair.recipe import Fair, FairParameters
from protocols.recipes.fedmf import FedMF, FedMFParameters
from protocols.recipes.pfedclr import PFedCLR, PFedCLRParameters
from protocols.recipes.privirec.parameters import PriviRecKParameters, PriviRecParameters
from protocols.recipes.privirec.recipe import PriviRec, PriviRecK
from protocols.recipes.rfrec.parameters import RFRecFParameters, RFRecParameters
from protocols.recipes.rfrec.recipe import RFRec, RFRecF
from protocols.recipes.svd import SVD, SVDParameters
from protocols.recipes.topk.recipe import TopKParameters, top_k

__all__ = ["CARRIERS", "PARAMETERS", "RECIPES", "check_combination", "has_items", "recipe"]

RECIPES: Final[dict[str, Callable[[Mapping[str, Any]], Recipe]]] = {
    "arrays": lambda p: Arrays(ArraysParameters.model_validate(dict(p))),
    "colr": lambda p: CoLR(CoLRParameters.model_validate(dict(p))),
    "fair": lambda p: Fair(FairParameters.model_validate(dict(p))),
    "fedmf": lambda p: FedMF(FedMFParameters.model_validate(dict(p))),
    "pfedclr": lambda p: PFedCLR(PFedCLRParameters.model_validate(dict(p))),
    "privirec": lambda p: PriviRec(PriviRecParameters.model_validate(dict(p))),
    "privirec-k": lambda p: PriviRecK(PriviRecKParameters.model_validate(dict(p))),
    "rfrec": lambda p: RFRec(RFRecParameters.model_validate(dict(p))),
    "rfrecf": lambda p: RFRecF(RFRecFParameters.model_validate(dict(p))),
    "scolr": lambda p: SCoLR(SCoLRParameters.model_validate(dict(p))),
    "svd": lambda p: SVD(SVDParameters.model_validate(dict(p))),
    "topk": lambda p: top_k(TopKParameters.model_validate(dict(p))),
}
PARAMETERS: Final[dict[str, type[BaseModel]]] = {
    "arrays": ArraysParameters,
    "colr": CoLRParameters,
    "fair": FairParameters,
    "fedmf": FedMFParameters,
    "pfedclr": PFedCLRParameters,
    "privirec": PriviRecParameters,
    "privirec-k": PriviRecKParameters,
    "rfrec": RFRecParameters,
    "rfrecf": RFRecFParameters,
    "scolr": SCoLRParameters,
    "svd": SVDParameters,
    "topk": TopKParameters,
}
"""Recipe -> the model of its parameters."""

CARRIERS: Final[dict[str, frozenset[str]]] = {
    "arrays": frozenset({"ckks", "masked", "oneshot", "paillier", "plain"}),
    "colr": frozenset({"ckks", "masked", "oneshot", "paillier", "plain"}),
    "fair": frozenset({"ckks", "masked", "oneshot", "plain"}),
    "fedmf": frozenset({"ckks", "masked", "oneshot", "paillier", "plain"}),
    "pfedclr": frozenset({"ckks", "masked", "oneshot", "plain"}),
    "privirec": frozenset({"masked", "oneshot", "plain"}),
    "privirec-k": frozenset({"masked", "oneshot", "plain"}),
    "rfrec": frozenset({"ckks", "masked", "oneshot", "plain"}),
    "rfrecf": frozenset({"ckks", "masked", "oneshot", "plain"}),
    "scolr": frozenset({"ckks", "masked", "oneshot", "paillier", "plain"}),
    "svd": frozenset({"plain"}),
    "topk": frozenset({"masked", "oneshot", "paillier", "plain"}),
}
"""Recipe -> the mechanisms that it can be combined with (the table of the architecture page)."""

_WHY_NOT: Final[dict[str, str]] = {
    "svd": "each client's factors U and V must be multiplied before they are added, which is not possible with "
    "encrypted or masked factors, and compressing the sum again would need the SVD of an encrypted matrix, an open "
    "problem (Nguyen et al., WWW 2024, section 3.2 and appendix C)",
    "topk": "Top-K adds single entries at positions that the client chooses, but a ciphertext holds thousands of "
    "values that can only be added position by position (Nguyen et al., WWW 2024, appendix C); 'colr' and 'scolr' send "
    "as few values, in one vector",
}
"""Recipe -> why the mechanisms missing in `CARRIERS` are impossible, for recipes where the reason is known."""

_CHOOSING: Final = frozenset({"paillier", "plain"})
"""Mechanisms that can sum blocks that each contribution chooses and names itself."""

_PAILLIER_VALUES: Final = 200_000
"""Most values of a Paillier sum; opening a larger one takes minutes."""
_PAILLIER_CHOSEN: Final = 20_000
"""Most blocks of a Paillier sum whose contributions choose their blocks: these cannot be packed."""


def recipe(name: str, parameters: Mapping[str, Any]) -> Recipe:
    """Return the recipe called `name` with these parameters.

    Raises `ParameterError` for an unknown name (the text lists the known ones) or an invalid parameter (the text names
    it).
    """
    if name not in RECIPES:
        raise ParameterError(f"unknown recipe: choose one of {', '.join(sorted(RECIPES))}")
    try:
        return RECIPES[name](parameters)
    except ValidationError as error:
        known = PARAMETERS[name].model_fields
        raise ParameterError(f"recipe {name!r}: {first_fault(error, known)}") from None


def has_items(name: str) -> bool:
    """Return whether the model of recipe `name` is about numbered items; True for an unknown name."""
    return name not in PARAMETERS or issubclass(PARAMETERS[name], ItemParameters)


def check_combination(what: Recipe | str, mechanism_name: str) -> None:
    """Raise `CombinationError` with the reason if the recipe cannot be combined with the mechanism.

    what: a recipe's name, checked against `CARRIERS` alone, or a recipe, checked with its parameters too: they
    determine the length of the sum and whether routes are public.
    """
    name = what if isinstance(what, str) else what.name
    carriers = CARRIERS.get(name, frozenset())
    why = f": {_WHY_NOT[name]}" if name in _WHY_NOT else ""
    if mechanism_name not in carriers:
        raise CombinationError(
            f"recipe {name!r} cannot be combined with {mechanism_name!r}{why}; choose one of: "
            f"{', '.join(sorted(carriers))}"
        )
    if not isinstance(what, str):
        layout = what.layout(what.main_sum)
        if mechanism_name == "masked" and what.frozen_cohort != layout.repeated:
            raise CombinationError(f"recipe {name!r}: a frozen cohort and layouts that are `repeated` go together")
        _check_layout(name, mechanism_name, layout)


def _check_layout(name: str, mechanism_name: str, layout: VectorLayout) -> None:
    if layout.chosen and mechanism_name not in _CHOOSING:
        raise CombinationError(
            f"recipe {name!r} cannot be combined with {mechanism_name!r} with these parameters: contributions choose "
            "their positions, and this mechanism adds vectors position by position; set support to 'shared', or choose "
            f"one of: {', '.join(sorted(_CHOOSING))}"
        )
    size, most = (len(layout.blocks), _PAILLIER_CHOSEN) if layout.chosen else (layout.length, _PAILLIER_VALUES)
    if mechanism_name == "paillier" and size > most:
        what = "blocks that share no ciphertext" if layout.chosen else "values"
        raise CombinationError(
            f"recipe {name!r} with these parameters sums {size:,} {what}; Paillier is for small sums, up to {most:,}, "
            "since opening a larger one takes minutes: lower the rank or share, set support to 'shared', or choose one "
            f"of: {', '.join(sorted(CARRIERS[name] - {'paillier'}))}"
        )
