"""What recipes need and mechanisms carry, and the recipes and mechanisms of other packages, found by entry points.

[project.entry-points."hushrec.recipes"]
popularity = "my_package.popularity:ENTRY"

The value names an entry: a `RecipeEntry` or a `MechanismEntry`. Ours are not entry points: the registries list them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, Generic, Literal, TypeVar, get_args

from protocols.errors import ParameterError

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
    return tuple((point.name, point.value) for point in points if point.dist is None or point.dist.name != "hushrec")


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


def check_capabilities(who: str, named: Collection[Capability]) -> None:
    """Raise `ParameterError` for a capability that does not exist. who: who names it, such as "recipe 'colr' needs"."""
    for unknown in sorted(set(named) - ALL):
        raise ParameterError(f"{who} {unknown!r}: choose from {', '.join(sorted(ALL))}")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A recipe or a mechanism in its registry."""

    name: str
    """The name by which tasks choose it."""
    version: int = 1
    """Raised when equal parameters mean something else than before, or another wire form; server and clients must agree
    on it."""
    text: str = ""
    """What it is, in a few words for lists."""
    source: str = ""
    """Where it comes from, for the page of parameters."""


E = TypeVar("E", bound=Entry)


class Registry(Generic[E]):
    """The entries of one kind: ours and those of installed packages, which are in the group `hushrec.<kind>s`.

    kind: "recipe" or "mechanism". own: name -> "module:attribute" of our entries.
    """

    def __init__(self, kind: str, entry: type[E], own: Mapping[str, str]) -> None:
        self._kind, self._entry, self._own = kind, entry, own

    def places(self) -> dict[str, str]:
        """Return name -> "module:attribute" of every entry that is installed, sorted by name.

        Raises `ParameterError` if two packages define one name: which of them a task means would be a matter of chance.
        """
        found, group = dict(self._own), f"hushrec.{self._kind}s"
        for name, place in _found(group):
            if found.setdefault(name, place) != place:
                raise ParameterError(
                    f"{name!r} of {group} is defined twice, by {found[name]} and by {place}: uninstall one of the "
                    "packages"
                )
        return dict(sorted(found.items()))

    def entry(self, name: str, version: int | None = None) -> E:
        """Return the entry called `name`.

        version: the version that the other side has; None where there is no other side. Raises `ParameterError` for an
        unknown name (the text lists the known ones), an entry that cannot be loaded, and another version.
        """
        known = self.places()
        if name not in known:
            # without the name: a server's answer repeats nothing of a request
            raise ParameterError(f"unknown {self._kind}: choose one of {', '.join(known)}")
        found = load(known[name])
        if not isinstance(found, self._entry) or found.name != name:
            raise ParameterError(f"{known[name]} is no entry of a {self._kind} called {name!r}")
        if version not in (None, found.version):
            raise ParameterError(
                f"{self._kind} {name!r} has version {version} on the other side and {found.version} here: install the "
                "same version of its package on both"
            )
        return found
