"""The plain mechanism hides nothing. It is the baseline of every benchmark, and serves locally private recipes.

contribution    float32 little-endian, the blocks of the route in order (after a head that names them if the layout
                lets contributions choose: `protocols.sums.wire`)
partial         contributions so far (uint64), then float64 sums, all little-endian
aggregate       float32 little-endian

Every value is rounded to a multiple of its segment's grain, a power of two so small that the sum of a full cohort still
fits float64's 53 bits. Every addition is therefore exact, and a sum does not depend on order, batches or workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import frexp, ldexp
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.keys import Keyring
from protocols.errors import BudgetError, CodecError, ContributionError, ParameterError
from protocols.layout import CLIP_SLACK, Block, Floats, Route, VectorLayout
from protocols.sums.base import COUNT_BYTES, Blocks, Buffer, ChecksByParts, OneMessage, OpensByParts, SumPlan
from protocols.sums.wire import BytesBuilder, PartialSum, head_bytes, name_blocks, read_blocks, read_count

_FLOAT64: Final = np.dtype(np.float64)
_FLOAT32_WHOLE: Final = 2**24
_FLOAT32_ROUNDING: Final = 2.0**-24
_LARGEST: Final = float(np.finfo(np.float32).max)
_PIECE: Final = 32 * 1024
"""Values rounded and added at a time, so that they stay in the processor's cache."""
_FEW_RUNS: Final = 16
"""Most runs of values with the same bound whose maxima are faster to compare than all values with their bounds."""
_CHECKED: Final = 1024 * 1024
"""Bytes of a contribution that are checked at a time."""


@dataclass(frozen=True)
class PlainPlan(SumPlan):
    """The plan of a plain sum; see `protocols.sums.base.SumPlan`."""

    layout: VectorLayout
    max_contributions: int
    mechanism: ClassVar[str] = "plain"

    @property
    def predicted_error(self) -> float:
        """Bound on the error of float32 rounding and of the grain, in the widest segment that is not a count.

        The first term is the rounding of every contribution and of the aggregate. The second is the grain's: a grain is
        at most 2^-52 of clip * max_contributions, and n values are rounded to it with an error of half a grain each.
        """
        clips = [s.clip for block in self.layout.blocks for s in block.segments if not s.integral]
        summed = max(clips, default=0.0) * self.max_contributions
        return summed * (2 * _FLOAT32_ROUNDING + self.max_contributions * 2.0**-53) * CLIP_SLACK

    @property
    def partial_bytes(self) -> int:
        return COUNT_BYTES + 8 * self.layout.length

    @property
    def aggregate_bytes(self) -> int:
        return 4 * self.layout.length

    def contribution_bytes(self, route: Route) -> int:
        if self.layout.chosen:
            self.layout.check_route(route)
            return head_bytes(self.layout) + 4 * self.layout.chosen * self.layout.blocks[0].length
        return 4 * _limits(self.layout, route)[-1][0] if route else 0

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "security_bits": 0, "bytes_per_value": 4.0}


