"""The entry of a mechanism: what it can sum, and where it is. Entries import no encryption library."""

from __future__ import annotations

from dataclasses import dataclass

from protocols.capabilities import ALL, Capability
from protocols.errors import ParameterError

__all__ = ["MechanismEntry"]


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
