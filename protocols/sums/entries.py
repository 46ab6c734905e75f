"""The entries of the five mechanisms of this package."""

from __future__ import annotations

from typing import Final

from protocols.capabilities import ALL
from protocols.sums.entry import MechanismEntry

__all__ = ["CKKS", "MASKED", "ONESHOT", "PAILLIER", "PLAIN"]

CKKS: Final = MechanismEntry(
    name="ckks",
    mechanism="protocols.sums.ckks.mechanism:CKKS",
    parameters="protocols.sums.ckks.parameters:CkksParameters",
    carries=frozenset({"dense", "device groups"}),
)
MASKED: Final = MechanismEntry(
    name="masked",
    mechanism="protocols.sums.masked.mechanism:MASKED",
    parameters="protocols.sums.masked.parameters:MaskedParameters",
    carries=frozenset({"checked routes", "dense", "device groups", "frozen cohort", "single entries"}),
)
ONESHOT: Final = MechanismEntry(
    name="oneshot",
    mechanism="protocols.sums.oneshot.mechanism:ONESHOT",
    parameters="protocols.sums.oneshot.parameters:OneshotParameters",
    carries=frozenset({"dense", "device groups", "frozen cohort", "single entries"}),
)
PAILLIER: Final = MechanismEntry(
    name="paillier",
    mechanism="protocols.sums.paillier.mechanism:PAILLIER",
    parameters="protocols.sums.paillier.parameters:PaillierParameters",
    carries=frozenset({"chosen blocks", "dense", "single entries"}),
    most_values=200_000,
    most_chosen=20_000,  # these cannot be packed
    too_large="Paillier is for small sums, since opening a larger one takes minutes",
)
PLAIN: Final = MechanismEntry(name="plain", mechanism="protocols.sums.plain:PLAIN", carries=ALL)