class PlainMechanism(OneMessage, ChecksByParts, OpensByParts):
    """Sums of vectors in the clear; see `protocols.sums.base.Mechanism`."""

    name: ClassVar[str] = "plain"

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> PlainPlan:
        """Return the plan of a plain sum, which has no parameters.

        Raises `ParameterError` for any parameter and `BudgetError` if a count could exceed 2^24, the largest exact
        count in float32.
        """
        if parameters:
            raise ParameterError("the plain mechanism takes no parameters")
        counts = [s.clip for block in layout.blocks for s in block.segments if s.integral]
        if counts and max(counts) * max_contributions > _FLOAT32_WHOLE:
            most = int(_FLOAT32_WHOLE / max(counts))
            raise BudgetError(f"counts are exact up to 2^24 only: at most {most} contributions fit")
        return PlainPlan(layout, max_contributions)

    def seal(self, plan: SumPlan, route: Route, blocks: Blocks, keyring: Keyring | None) -> bytes:
        """Return the blocks as float32; see `protocols.sums.base.OneMessage.seal`. `keyring` is not used."""
        own = PlainPlan.of(plan)
        if own.layout.chosen:
            return _seal_chosen(own, blocks)
        own.layout.check_contribution(route, blocks)
        return b"".join(values.astype("<f4").tobytes() for values in blocks)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless the length is exact and every value is finite and within its clip."""
        own = PlainPlan.of(plan)
        view = own.require_length(route, body)
        if own.layout.chosen:
            view = read_blocks(own, body)[1]
        for start in range(0, view.nbytes, _CHECKED):
            _check_values(own, route, start // 4, view[start : start + _CHECKED])

    def check_part(self, plan: SumPlan, route: Route, start: int, part: Buffer) -> None:
        """Do what `ChecksByParts.check_part` does; `ParameterError` for a layout with chosen blocks."""
        own = PlainPlan.of(plan)
        if own.layout.chosen:
            raise ParameterError("a contribution that names its blocks is checked as a whole")
        _check_values(own, route, start // 4, part)

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        own = PlainPlan.of(plan)
        total = _total(own, () if partial is None else (partial,))
        blocks = () if own.layout.chosen else own.layout.blocks
        edges = [0, *accumulate(block.length for block in blocks)]
        grains = [_rounding_constants(block, own.max_contributions) for block in blocks]
        for route, body in contributions:
            total.count_more(1)
            if own.layout.chosen:
                _fold_chosen(own, total.sums, route, body)
                continue
            own.layout.check_route(route)
            values = np.frombuffer(exact(body, 4 * edges[route], "a contribution along this route"), "<f4")
            for (start, end), grain in zip(pairwise(edges[: route + 1]), grains, strict=False):
                _add(total.sums[start:end], values[start:end], grain)
        return total.encode()

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums. It is exact, since all are multiples of the same grains."""
        return _total(PlainPlan.of(plan), partials).encode()

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the sums rounded to float32; `CodecError` for sums that are not finite or exceed its range."""
        plan = PlainPlan.of(plan)
        sums = _in_range(np.frombuffer(read_count(plan, partial)[1], "<f8"))
        builder = BytesBuilder(4 * sums.size)
        np.copyto(np.frombuffer(builder.body, "<f4"), sums, casting="same_kind")
        return builder.finish()

    def open(self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None) -> Floats:
        own = PlainPlan.of(plan)
        own.require_count(contributions)
        return self.open_part(own, aggregate, contributions, 0, own.layout.length)

    def open_part(self, plan: SumPlan, aggregate: Buffer, contributions: int, start: int, stop: int) -> Floats:
        own = PlainPlan.of(plan)
        narrow = np.frombuffer(exact(aggregate, own.aggregate_bytes, "an aggregate"), "<f4")[start:stop]
        if not np.isfinite(narrow).all():
            raise CodecError("the aggregate holds values that are not finite")
        values = narrow.astype(np.float64)
        for first, last in own.layout.integral_spans():
            part = values[max(first - start, 0) : max(last - start, 0)]
            np.rint(part, out=part)
        return values


def _check_values(plan: PlainPlan, route: Route, first: int, body: Buffer) -> None:
    """Raise `ContributionError` unless values `first`, `first` + 1, ... of a contribution are finite and clipped."""
    values, start = np.frombuffer(body, "<f4"), 0
    runs = _limits(plan.layout, route)
    if len(runs) > _FEW_RUNS:
        _check_each(plan, route, first, values)
        return
    for end, limit in runs:
        run = values[max(start - first, 0) : max(end - first, 0)]
        if run.size and not float(np.maximum.reduce(np.abs(run))) <= limit:  # of values with a NaN, the maximum is NaN
            _check_each(plan, route, first, values)
        start = end


@lru_cache(maxsize=256)
def _limits(layout: VectorLayout, route: Route) -> tuple[tuple[int, float], ...]:
    """Return the runs of values of a contribution that have the same bound: where each ends, and the bound."""
    blocks = (layout.blocks[0],) * layout.chosen if layout.chosen else layout.contribution_blocks(route)
    runs: list[tuple[int, float]] = []
    end = 0
    for segment in (segment for block in blocks for segment in block.segments):
        end, limit = end + segment.length, segment.clip * CLIP_SLACK
        if runs and runs[-1][1] == limit:
            runs.pop()
        runs.append((end, limit))
    return tuple(runs)


def _check_each(plan: PlainPlan, route: Route, first: int, values: NDArray[np.float32]) -> None:
    """Raise `ContributionError` with the place of the first value that is not finite or exceeds its clip, if any."""
    bounds = plan.layout.contribution_bounds(route, first, first + values.size)
    finite = np.isfinite(values)  # as float32: widening a signalling NaN warns
    wrong = np.flatnonzero(~(np.abs(values, where=finite, out=np.full_like(values, np.inf)) <= bounds * CLIP_SLACK))
    if wrong.size:
        raise ContributionError(f"value {first + int(wrong[0])} is not finite or exceeds its clip")


def _seal_chosen(plan: PlainPlan, parts: Sequence[NDArray[np.float64]]) -> bytes:
    head, values = name_blocks(plan.layout, parts)
    plan.layout.blocks[0].check_clips(values)
    return head + values.astype("<f4").tobytes()


def _fold_chosen(plan: PlainPlan, sums: NDArray[np.float64], route: Route, body: Buffer) -> None:
    plan.layout.check_route(route)
    numbers, values = read_blocks(plan, body)
    block = plan.layout.blocks[0]
    rounded = np.frombuffer(values, "<f4").reshape(-1, block.length).astype(np.float64)
    for span, shift in _rounding_constants(block, plan.max_contributions):
        rounded[:, span] += shift
        rounded[:, span] -= shift
    sums.reshape(-1, block.length)[numbers] += rounded


@lru_cache(maxsize=4096)
def _rounding_constants(block: Block, contributions: int) -> tuple[tuple[slice, float], ...]:
    """Return for each segment its slice of the block, and the constant that rounds a value to the grain.

    Adding and then subtracting the constant rounds. The grain is 2^(e - 53), 2^e the power of two above the largest sum
    of `contributions` values. Float64 numbers near 1.5 * 2^52 grains are whole grains, so adding 1.5 * 2^52 grains
    rounds half to even.
    """
    edges = accumulate((segment.length for segment in block.segments), initial=0)
    found = []
    for segment, (start, end) in zip(block.segments, pairwise(edges), strict=True):
        _, exponent = frexp(segment.clip * CLIP_SLACK * max(contributions, 4))  # one value: at most 2^51 grains
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


def _total(plan: PlainPlan, partials: Iterable[Buffer]) -> PartialSum[np.float64]:
    total = PartialSum(plan, _FLOAT64)
    for partial in partials:
        np.add(total.sums, _in_range(total.take(partial)), out=total.sums)
    return total


def _in_range(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums; `CodecError` if one is not finite or exceeds float32's range."""
    for start in range(0, sums.size, _PIECE):
        if not (np.abs(sums[start : start + _PIECE]) <= _LARGEST).all():
            raise CodecError("a partial sum holds a value that is not finite or exceeds float32's range")
    return sums


PLAIN: Final = PlainMechanism()
"""The mechanism; stateless."""
