"""Sums of integers in the clear: each value is a whole number of steps, so that every addition is exact.

contribution    int64 little-endian, the blocks of the route in order
partial         number of contributions (uint64), then int64 sums, all little-endian
aggregate       int64 little-endian
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.keys import Keyring
from protocols.errors import BudgetError, ContributionError, ParameterError
from protocols.layout import Block, Floats, Route, VectorLayout
from protocols.sums.base import COUNT_BYTES, Blocks, Buffer, OneMessage, SumPlan
from protocols.sums.wire import PartialSum, read_count, refuse_chosen

_INT64: Final = np.dtype(np.int64)
_STEPS: Final = 2**20
"""Steps from 0 to the clip of a value that is not a count; a count is its own number of steps."""
_LARGEST: Final = 2**52
"""Largest sum in steps: float64 holds it exactly."""


@dataclass(frozen=True)
class IntegersPlan(SumPlan):
    """The plan of a sum of integers; see `protocols.sums.base.SumPlan`."""

    layout: VectorLayout
    max_contributions: int
    mechanism: ClassVar[str] = "integers"

    @property
    def predicted_error(self) -> float:
        """Half a step of the widest segment for each contribution."""
        clips = [s.clip for block in self.layout.blocks for s in block.segments if not s.integral]
        return max(clips, default=0.0) / _STEPS / 2 * self.max_contributions * (1 + 2**-30)

    @property
    def segment_scales(self) -> dict[str, float]:
        """Steps per 1.0, by `block/segment`."""
        segments = {f"{block.name}/{s.name}": s for block in self.layout.blocks for s in block.segments}
        return {name: 1.0 if s.integral else _STEPS / s.clip for name, s in segments.items()}

    @property
    def partial_bytes(self) -> int:
        """Length of a partial sum in bytes."""
        return COUNT_BYTES + self.aggregate_bytes

    @property
    def aggregate_bytes(self) -> int:
        """Length of a released aggregate in bytes."""
        return 8 * self.layout.length

    def contribution_bytes(self, route: Route) -> int:
        """Return the exact length in bytes of a contribution along `route`."""
        return 8 * sum(block.length for block in self.layout.contribution_blocks(route))

    def describe(self) -> dict[str, Any]:
        """Return facts for people, JSON-ready."""
        return {
            "mechanism": self.mechanism,
            "security_bits": 0,
            "max_contributions": self.max_contributions,
            "bytes_per_value": 8.0,
            "aggregate_bytes": self.aggregate_bytes,
            "predicted_error": self.predicted_error,
        }


class IntegersSum(OneMessage):
    """Sums of integers in the clear; see `protocols.sums.base.Mechanism`."""

    name: ClassVar[str] = "integers"

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> IntegersPlan:
        """Return the plan; `ParameterError` for any parameter, `BudgetError` if the sums could exceed 2^52 steps."""
        if parameters:
            raise ParameterError("the integers mechanism takes no parameters")
        if max_contributions < 1:
            raise ParameterError(f"max_contributions must be at least 1, got {max_contributions}")
        refuse_chosen(layout, self.name)
        most = int(_LARGEST // max(_steps(block).max() for block in layout.blocks))
        if max_contributions > most:
            raise BudgetError(f"sums are exact up to 2^52 steps only: at most {most} contributions fit")
        return IntegersPlan(layout, max_contributions)

    def seal(self, plan: SumPlan, route: Route, blocks: Blocks, keyring: Keyring | None) -> bytes:
        """Return the blocks in steps, as int64."""
        expected = IntegersPlan.of(plan).layout.contribution_blocks(route)
        if len(blocks) != len(expected):
            raise ParameterError(f"the route has {len(expected)} blocks, {len(blocks)} were given")
        sealed = b""
        for block, values in zip(expected, blocks, strict=True):
            if values.shape != (block.length,):
                raise ParameterError(f"block {block.name!r} needs {block.length} values, got shape {values.shape}")
            if not (np.abs(values) <= block.bounds()).all():
                raise BudgetError(f"block {block.name!r} holds a value that is not finite or exceeds its clip")
            sealed += np.rint(values / block.bounds() * _steps(block)).astype("<i8").tobytes()
        return sealed

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless the length is exact and every value is within its clip."""
        own = IntegersPlan.of(plan)
        body = own.require_length(route, body)
        bounds = [_steps(block) for block in own.layout.contribution_blocks(route)]
        values, most = np.frombuffer(body, "<i8"), np.concatenate([np.zeros(0), *bounds])
        if not ((values >= -most) & (values <= most)).all():
            raise ContributionError("a value exceeds its clip")

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return the partial sum plus checked contributions."""
        own = IntegersPlan.of(plan)
        total = _total(own, () if partial is None else (partial,))
        for route, body in contributions:
            total.count_more(1)
            values = np.frombuffer(exact(body, own.contribution_bytes(route), "a contribution along this route"), "<i8")
            total.sums[: values.size] += values
        return total.encode()

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums."""
        return _total(IntegersPlan.of(plan), partials).encode()

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the sums without the number of contributions."""
        return bytes(read_count(IntegersPlan.of(plan), partial)[1])

    def open(self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None) -> Floats:
        """Return the sum, float64 (layout.length,); `CodecError` for another length."""
        own = IntegersPlan.of(plan)
        own.require_count(contributions)
        values = np.frombuffer(exact(aggregate, own.aggregate_bytes, "an aggregate"), "<i8").astype(np.float64)
        return np.concatenate(
            [
                part / _steps(block) * block.bounds()
                for block, part in zip(own.layout.blocks, own.layout.split(values), strict=True)
            ]
        )


def _steps(block: Block) -> NDArray[np.float64]:
    """Return the largest number of steps of each value in one contribution, float64 (length,)."""
    return np.where(block.integral_mask(), block.bounds(), float(_STEPS))


def _total(plan: IntegersPlan, partials: Iterable[Buffer]) -> PartialSum[np.int64]:
    total = PartialSum(plan, _INT64)
    for partial in partials:
        total.sums[:] += total.take(partial)
    return total


INTEGERS: Final = IntegersSum()
"""The mechanism; stateless."""
