"""Mechanisms by name: ours, and those of installed packages (`protocols.plugins`).

An entry says what a mechanism can sum, and where it is. Entries import no encryption library: a mechanism is imported
on first use, so that a plain client needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, cast

from pydantic import BaseModel, ValidationError

from protocols.errors import ParameterError
from protocols.parameter_text import first_fault
from protocols.plugins import ALL, MECHANISM_GROUP, Capability, load, places
from protocols.sums.base import Mechanism

__all__ = [
    "MechanismEntry",
    "CKKS",
    "MASKED",
    "ONESHOT",
    "PAILLIER",
    "PLAIN",
    "OWN",
    "mechanism",
    "mechanism_entry",
    "mechanisms",
    "parameters_of",
    "resolved_parameters",
]


@dataclass(frozen=True)
class MechanismEntry:
    """One mechanism.

    name: the name by which tasks choose it. mechanism: "module:attribute" of the `Mechanism`. parameters:
    "module:class" of the model of its parameters, None if it has none. version: raised when equal parameters mean
    another wire form; server and clients must agree on it. carries: what it can do. most_values, most_chosen: largest
    sums, in values and in blocks that contributions choose; None for no limit. too_large: why larger ones are refused.
    Raises `ParameterError` for an unknown capability.
    """

    name: str
    mechanism: str
    parameters: str | None = None
    version: int = 1
    carries: frozenset[Capability] = frozenset[Capability]({"dense"})
    most_values: int | None = None
    most_chosen: int | None = None
    too_large: str = ""

    def __post_init__(self) -> None:
        unknown = sorted(self.carries - ALL)
        if unknown:
            raise ParameterError(f"{self.name!r} carries {unknown[0]!r}: choose from {', '.join(sorted(ALL))}")


CKKS: Final = MechanismEntry(
    name="ckks",
    mechanism="protocols.sums.ckks.mechanism:CKKS",
    parameters="protocols.sums.ckks.plan:CkksParameters",
    carries=frozenset({"dense", "device groups", "noise"}),
)
MASKED: Final = MechanismEntry(
    name="masked",
    mechanism="protocols.sums.masked.mechanism:MASKED",
    parameters="protocols.sums.masked.parameters:MaskedParameters",
    carries=frozenset({"checked routes", "dense", "device groups", "frozen cohort", "noise", "single entries"}),
)
ONESHOT: Final = MechanismEntry(
    name="oneshot",
    mechanism="protocols.sums.oneshot.mechanism:ONESHOT",
    parameters="protocols.sums.oneshot.parameters:OneshotParameters",
    carries=frozenset({"dense", "device groups", "frozen cohort", "noise", "single entries"}),
)
PAILLIER: Final = MechanismEntry(
    name="paillier",
    mechanism="protocols.sums.paillier.mechanism:PAILLIER",
    parameters="protocols.sums.paillier.plan:PaillierParameters",
    carries=frozenset({"chosen blocks", "dense", "noise", "single entries"}),
    most_values=200_000,
    most_chosen=20_000,  # these cannot be packed
    too_large="Paillier is for small sums, since opening a larger one takes minutes",
)
PLAIN: Final = MechanismEntry(name="plain", mechanism="protocols.sums.plain:PLAIN", carries=ALL - {"noise"})


OWN: Final[dict[str, str]] = {
    name: f"protocols.sums.registry:{name.upper()}" for name in ("ckks", "masked", "oneshot", "paillier", "plain")
}
"""Our mechanisms: name -> "module:attribute" of the entry."""


def mechanisms() -> dict[str, str]:
    """Return name -> "module:attribute" of the entry of every mechanism that is installed, sorted by name."""
    return places(MECHANISM_GROUP, OWN)


@cache
def _loaded(name: str, place: str) -> MechanismEntry:
    found = load(place)
    if not isinstance(found, MechanismEntry) or found.name != name:
        raise ParameterError(f"{place} is no entry of a mechanism called {name!r}")
    return found


def mechanism_entry(name: str, version: int | None = None) -> MechanismEntry:
    """Return the entry of the mechanism called `name`.

    version: the version that the other side has; None where there is no other side. Raises `ParameterError` for an
    unknown name (the text lists the known ones), an entry that cannot be loaded, and another version.
    """
    found = mechanisms()
    if name not in found:
        raise ParameterError(f"unknown mechanism: choose one of {', '.join(found)}")
    entry = _loaded(name, found[name])
    if version not in (None, entry.version):
        raise ParameterError(
            f"mechanism {name!r} has version {version} on the other side and {entry.version} here: install the same "
            "version of its package on both"
        )
    return entry


def mechanism(name: str) -> Mechanism:
    """Return the mechanism called `name`; `ParameterError` for an unknown name lists the known ones."""
    return cast(Mechanism, load(mechanism_entry(name).mechanism))


def parameters_of(name: str) -> type[BaseModel] | None:
    """Return the model of a mechanism's parameters, None if it has none; `ParameterError` for an unknown name."""
    place = mechanism_entry(name).parameters
    return None if place is None else cast(type[BaseModel], load(place))


def resolved_parameters(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters of a mechanism as JSON values: the given ones, and the defaults of the others.

    Raises `ParameterError` for an unknown mechanism and for a parameter that is invalid (the text names it).
    """
    model = parameters_of(name)
    if model is None:
        return {}
    try:
        return model.model_validate(dict(given)).model_dump(mode="json")
    except ValidationError as error:
        raise ParameterError(f"mechanism {name!r}: {first_fault(error, model.model_fields)}") from None
