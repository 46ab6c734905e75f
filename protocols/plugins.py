"""What recipes need and mechanisms carry, and the recipes and mechanisms of other packages, found by entry points.

[project.entry-points."hushrec.recipes"]
popularity = "my_package.popularity:ENTRY"

The value names an entry: a `RecipeEntry` or a `MechanismEntry`. Ours are not entry points: the registries list them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, Literal, get_args

from protocols.errors import ParameterError

__all__ = [
    "ALL",
    "MECHANISM_GROUP",
    "RECIPE_GROUP",
    "Capability",
    "load",
    "places",
]

RECIPE_GROUP: Final = "hushrec.recipes"
MECHANISM_GROUP: Final = "hushrec.mechanisms"
_OWN: Final = "hushrec"
"""Name of our own distribution."""

Capability = Literal[
    "dense",  # vectors are added position by position
    "single entries",  # a few entries of a vector are summed, at positions that depend on the model
    "chosen blocks",  # each contribution chooses its blocks, and names them in the clear
    "frozen cohort",  # all sums are over the same data: sums over cohorts that differ by few clients are refused
    "device groups",  # sums over several groups of devices take turns, each with a layout of its own
    "clear contributions",  # the server sees each contribution: it may compute with it
    "noise",  # nobody sees one contribution, so that noise in the sum protects each
    "checked routes",  # clients check who contributes to which block before the sum opens, or nothing hides them
]
"""What a recipe asks of a mechanism, and what a mechanism can do."""
ALL: Final[frozenset[Capability]] = frozenset(get_args(Capability))


@cache
def _found(group: str) -> tuple[tuple[str, str], ...]:
    """Return name and place of the entries of other packages."""
    points = entry_points(group=group)
    return tuple((point.name, point.value) for point in points if point.dist is None or point.dist.name != _OWN)


def places(group: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return name -> "module:attribute" of every entry, ours (`own`) and those of installed packages, sorted by name.

    Raises `ParameterError` if two packages define one name: which of them a task means would be a matter of chance.
    """
    found = dict(own)
    for name, place in _found(group):
        if found.setdefault(name, place) != place:
            raise ParameterError(
                f"{name!r} of {group} is defined twice, by {found[name]} and by {place}: uninstall one of the packages"
            )
    return dict(sorted(found.items()))


def load(place: str) -> object:
    """Return the object at "module:attribute". Raises `ParameterError` if there is none, and `ImportError`
    for a package that the module needs."""
    module, _, attribute = place.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except AttributeError as error:
        raise ParameterError(f"{place} cannot be loaded: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and needs one that is not
        raise ParameterError(f"{place} cannot be loaded: {error}") from error
