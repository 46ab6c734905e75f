"""Mechanisms by name: ours, and those of installed packages (`protocols.plugins`).

An entry says what a mechanism can sum, and where it is. Entries import no encryption library: a mechanism is imported
on first use, so that a plain client needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import BaseModel

from protocols.parameter_text import validated
from protocols.plugins import ALL, Capability, Entry, Registry, check_capabilities, load
from protocols.sums.base import Mechanism


@dataclass(frozen=True, kw_only=True)
class MechanismEntry(Entry):
    """One mechanism.

    mechanism: "module:attribute" of the `Mechanism`. parameters: "module:class" of the model of its parameters, None if
    it has none. carries: what it can do. most_values, most_chosen: largest sums, in values and in blocks that
    contributions choose; None for no limit. too_large: why larger ones are refused. Raises `ParameterError` for an
    unknown capability.
    """

    mechanism: str
    parameters: str | None = None
    carries: frozenset[Capability] = frozenset[Capability]({"dense"})
    most_values: int | None = None
    most_chosen: int | None = None
    too_large: str = ""

    def __post_init__(self) -> None:
        check_capabilities(f"{self.name!r} carries", self.carries)


CKKS: Final = MechanismEntry(
    name="ckks",
    mechanism="protocols.sums.ckks.mechanism:CKKS",
    parameters="protocols.sums.ckks.plan:CkksParameters",
    carries=frozenset({"dense", "device groups", "noise"}),
)
MASKED: Final = MechanismEntry(
    name="masked",
    mechanism="protocols.sums.masked.plan:MASKED",
    parameters="protocols.sums.masked.parameters:MaskedParameters",
    carries=frozenset({"checked routes", "dense", "device groups", "frozen cohort", "noise", "single entries"}),
)
ONESHOT: Final = MechanismEntry(
    name="oneshot",
    mechanism="protocols.sums.oneshot.mechanism:ONESHOT",
    parameters="protocols.sums.oneshot.plan:OneshotParameters",
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


_MECHANISMS: Final = Registry("mechanism", MechanismEntry, OWN)
mechanisms: Final = _MECHANISMS.places
mechanism_entry: Final = _MECHANISMS.entry


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
    return {} if model is None else validated(f"mechanism {name!r}", model, given).model_dump(mode="json")
