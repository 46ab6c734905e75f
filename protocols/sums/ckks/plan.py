"""The plan of a CKKS sum: named parameter sets, ring degree, scale, lengths, and a bound on the error of a sum.

*Parameter sets* are named and tested: one data prime each, no special prime, no free choice of moduli. Sums need no
multiplication, so one prime is enough and no relinearisation or Galois keys are needed. Each prime is the largest below
2^bits that is 1 mod 2*8192, so it works with every ring degree here, and has 128 bits of security at each by
`protocols.sums.ring_security` (ternary secrets). SEAL checks its own, laxer table whenever a context is created.

*Plan.* Values are divided by their segment's clip, so every slot holds re + i*im with |re|, |im| <= 1 (times
CLIP_SLACK, which allows for clipping in float32). Notation: N degree, q modulus, K contributions, S scale.

*No wrap-around.* A coefficient of an encoded polynomial is S * (2/N) * Re(sum over the N/2 slots of z_j * root), at
most sqrt(2)*CLIP_SLACK*S in size, and encoding rounds it by at most 1/2. SEAL's errors are centred binomial of 21 coins
(variance 10.5), at most 21 in size. A symmetric encryption adds one. The sum of K stays below q/2 when

    K * (sqrt(2)*CLIP_SLACK*S + 1/2 + 21) < q/2,

and S is the largest power of two for which this holds.

*Error.* Rounding is uniform (variance 1/12), so the error of a coefficient of the sum has variance V = K*(10.5 + 1/12).
A slot's real or imaginary part is a sum of N coefficients with weights cos(.) or sin(.) whose squares add up to N/2, so
its standard deviation is sigma = sqrt(V*N/2)/S. The bound is 8 deviations (beyond it with probability about 2^-49 a
value, by the Gaussian tail) plus the floating-point error of the transforms. It is relative to the clip; a segment's
error is the bound times its clip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, frexp, log2, sqrt
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from protocols.crypto.keys import digest
from protocols.errors import BudgetError
from protocols.layout import CLIP_SLACK, Route, VectorLayout
from protocols.parameter_text import validated
from protocols.sums.base import CiphertextPlan
from protocols.sums.ring_security import DEGREES, SECURITY_BITS, require_secure_ring
from protocols.sums.wire import refuse_chosen

SetName = Literal["compact", "standard", "precise"]


@dataclass(frozen=True)
class ParameterSet:
    """A prime modulus q and how its residues are split into byte planes."""

    name: SetName
    modulus_bits: int
    modulus: int
    plane_dtypes: tuple[str, ...]
    """Numpy dtypes of the planes, least significant first; together they have the width of q in whole bytes."""

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


SEED_BYTES: Final = 64
"""SEAL's seed of the second polynomial (Blake2xb)."""


_ERROR_BOUND: Final = 21
_ERROR_VARIANCE: Final = 10.5
_DEVIATIONS: Final = 8.0
_PADDING_TOLERANCE: Final = 1.01


