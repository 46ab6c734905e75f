"""Sums of integers in the clear: each value is a whole number of steps, so that every addition is exact.

contribution    int64 little-endian, the blocks of the route in order
partial         number of contributions (uint64), then int64 sums, all little-endian
aggregate       int64 little-endian
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.keyring import Keyring
from protocols.errors import BudgetError, ContributionError, ParameterError
from protocols.layout import Block, Route, VectorLayout
from protocols.sums.base import Buffer, OpenedBy, SumPlan
from protocols.sums.chosen import refuse_chosen

__all__ = ["INTEGERS", "IntegersPlan", "IntegersSum"]

_COUNT: Final = struct.Struct("<Q")
_STEPS: Final = 2**20
"""Steps from 0 to the clip of a value that is not a count; a count is its own number of steps."""
_LARGEST: Final = 2**52
"""Largest sum in steps: float64 holds it exactly."""


@dataclass(frozen=True)
class IntegersPlan:
    """The plan of a sum of integers; see `protocols.sums.base.SumPlan`."""

    layout: VectorLayout
    max_contributions: int

    @property
    def mechanism(self) -> str:
        """`integers`."""
        return "integers"

    @property
    def opened_by(self) -> OpenedBy:
        """ "anyone": nothing is encrypted."""
        return "anyone"

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
        return _COUNT.size + self.aggregate_bytes

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


class IntegersSum:
    """Sums of integers in the clear; see `protocols.sums.base.Mechanism`."""

    name: Final = "integers"
    needs_keyring: Final = False
    interactive: Final = False

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

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Raise `ParameterError`: there are no keys."""
        raise ParameterError(f"{plan.mechanism!r} sums have no keys")

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        """Return the blocks in steps, as int64."""
        expected = _own(plan).layout.contribution_blocks(route)
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
        own, length = _own(plan), memoryview(body).nbytes
        if length != own.contribution_bytes(route):
            raise ContributionError(
                f"a contribution along this route is {own.contribution_bytes(route)} bytes, got {length}"
            )
        bounds = [_steps(block) for block in own.layout.contribution_blocks(route)]
        values, most = np.frombuffer(body, "<i8"), np.concatenate([np.zeros(0), *bounds])
        if not ((values >= -most) & (values <= most)).all():
            raise ContributionError("a value exceeds its clip")

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return the partial sum plus checked contributions."""
        own = _own(plan)
        count, sums = _read(own, partial)
        edges = [0, *accumulate(block.length for block in own.layout.blocks)]
        for route, body in contributions:
            count = _counted(own, count + 1)
            values = np.frombuffer(exact(body, own.contribution_bytes(route), "a contribution along this route"), "<i8")
            lengths = [block.length for block in own.layout.contribution_blocks(route)]
            for targets, (start, end) in zip(route, pairwise(accumulate(lengths, initial=0)), strict=True):
                for target in targets:
                    sums[edges[target] : edges[target + 1]] += values[start:end]
        return _COUNT.pack(count) + sums.astype("<i8").tobytes()

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums."""
        own = _own(plan)
        count, sums = _read(own, None)
        for partial in partials:
            more, values = _read(own, partial)
            count, sums = _counted(own, count + more), sums + values
        return _COUNT.pack(count) + sums.astype("<i8").tobytes()

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the sums without the number of contributions."""
        return _read(_own(plan), partial)[1].astype("<i8").tobytes()

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """Return the sum, float64 (layout.length,); `CodecError` for another length."""
        own = _own(plan)
        if not 0 <= contributions <= own.max_contributions:
            raise ParameterError(f"the plan allows {own.max_contributions} contributions, got {contributions}")
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


def _counted(plan: IntegersPlan, count: int) -> int:
    if count > plan.max_contributions:
        raise BudgetError(f"the plan allows {plan.max_contributions} contributions, and this is one more")
    return count


def _read(plan: IntegersPlan, partial: Buffer | None) -> tuple[int, NDArray[np.int64]]:
    if partial is None:
        return 0, np.zeros(plan.layout.length, np.int64)
    view = exact(partial, plan.partial_bytes, "a partial sum")
    return _COUNT.unpack_from(view)[0], np.frombuffer(view, "<i8", offset=_COUNT.size).astype(np.int64)


def _own(plan: SumPlan) -> IntegersPlan:
    if not isinstance(plan, IntegersPlan):
        raise ParameterError(f"this plan belongs to {plan.mechanism!r}, not to 'integers'")
    return plan


INTEGERS: Final = IntegersSum()
"""The mechanism; stateless."""
