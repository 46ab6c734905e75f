"""The plan of a Paillier sum: two key sizes, slots, lengths, and a bound on the error of the opened sum.

`protocols.sums.paillier.packing` proves that no slot carries into the next, and that the error is at most half a step
per contribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from protocols.codec import b64decode
from protocols.crypto.keys import digest
from protocols.errors import BudgetError, CodecError
from protocols.layout import Block, Route, Segment, VectorLayout
from protocols.parameter_text import validated
from protocols.sums.base import CiphertextPlan
from protocols.sums.paillier.packing import MAX_SUM, BlockPacking, SegmentCode
from protocols.sums.wire import head_bytes

SECURITY_BITS: Final = {2048: 112, 3072: 128}
"""Bits of the modulus -> classical security bits (NIST SP 800-57 part 1, table 2)."""


class PaillierParameters(BaseModel):
    """A task's parameters for Paillier sums; everything else follows from the layout and the cohort."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key_bits: Literal[2048, 3072] = Field(
        default=3072, description="Bits of the modulus n: 3072 for 128 bits of security, 2048 for 112."
    )
    value_bits: int = Field(
        default=32,
        ge=8,
        le=48,
        description="Bits of one value with its sign, before the headroom for the sum. Counts use as many as needed.",
    )
    public_key: str | None = Field(
        default=None,
        description="The modulus n, big-endian base64url, once the key holder has made it; others are then refused.",
    )

    @field_validator("public_key")
    @classmethod
    def _is_base64url(cls, text: str | None) -> str | None:
        try:
            b64decode(text or "")
        except CodecError:
            raise ValueError("a public key must be base64url without padding") from None
        return text

    @model_validator(mode="after")
    def _check_consistency(self) -> PaillierParameters:
        if self.modulus is not None and (self.modulus.bit_length() != self.key_bits or self.modulus % 2 == 0):
            raise ValueError(f"the public key is not an odd number of {self.key_bits} bits")
        return self

    @property
    def modulus(self) -> int | None:
        """n if the task names it, else None; 0 for a key of another length."""
        if self.public_key is None:
            return None
        body = b64decode(self.public_key)
        return int.from_bytes(body, "big") if len(body) == self.key_bits // 8 else 0


def checked_parameters(parameters: Mapping[str, Any]) -> PaillierParameters:
    """Return the validated parameters of a task; `ParameterError` names the first invalid one."""
    return validated("paillier parameters", PaillierParameters, parameters)


_LEAST_VALUE_BITS: Final = 8


@dataclass(frozen=True)
class PaillierPlan(CiphertextPlan):
    """The plan of a Paillier sum; all parties compute the same from the task's parameters."""

    parameters: PaillierParameters
    layout: VectorLayout
    max_contributions: int
    mechanism: ClassVar[str] = "paillier"

    @property
    def folds_slowly(self) -> bool:
        """True: a fold multiplies modulo n^2 once for each ciphertext."""
        return True

    @property
    def key_bits(self) -> int:
        """Bits of the modulus n."""
        return self.parameters.key_bits

    @cached_property
    def modulus(self) -> int | None:
        """n if the task names it; None if the first contribution of a sum determines it."""
        return self.parameters.modulus

    @property
    def modulus_bytes(self) -> int:
        """Length of n on the wire, in bytes."""
        return self.key_bits // 8

    @property
    def ciphertext_bytes(self) -> int:
        """Length of one ciphertext on the wire, in bytes: a number below n^2."""
        return self.key_bits // 4

    @cached_property
    def parameter_id(self) -> bytes:
        """32 bytes that identify the key size."""
        return digest("paillier parameters", self.key_bits)

    @cached_property
    def packings(self) -> tuple[BlockPacking, ...]:
        """The packing of each block of the aggregate; blocks of equal segments share one."""
        shared = {segments: self._packing(segments) for segments in {block.segments for block in self.layout.blocks}}
        return tuple(shared[block.segments] for block in self.layout.blocks)

    def _packing(self, segments: tuple[Segment, ...]) -> BlockPacking:
        codes = (SegmentCode.of(s, self.parameters.value_bits, self.max_contributions) for s in segments)
        return BlockPacking(segments, tuple(codes), self.key_bits)

    @cached_property
    def _coded_segments(self) -> dict[str, tuple[Segment, SegmentCode]]:
        """Segment and code by `block/segment`, for the first of all blocks with equal segments: there may be many."""
        first: dict[tuple[Segment, ...], Block] = {}
        for block in self.layout.blocks:
            first.setdefault(block.segments, block)
        return {
            f"{block.name}/{segment.name}": (segment, code)
            for segments, block in first.items()
            for segment, code in zip(segments, self._packing(segments).codes, strict=True)
        }

    @cached_property
    def block_ciphertexts(self) -> tuple[int, ...]:
        return tuple(packing.plaintexts for packing in self.packings)

    def contribution_bytes(self, route: Route) -> int:
        head = head_bytes(self.layout)
        return head + self.modulus_bytes + self.route_ciphertexts(route) * self.ciphertext_bytes

    @property
    def aggregate_bytes(self) -> int:
        return self.modulus_bytes + self.ciphertexts * self.ciphertext_bytes

    @property
    def precision(self) -> dict[str, tuple[float, float]]:
        """Steps of a slot per 1.0, and half a step per contribution, for the first of blocks with equal segments."""
        return {
            name: (code.scale, 0.0 if segment.integral else self.max_contributions / 2 / code.scale)
            for name, (segment, code) in self._coded_segments.items()
        }

    def describe(self) -> dict[str, Any]:
        values = self.layout.length
        return {
            **super().describe(),
            "key_bits": self.key_bits,
            "security_bits": SECURITY_BITS[self.key_bits],
            "value_bits": self.parameters.value_bits,
            "slot_bits": {name: code.width for name, (_, code) in self._coded_segments.items()},
            "ciphertexts": self.ciphertexts,
            "values_per_ciphertext": values / self.ciphertexts,
            "bytes_per_value": self.aggregate_bytes / values,
            "names_public_key": self.modulus is not None,
        }


def make_plan(parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> PaillierPlan:
    """Return the plan of a task.

    Raises `ParameterError` for invalid parameters, `BudgetError` if sums could exceed the exact range of float64.
    """
    checked = checked_parameters(parameters)
    segments = {segment for block in layout.blocks for segment in block.segments}
    largest = max(SegmentCode.of(segment, checked.value_bits, 1).largest for segment in segments)
    if max_contributions * largest > MAX_SUM:
        raise BudgetError(_error_text(checked, segments, max_contributions, MAX_SUM // largest))
    return PaillierPlan(checked, layout, max_contributions)


def _error_text(parameters: PaillierParameters, segments: set[Segment], contributions: int, most: int) -> str:
    alternatives = [f"at most {most} contributions fit"] if most else []
    counts = max((SegmentCode.of(s, 0, 1).largest for s in segments if s.integral), default=0)
    value_bits = (MAX_SUM // contributions + 1).bit_length()
    if contributions * counts <= MAX_SUM and _LEAST_VALUE_BITS <= value_bits < parameters.value_bits:
        alternatives.append(f"value_bits of at most {value_bits} fit")
    return (
        f"sums of {contributions} contributions with value_bits {parameters.value_bits} could exceed 2^53, the largest "
        f"exact integer in float64; {', or '.join(alternatives) or 'no number of contributions fits these counts'}"
    )