@dataclass(frozen=True)
class CkksPlan(CiphertextPlan):
    """The plan of a CKKS sum; all parties compute the same from the task's parameters."""

    parameters: CkksParameters
    layout: VectorLayout
    max_contributions: int
    degree: int
    mechanism: ClassVar[str] = "ckks"

    @cached_property
    def parameter_set(self) -> ParameterSet:
        """The modulus and its planes."""
        return PARAMETER_SETS[self.parameters.set]

    @cached_property
    def seeded(self) -> bool:
        """Whether contributions hold a seed instead of the second polynomial."""
        return self.parameters.wire == "seeded"

    @property
    def folds_slowly(self) -> bool:
        """Whether a fold expands a seed for each ciphertext, which takes nine tenths of its time."""
        return self.seeded

    @property
    def key_parameters(self) -> dict[str, Any]:
        return {"degree": self.degree}

    @cached_property
    def parameter_id(self) -> bytes:
        """32 bytes that identify (N, q)."""
        return digest("ckks parameters", self.degree, self.parameter_set.modulus)

    @cached_property
    def block_ciphertexts(self) -> tuple[int, ...]:
        return tuple(ceil(block.length / self.degree) for block in self.layout.blocks)

    def expanded_bytes(self, ciphertexts: int) -> int:
        """Return the length in bytes of `ciphertexts` in expanded form: two polynomials each."""
        return ciphertexts * 2 * self.degree * self.parameter_set.residue_bytes

    def seeded_bytes(self, ciphertexts: int) -> int:
        """Return the length in bytes of `ciphertexts` in seeded form: one polynomial and a seed each."""
        return ciphertexts * (self.degree * self.parameter_set.residue_bytes + SEED_BYTES)

    def contribution_bytes(self, route: Route) -> int:
        count = self.route_ciphertexts(route)
        return self.seeded_bytes(count) if self.seeded else self.expanded_bytes(count)

    @property
    def aggregate_bytes(self) -> int:
        return self.expanded_bytes(self.ciphertexts)

    @cached_property
    def scale(self) -> float:
        """S: the largest power of two with which no coefficient of the sum wraps (module docstring); 0.0 if none."""
        room = self.parameter_set.modulus / 2 / self.max_contributions - 0.5 - _ERROR_BOUND
        limit = room / (sqrt(2.0) * CLIP_SLACK)
        return 2.0 ** (frexp(limit)[1] - 1) if limit > 1 else 0.0

    @cached_property
    def noise_deviation(self) -> float:
        """sigma: standard deviation of a full sum's error, relative to the clip."""
        variance = self.max_contributions * (_ERROR_VARIANCE + 1 / 12)
        return sqrt(variance * self.degree / 2) / self.scale

    @cached_property
    def relative_error(self) -> float:
        """Bound on a value's error relative to its clip, before counts are rounded (module docstring)."""
        transforms = self.max_contributions * sqrt(2.0) * (2 * log2(self.degree) + 4) * 2.0**-52
        return _DEVIATIONS * self.noise_deviation + transforms

    @property
    def precision(self) -> dict[str, tuple[float, float]]:
        """The scale divided by the segment's clip, and the error, by `block/segment`; counts are rounded."""
        return {
            f"{block.name}/{segment.name}": (
                self.scale / segment.clip,
                0.0 if segment.integral else self.relative_error * segment.clip,
            )
            for block in self.layout.blocks
            for segment in block.segments
        }

    def describe(self) -> dict[str, Any]:
        values, count = self.layout.length, self.ciphertexts
        return {
            **super().describe(),
            "set": self.parameters.set,
            "wire": self.parameters.wire,
            "security_bits": SECURITY_BITS,
            "ring_degree": self.degree,
            "modulus_bits": self.parameter_set.modulus_bits,
            "scale_bits": int(log2(self.scale)),
            "ciphertexts": count,
            "bytes_per_value_seeded": self.seeded_bytes(count) / values,
            "bytes_per_value_expanded": self.expanded_bytes(count) / values,
        }


def make_plan(parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> CkksPlan:
    """Return the plan of a task.

    Raises `ParameterError` for invalid parameters, `BudgetError` if the precision is not sufficient.
    """
    checked = validated("ckks parameters", CkksParameters, parameters)
    refuse_chosen(layout, "ckks")
    plan = CkksPlan(checked, layout, max_contributions, _degree(layout, checked))
    require_secure_ring(plan.degree, plan.parameter_set.modulus, "ternary")
    if not _fits(plan):
        raise BudgetError(_error_text(plan))
    return plan


def _degree(layout: VectorLayout, parameters: CkksParameters) -> int:
    """Return the largest degree that pads at most 1 % more than the smallest: fewer calls into SEAL are faster."""
    if parameters.degree is not None:
        return parameters.degree
    padded = {n: sum(ceil(block.length / n) for block in layout.blocks) * n for n in DEGREES}
    return max(n for n in DEGREES if padded[n] <= padded[DEGREES[0]] * _PADDING_TOLERANCE)


def _fits(plan: CkksPlan) -> bool:
    """Return whether counts round to the true whole number, and the error of other values is below their clip."""
    if plan.scale == 0.0:
        return False
    counts = [s.clip for block in plan.layout.blocks for s in block.segments if s.integral]
    return plan.relative_error < 1.0 and plan.relative_error * max(counts, default=0.0) < 0.5


def _error_text(plan: CkksPlan) -> str:
    error = "no scale fits" if plan.scale == 0.0 else f"the error could reach {plan.relative_error:.2g} of the clip"
    alternatives = []
    most = _most_contributions(plan)
    if most:
        alternatives.append(f"at most {most} contributions fit")
    for name, larger in PARAMETER_SETS.items():
        changed = plan.parameters.model_copy(update={"set": name})
        if larger.modulus > plan.parameter_set.modulus and _fits(replace(plan, parameters=changed)):
            alternatives.append(f"the set {name!r} fits")
    return (
        f"{plan.max_contributions} contributions exceed the precision of set {plan.parameters.set!r}: {error}; "
        f"{', or '.join(alternatives) or 'no named set fits'}"
    )


def _most_contributions(plan: CkksPlan) -> int:
    """Return the largest cohort that fits, by bisection (the error grows with the cohort); 0 if none fits."""
    low, high = 0, plan.max_contributions
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(replace(plan, max_contributions=middle)) else (low, middle)
    return low
