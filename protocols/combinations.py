"""Which recipe can be combined with which mechanism: what the one needs, the other must carry."""

from __future__ import annotations

from protocols.errors import CombinationError
from protocols.layout import VectorLayout
from protocols.recipes.base import Recipe
from protocols.recipes.private import Private
from protocols.recipes.registry import recipe_entry
from protocols.sums.registry import MechanismEntry, mechanism_entry, mechanisms


def carriers(recipe: str) -> frozenset[str]:
    """Return the names of the mechanisms that can carry a recipe (the table of the architecture page).

    Raises `ParameterError` for an unknown recipe.
    """
    needs = recipe_entry(recipe).needs
    return frozenset(name for name in mechanisms() if needs <= mechanism_entry(name).carries)


def check_combination(what: Recipe | str, mechanism: str) -> None:
    """Raise `CombinationError` with the reason if the recipe cannot be combined with the mechanism.

    what: a recipe's name, checked by its capabilities alone, or a recipe, checked with its parameters too: they
    determine the length of the sum and whether routes are public. Raises `ParameterError` for unknown names.
    """
    name = what if isinstance(what, str) else what.name
    own, how = recipe_entry(name), mechanism_entry(mechanism)
    missing = sorted(own.needs - how.carries)
    if missing:
        why = own.why_not or f"it needs {', '.join(missing)}, which this mechanism does not carry"
        raise CombinationError(
            f"recipe {name!r} cannot be combined with {mechanism!r}: {why}; choose one of: "
            f"{', '.join(sorted(carriers(name)))}"
        )
    if not isinstance(what, str):
        if isinstance(what, Private) and "noise" not in how.carries:
            raise CombinationError(
                f"a task with a privacy block cannot use {mechanism!r}: the server would see each contribution with "
                f"one client's share of the noise; choose one of: {', '.join(sorted(noisy_carriers(name)))}"
            )
        counting = what.main_sum - 1
        if counting > 1 and what.layout(2).sum_class.once and "clear contributions" not in how.carries:
            raise CombinationError(
                f"recipe {name!r} cannot be combined with {mechanism!r} with count_sums {counting}: a client is "
                "counted once, so a later sum would hold the items of the few clients that no earlier one counted; set "
                "count_sums to 1"
            )
        layout = what.layout(what.main_sum)
        _check_layout(name, how, layout)


def noisy_carriers(recipe: str) -> frozenset[str]:
    """Return the mechanisms that can carry the recipe's sums with noise in them."""
    return frozenset(name for name in carriers(recipe) if "noise" in mechanism_entry(name).carries)


def _check_layout(name: str, how: MechanismEntry, layout: VectorLayout) -> None:
    if layout.chosen and "chosen blocks" not in how.carries:
        able = sorted(other for other in carriers(name) if "chosen blocks" in mechanism_entry(other).carries)
        raise CombinationError(
            f"recipe {name!r} cannot be combined with {how.name!r} with these parameters: contributions choose "
            "their positions, and this mechanism adds vectors position by position; set support to 'shared', or choose "
            f"one of: {', '.join(able)}"
        )
    size, most = (len(layout.blocks), how.most_chosen) if layout.chosen else (layout.length, how.most_values)
    if most is not None and size > most:
        what = "blocks that share no ciphertext" if layout.chosen else "values"
        raise CombinationError(
            f"recipe {name!r} with these parameters sums {size:,} {what}; {how.too_large or 'this is too large'}, "
            f"up to {most:,}: lower the rank or share, set support to 'shared', or choose one of: "
            f"{', '.join(sorted(carriers(name) - {how.name}))}"
        )
