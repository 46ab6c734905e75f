"""Named, tested CKKS parameter sets: one data prime each, no special prime, no free choice of moduli.

Sums need no multiplication, so one prime is enough and no relinearisation or Galois keys are needed. Each prime is the
largest below 2^bits that is 1 mod 2*8192, so it works with every ring degree here, and has 128 bits of security at each
by `protocols.sums.ring_security` (ternary secrets). SEAL checks its own, laxer table whenever a context is created.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["PARAMETER_SETS", "CkksParameters", "ParameterSet", "SetName"]

SetName = Literal["compact", "standard", "precise"]


@dataclass(frozen=True)
class ParameterSet:
    """A prime modulus q and how its residues are split into byte planes.

    plane_dtypes: numpy dtypes of the planes, least significant first; together they have the width of q in whole bytes.
    """

    name: SetName
    modulus_bits: int
    modulus: int
    plane_dtypes: tuple[str, ...]

    @cached_property
    def residue_bytes(self) -> int:
        """Bytes per residue on the wire."""
        return sum(int(dtype[-1]) for dtype in self.plane_dtypes)


PARAMETER_SETS: Final[dict[str, ParameterSet]] = {
    "compact": ParameterSet("compact", 32, 0xFFF88001, ("<u4",)),
    "standard": ParameterSet("standard", 40, 0xFFFFFDC001, ("<u4", "|u1")),
    "precise": ParameterSet("precise", 53, 0x1FFFFFFFFB4001, ("<u4", "<u2", "|u1")),
}
"""Sets by name. compact: 4 bytes per residue, errors of about 1e-4. standard: 5 bytes. precise: 7 bytes."""


class CkksParameters(BaseModel):
    """A task's parameters for CKKS sums; everything else follows from the layout and the cohort."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    set: SetName = Field(
        default="standard",
        description="Named modulus: compact (32 bits), standard (40), precise (53).",
    )
    wire: Literal["seeded", "expanded"] = Field(
        default="seeded",
        description="seeded: a 64-byte seed replaces the second polynomial (smallest). expanded: both polynomials "
        "(twice as large, folds fastest).",
    )
    degree: Literal[2048, 4096, 8192] | None = Field(
        default=None,
        description="Ring degree; null: the one that pads the sum least. Set it if sums of several lengths share keys.",
    )

    @property
    def parameter_set(self) -> ParameterSet:
        """The parameter set that `set` names."""
        return PARAMETER_SETS[self.set]
