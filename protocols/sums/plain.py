"""The plain mechanism: what every benchmark compares with, and what locally private recipes use. Hides nothing.

contribution    float32 little-endian, the blocks of the route one after the other (behind a head that names them where
                the layout lets contributions choose: `protocols.sums.chosen`)
partial         contributions so far (uint64), then float64 sums, all little-endian
aggregate       float32 little-endian
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
from protocols.errors import BudgetError, CodecError, ContributionError, ParameterError
from protocols.keyring import Keyring
from protocols.layout import Route, VectorLayout
from protocols.sums.base import Buffer, OpenedBy, SumPlan
from protocols.sums.chosen import head_bytes, name_blocks, read_blocks

__all__ = ["PLAIN", "PlainMechanism", "PlainPlan"]

_COUNT: Final = struct.Struct("<Q")
_SLACK: Final = 1.0 + 2.0**-22
_FLOAT32_WHOLE: Final = 2**24
_FLOAT32_ROUNDING: Final = 2.0**-24
_LARGEST: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class PlainPlan:
    """A laid-out plain sum."""

    layout: VectorLayout
    max_contributions: int

    @property
    def mechanism(self) -> str:
        """`plain`."""
        return "plain"

    @property
    def opened_by(self) -> OpenedBy:
        """Anyone: nothing is hidden."""
        return "anyone"

    @property
    def predicted_error(self) -> float:
        """Float32 rounding of every contribution and of the aggregate, in the widest segment that is not a count."""
        clips = [s.clip for block in self.layout.blocks for s in block.segments if not s.integral]
        summed = max(clips, default=0.0) * self.max_contributions
        return summed * (2 * _FLOAT32_ROUNDING + self.max_contributions * 2.0**-53) * _SLACK

    @property
    def partial_bytes(self) -> int:
        """Length of a partial sum."""
        return _COUNT.size + 8 * self.layout.length

    @property
    def aggregate_bytes(self) -> int:
        """Length of a released aggregate."""
        return 4 * self.layout.length

    def contribution_bytes(self, route: Route) -> int:
        """Exact length of a contribution along `route`."""
        if self.layout.chosen:
            self.layout.check_route(route)
            return head_bytes(self.layout) + 4 * self.layout.chosen * self.layout.blocks[0].length
        return 4 * sum(block.length for block in self.layout.contribution_blocks(route))

    def describe(self) -> dict[str, Any]:
        """JSON-ready facts for people."""
        return {
            "mechanism": self.mechanism,
            "security_bits": 0,
            "max_contributions": self.max_contributions,
            "bytes_per_value": 4.0,
            "aggregate_bytes": self.aggregate_bytes,
            "predicted_error": self.predicted_error,
        }


class PlainMechanism:
    """Sums in the clear."""

    name: Final = "plain"
    needs_keyring: Final = False
    interactive: Final = False

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> PlainPlan:
        """Takes no parameters. `BudgetError` when a count could pass 2^24, the whole numbers that float32 holds."""
        if parameters:
            raise ParameterError(f"the plain mechanism takes no parameters, got {', '.join(sorted(parameters))}")
        if max_contributions < 1:
            raise ParameterError(f"max_contributions must be at least 1, got {max_contributions}")
        counts = [s.clip for block in layout.blocks for s in block.segments if s.integral]
        if counts and max(counts) * max_contributions > _FLOAT32_WHOLE:
            most = int(_FLOAT32_WHOLE / max(counts))
            raise BudgetError(f"counts must stay below 2^24 to be exact: at most {most} contributions fit")
        return PlainPlan(layout, max_contributions)

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """There is none: always `ParameterError`."""
        raise ParameterError(f"{plan.mechanism!r} sums have no keys")

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        """The blocks as float32. `keyring` is not used."""
        own = _own(plan)
        if own.layout.chosen:
            return _seal_chosen(own, blocks)
        layout_blocks = own.layout.contribution_blocks(route)
        if len(blocks) != len(layout_blocks):
            raise ParameterError(f"the route has {len(layout_blocks)} blocks, {len(blocks)} were given")
        for block, values in zip(layout_blocks, blocks, strict=True):
            if values.shape != (block.length,):
                raise ParameterError(f"block {block.name!r} needs {block.length} values, got shape {values.shape}")
            if not (np.abs(values) <= block.bounds() * _SLACK).all():
                raise BudgetError(f"block {block.name!r} holds a value that is not finite or over its clip")
        return b"".join(values.astype("<f4").tobytes() for values in blocks)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Exact length, every value finite and within its clip."""
        own = _own(plan)
        bounds = own.layout.contribution_bounds(route)
        if own.layout.chosen:
            body = read_blocks(own, body)[1]
        if memoryview(body).nbytes != 4 * bounds.size:
            raise ContributionError(
                f"a contribution along this route is {4 * bounds.size} bytes, got {memoryview(body).nbytes}"
            )
        values = np.frombuffer(body, "<f4")
        finite = np.isfinite(values)  # as float32: widening a signalling NaN warns
        wrong = np.flatnonzero(~(np.abs(values, where=finite, out=np.full_like(values, np.inf)) <= bounds * _SLACK))
        if wrong.size:
            raise ContributionError(f"value {int(wrong[0])} is not finite or over its clip")

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Add checked contributions to a partial sum, in float64."""
        own = _own(plan)
        count, sums = _read_partial(own, partial)
        blocks = () if own.layout.chosen else own.layout.blocks
        edges = [0, *accumulate(block.length for block in blocks)]
        for route, body in contributions:
            count += 1
            if count > own.max_contributions:
                raise BudgetError(f"the plan holds for {own.max_contributions} contributions, another one arrived")
            if own.layout.chosen:
                _fold_chosen(own, sums, route, body)
                continue
            lengths = [block.length for block in own.layout.contribution_blocks(route)]
            values = np.frombuffer(exact(body, 4 * sum(lengths), "a contribution along this route"), "<f4")
            for targets, (start, end) in zip(route, pairwise(accumulate(lengths, initial=0)), strict=True):
                for target in targets:
                    sums[edges[target] : edges[target + 1]] += values[start:end]
        return _COUNT.pack(count) + sums.astype("<f8").tobytes()

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """The sums rounded to float32."""
        return _read_partial(_own(plan), partial)[1].astype("<f4").tobytes()

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """The sum; `CodecError` for a wrong length or a value that no sum can have. `keyring` is not used."""
        own = _own(plan)
        if not 0 <= contributions <= own.max_contributions:
            raise ParameterError(f"the plan holds for {own.max_contributions} contributions, not {contributions}")
        narrow = np.frombuffer(exact(aggregate, own.aggregate_bytes, "an aggregate"), "<f4")
        if not np.isfinite(narrow).all():
            raise CodecError("the aggregate holds values that are not finite")
        values = narrow.astype(np.float64)
        return np.rint(values, out=values, where=own.layout.integral_mask())


def _seal_chosen(plan: PlainPlan, parts: Sequence[NDArray[np.float64]]) -> bytes:
    head, values = name_blocks(plan.layout, parts)
    block = plan.layout.blocks[0]
    if not (np.abs(values) <= block.bounds() * _SLACK).all():
        raise BudgetError(f"block {block.name!r} holds a value that is not finite or over its clip")
    return head + values.astype("<f4").tobytes()


def _fold_chosen(plan: PlainPlan, sums: NDArray[np.float64], route: Route, body: Buffer) -> None:
    plan.layout.check_route(route)
    numbers, values = read_blocks(plan, body)
    width = plan.layout.blocks[0].length
    sums.reshape(-1, width)[numbers] += np.frombuffer(values, "<f4").reshape(-1, width)


def _read_partial(plan: PlainPlan, partial: Buffer | None) -> tuple[int, NDArray[np.float64]]:
    if partial is None:
        return 0, np.zeros(plan.layout.length)
    view = exact(partial, plan.partial_bytes, "a partial sum")
    (count,) = _COUNT.unpack_from(view)
    sums = np.frombuffer(view, "<f8", offset=_COUNT.size).astype(np.float64)
    if not (np.abs(sums) <= _LARGEST).all():
        raise CodecError("a partial sum holds a value that no sum can have")
    return count, sums


def _own(plan: SumPlan) -> PlainPlan:
    if not isinstance(plan, PlainPlan):
        raise ParameterError(f"this plan belongs to {plan.mechanism!r}, not to 'plain'")
    return plan


PLAIN: Final = PlainMechanism()
"""The mechanism; stateless."""
