"""The plain mechanism: what every benchmark compares with, and what locally private recipes use. Hides nothing.

contribution    float32 little-endian, the blocks of the route one after the other (behind a head that names them where
                the layout lets contributions choose: `protocols.sums.chosen`)
partial         contributions so far (uint64), then float64 sums, all little-endian
aggregate       float32 little-endian

Every value is rounded to a multiple of its segment's grain, a power of two so small that the sum of a full cohort still
fits float64's 53 bits. So each addition is exact, and neither order nor batches nor workers show in a sum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import frexp, ldexp
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.keyring import Keyring
from protocols.errors import BudgetError, CodecError, ContributionError, ParameterError
from protocols.layout import Block, Route, VectorLayout
from protocols.sums.base import Buffer, OpenedBy, SumPlan
from protocols.sums.chosen import head_bytes, name_blocks, read_blocks

__all__ = ["PLAIN", "PlainMechanism", "PlainPlan"]

_COUNT: Final = struct.Struct("<Q")
_SLACK: Final = 1.0 + 2.0**-22
_FLOAT32_WHOLE: Final = 2**24
_FLOAT32_ROUNDING: Final = 2.0**-24
_LARGEST: Final = float(np.finfo(np.float32).max)
_PIECE: Final = 32 * 1024
"""Values rounded and added at a time, in the processor's cache."""


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
        """Float32 rounding of every contribution and of the aggregate, in the widest segment that is not a count.

        The second term is the grain's: at most 2^-52 of clip * max_contributions, rounded to half of it n times.
        """
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
            raise ParameterError("the plain mechanism takes no parameters")
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
        grains = [_grains(block, own.max_contributions) for block in blocks]
        for route, body in contributions:
            count = _counted(own, count, 1)
            if own.layout.chosen:
                _fold_chosen(own, sums, route, body)
                continue
            lengths = [block.length for block in own.layout.contribution_blocks(route)]
            values = np.frombuffer(exact(body, 4 * sum(lengths), "a contribution along this route"), "<f4")
            for targets, (start, end) in zip(route, pairwise(accumulate(lengths, initial=0)), strict=True):
                for target in targets:
                    _add(sums[edges[target] : edges[target + 1]], values[start:end], grains[target])
        return _write_partial(count, sums)

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Add partial sums: exact, since all are multiples of the same grains."""
        own = _own(plan)
        count, sums = 0, np.zeros(own.layout.length)
        for partial in partials:
            more, values = _read_partial(own, partial)
            count = _counted(own, count, more)
            sums += values
        return _write_partial(count, sums)

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
    block = plan.layout.blocks[0]
    rounded = np.frombuffer(values, "<f4").reshape(-1, block.length).astype(np.float64)
    for span, shift in _grains(block, plan.max_contributions):
        rounded[:, span] += shift
        rounded[:, span] -= shift
    sums.reshape(-1, block.length)[numbers] += rounded


@lru_cache(maxsize=4096)
def _grains(block: Block, contributions: int) -> tuple[tuple[slice, float], ...]:
    """For each segment its place in the block, and what rounds a value to the grain when added and taken off again.

    The grain is 2^(e - 53), 2^e the power of two above what `contributions` values can add up to. Float64 numbers
    around 1.5 * 2^52 grains are whole grains: adding that much rounds, half to even.
    """
    edges = accumulate((segment.length for segment in block.segments), initial=0)
    found = []
    for segment, (start, end) in zip(block.segments, pairwise(edges), strict=True):
        _, exponent = frexp(segment.clip * _SLACK * max(contributions, 4))  # one value: at most 2^51 grains
        found.append((slice(start, end), ldexp(1.5, exponent - 1)))
    return tuple(found)


def _add(sums: NDArray[np.float64], values: NDArray[np.float32], grains: tuple[tuple[slice, float], ...]) -> None:
    """Add one contribution's values of a block, rounded to the grains."""
    rounded = np.empty(min(_PIECE, sums.size))
    for span, shift in grains:
        for start in range(span.start, span.stop, _PIECE):
            end = min(start + _PIECE, span.stop)
            piece = np.add(values[start:end], shift, out=rounded[: end - start], dtype=np.float64)
            piece -= shift
            sums[start:end] += piece


def _counted(plan: PlainPlan, count: int, more: int) -> int:
    count += more
    if count > plan.max_contributions:
        raise BudgetError(f"the plan holds for {plan.max_contributions} contributions, another one arrived")
    return count


def _write_partial(count: int, sums: NDArray[np.float64]) -> bytes:
    return _COUNT.pack(count) + sums.astype("<f8", copy=False).tobytes()


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
