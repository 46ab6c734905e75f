"""Mechanisms by name: ours, and those of installed packages (`protocols.plugins`).

An entry says what a mechanism can sum, and where it is. Entries import no encryption library: a mechanism is imported
on first use, so that a plain client needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

from pydantic import BaseModel

from protocols.messages.stages import RoundState
from protocols.parameter_text import validated
from protocols.plugins import ALL, Capability, Entry, Registry, check_capabilities, load
from protocols.sums.base import Mechanism


@dataclass(frozen=True, kw_only=True)
class MechanismEntry(Entry):
    """One mechanism.

    Raises `ParameterError` for an unknown capability.
    """

    mechanism: str
    """"module:attribute" of the `Mechanism`."""
    parameters: str | None = None
    """"module:class" of the model of its parameters, None if it has none."""
    carries: frozenset[Capability] = frozenset[Capability]({"dense"})
    """What it can do."""
    most_values: int | None = None
    most_chosen: int | None = None
    """Largest sums, in values and in blocks that contributions choose; None for no limit."""
    too_large: str = ""
    """Why larger ones are refused."""
    client_round: str = "client_sdk.rounds.contribution:OwnRound"
    """"module:class" of a client's part in a round, which only clients import."""
    opens_in: RoundState = RoundState.COLLECTING
    """The state in which its rounds begin."""
    requirements: str | None = None
    """"module:class" of what a client requires of a task and its rounds: a dataclass, made from the fields of the same
    names of `client_sdk.Policy`, with at least `min_cohort`, whose `check_parameters`, which gets the `parameters` of
    the mechanism's plans, raises `RefusalError`. None where it requires nothing."""

    not_simulated: str = ""
    """Why the laboratory does not simulate its sums, and what to choose; "" where it does."""

    def __post_init__(self) -> None:
        check_capabilities(f"{self.name!r} carries", self.carries)

    @cached_property
    def hides(self) -> bool:
        """Whether the server alone cannot read a contribution."""
        return "clear contributions" not in self.carries


CKKS: Final = MechanismEntry(
    name="ckks",
    text="CKKS ciphertexts: members share a key",
    source="Cheon, Kim, Kim and Song, 2017, with SEAL. Guide: [CKKS sums](ckks.md)",
    mechanism="protocols.sums.ckks.mechanism:CKKS",
    parameters="protocols.sums.ckks.plan:CkksParameters",
    carries=frozenset({"dense", "device groups", "noise"}),
)
MASKED: Final = MechanismEntry(
    name="masked",
    text="masks that cancel: no keys, clients stay for several stages",
    source="Bell et al., CCS 2020 (SecAgg+). Guide: [masked sums](masked.md)",
    mechanism="protocols.sums.masked.plan:MASKED",
    parameters="protocols.sums.masked.parameters:MaskedParameters",
    client_round="client_sdk.rounds.masked:MaskedRound",
    opens_in=RoundState.ADVERTISING,
    requirements="protocols.sums.masked.parameters:ClientPolicy",
    carries=frozenset({"checked routes", "dense", "device groups", "frozen cohort", "noise", "single entries"}),
)
ONESHOT: Final = MechanismEntry(
    name="oneshot",
    text="one message a client, and a committee takes the masks off",
    source="OPA (Karthikeyan and Polychroniadou, eprint 2024/723), ring-LWE masks as in LERNA and Willow",
    mechanism="protocols.sums.oneshot.mechanism:ONESHOT",
    parameters="protocols.sums.oneshot.plan:OneshotParameters",
    client_round="client_sdk.rounds.oneshot:OneshotRound",
    requirements="protocols.sums.oneshot.plan:OneshotPolicy",
    carries=frozenset({"dense", "device groups", "frozen cohort", "noise", "single entries"}),
    not_simulated="choose masked, whose sums are the same up to rounding",
)
PAILLIER: Final = MechanismEntry(
    name="paillier",
    text="Paillier ciphertexts, for small vectors",
    source="Paillier, 1999, with gmpy2. Guide: [Paillier sums](ckks.md#paillier-choosing)",
    mechanism="protocols.sums.paillier.mechanism:PAILLIER",
    parameters="protocols.sums.paillier.plan:PaillierParameters",
    carries=frozenset({"chosen blocks", "dense", "noise", "single entries"}),
    most_values=200_000,
    most_chosen=20_000,  # these cannot be packed
    too_large="Paillier is for small sums, since opening a larger one takes minutes",
)
PLAIN: Final = MechanismEntry(
    name="plain",
    text="no protection: the server sees every contribution",
    source="Nothing is hidden: the baseline of the benchmarks, and for locally private recipes",
    mechanism="protocols.sums.plain:PLAIN",
    carries=ALL - {"noise"},
)

_OURS: Final = (CKKS, MASKED, ONESHOT, PAILLIER, PLAIN)
OWN: Final[dict[str, str]] = {entry.name: f"protocols.sums.registry:{entry.name.upper()}" for entry in _OURS}
"""Our mechanisms: name -> "module:attribute" of the entry."""
HIDING: Final = frozenset(entry.name for entry in _OURS if entry.hides)
"""Our mechanisms over which the server alone cannot read a contribution."""
CLEAR: Final = frozenset(OWN) - HIDING
"""Our mechanisms over which it can."""


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
