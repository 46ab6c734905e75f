"""The plain mechanism hides nothing. It is the baseline of every benchmark, and serves locally private recipes.

contribution    float32 little-endian, the blocks of the route in order (after a head that names them if the layout
                lets contributions choose: `protocols.sums.chosen`)
partial         contributions so far (uint64), then float64 sums, all little-endian
aggregate       float32 little-endian

Every value is rounded to a multiple of its segment's grain, a power of two so small that the sum of a full cohort still
fits float64's 53 bits. Every addition is therefore exact, and a sum does not depend on order, batches or workers.
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
from protocols.sums.draft import Draft

__all__ = ["PLAIN", "PlainMechanism", "PlainPlan"]

_COUNT: Final = struct.Struct("<Q")
_SLACK: Final = 1.0 + 2.0**-22
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
class PlainPlan:
    """The plan of a plain sum; see `protocols.sums.base.SumPlan`."""

    layout: VectorLayout
    max_contributions: int

    @property
    def mechanism(self) -> str:
        """`plain`."""
        return "plain"

    @property
    def opened_by(self) -> OpenedBy:
        """ "anyone": nothing is encrypted."""
        return "anyone"

    @property
    def predicted_error(self) -> float:
        """Bound on the error of float32 rounding and of the grain, in the widest segment that is not a count.

        The first term is the rounding of every contribution and of the aggregate. The second is the grain's: a grain is
        at most 2^-52 of clip * max_contributions, and n values are rounded to it with an error of half a grain each.
        """
        clips = [s.clip for block in self.layout.blocks for s in block.segments if not s.integral]
        summed = max(clips, default=0.0) * self.max_contributions
        return summed * (2 * _FLOAT32_ROUNDING + self.max_contributions * 2.0**-53) * _SLACK

    @property
    def segment_scales(self) -> dict[str, float]:
        """Nothing: values are sent as float32."""
        return {}

    @property
    def partial_bytes(self) -> int:
        """Length of a partial sum in bytes."""
        return _COUNT.size + 8 * self.layout.length

    @property
    def aggregate_bytes(self) -> int:
        """Length of a released aggregate in bytes."""
        return 4 * self.layout.length

    def contribution_bytes(self, route: Route) -> int:
        """Return the exact length in bytes of a contribution along `route`."""
        if self.layout.chosen:
            self.layout.check_route(route)
            return head_bytes(self.layout) + 4 * self.layout.chosen * self.layout.blocks[0].length
        return 4 * _limits(self.layout, route)[-1][0] if route else 0

    def describe(self) -> dict[str, Any]:
        """Return facts for people, JSON-ready; see `protocols.sums.base.SumPlan.describe`."""
        return {
            "mechanism": self.mechanism,
            "security_bits": 0,
            "max_contributions": self.max_contributions,
            "bytes_per_value": 4.0,
            "aggregate_bytes": self.aggregate_bytes,
            "predicted_error": self.predicted_error,
        }


class PlainMechanism:
    """Sums of vectors in the clear; see `protocols.sums.base.Mechanism`."""

    name: Final = "plain"
    needs_keyring: Final = False
    interactive: Final = False

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> PlainPlan:
        """Return the plan of a plain sum, which has no parameters.

        Raises `ParameterError` for any parameter and `BudgetError` if a count could exceed 2^24, the largest exact
        count in float32.
        """
        if parameters:
            raise ParameterError("the plain mechanism takes no parameters")
        if max_contributions < 1:
            raise ParameterError(f"max_contributions must be at least 1, got {max_contributions}")
        counts = [s.clip for block in layout.blocks for s in block.segments if s.integral]
        if counts and max(counts) * max_contributions > _FLOAT32_WHOLE:
            most = int(_FLOAT32_WHOLE / max(counts))
            raise BudgetError(f"counts are exact up to 2^24 only: at most {most} contributions fit")
        return PlainPlan(layout, max_contributions)

    def generate_keyring(self, plan: SumPlan) -> Keyring:
        """Raise `ParameterError`: plain sums have no keys."""
        raise ParameterError(f"{plan.mechanism!r} sums have no keys")

    def seal(
        self, plan: SumPlan, route: Route, blocks: Sequence[NDArray[np.float64]], keyring: Keyring | None
    ) -> bytes:
        """Return the blocks as float32; see `protocols.sums.base.Mechanism.seal`. `keyring` is not used."""
        own = _require_own_plan(plan)
        if own.layout.chosen:
            return _seal_chosen(own, blocks)
        layout_blocks = own.layout.contribution_blocks(route)
        if len(blocks) != len(layout_blocks):
            raise ParameterError(f"the route has {len(layout_blocks)} blocks, {len(blocks)} were given")
        for block, values in zip(layout_blocks, blocks, strict=True):
            if values.shape != (block.length,):
                raise ParameterError(f"block {block.name!r} needs {block.length} values, got shape {values.shape}")
            if not (np.abs(values) <= block.bounds() * _SLACK).all():
                raise BudgetError(f"block {block.name!r} holds a value that is not finite or exceeds its clip")
        return b"".join(values.astype("<f4").tobytes() for values in blocks)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless the length is exact and every value is finite and within its clip."""
        own = _require_own_plan(plan)
        expected, view = own.contribution_bytes(route), memoryview(body)
        if own.layout.chosen:
            expected -= head_bytes(own.layout)
            view = memoryview(read_blocks(own, body)[1])
        if view.nbytes != expected:
            raise ContributionError(f"a contribution along this route is {expected} bytes, got {view.nbytes}")
        for start in range(0, expected, _CHECKED):
            _check_values(own, route, start // 4, view[start : start + _CHECKED])

    def check_part(self, plan: SumPlan, route: Route, start: int, part: Buffer) -> None:
        """Check a part of a contribution; see `protocols.sums.base.ChecksByParts`. Not for blocks that are chosen."""
        own = _require_own_plan(plan)
        if own.layout.chosen:
            raise ParameterError("a contribution that names its blocks is checked as a whole")
        _check_values(own, route, start // 4, part)

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return the partial sum plus checked contributions, in float64; see `protocols.sums.base.Mechanism.fold`."""
        own = _require_own_plan(plan)
        total = _Total(own)
        if partial is not None:
            total.add_partial(partial)
        blocks = () if own.layout.chosen else own.layout.blocks
        edges = [0, *accumulate(block.length for block in blocks)]
        grains = [_rounding_constants(block, own.max_contributions) for block in blocks]
        for route, body in contributions:
            total.count_more(1)
            if own.layout.chosen:
                _fold_chosen(own, total.sums, route, body)
                continue
            lengths = [block.length for block in own.layout.contribution_blocks(route)]
            values = np.frombuffer(exact(body, 4 * sum(lengths), "a contribution along this route"), "<f4")
            for targets, (start, end) in zip(route, pairwise(accumulate(lengths, initial=0)), strict=True):
                for target in targets:
                    _add(total.sums[edges[target] : edges[target + 1]], values[start:end], grains[target])
        return total.encode()

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums. It is exact, since all are multiples of the same grains."""
        total = _Total(_require_own_plan(plan))
        for partial in partials:
            total.add_partial(partial)
        return total.encode()

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the sums rounded to float32."""
        _, sums = _read_partial(_require_own_plan(plan), partial)
        draft = Draft(4 * sums.size)
        np.copyto(np.frombuffer(draft.body, "<f4"), sums, casting="same_kind")
        return draft.finish()

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """Return the sum, float64 (layout.length,). `keyring` is not used.

        Raises `CodecError` for another length or values that are not finite.
        """
        own = _require_own_plan(plan)
        if not 0 <= contributions <= own.max_contributions:
            raise ParameterError(f"the plan allows {own.max_contributions} contributions, got {contributions}")
        values = _widened(own, aggregate, 0, own.layout.length)
        return np.rint(values, out=values, where=own.layout.integral_mask())

    def open_part(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, start: int, stop: int
    ) -> NDArray[np.float64]:
        """Return values `start` to `stop` of the sum; see `protocols.sums.base.OpensByParts`."""
        own = _require_own_plan(plan)
        values = _widened(own, aggregate, start, stop)
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
        end, limit = end + segment.length, segment.clip * _SLACK
        if runs and runs[-1][1] == limit:
            runs.pop()
        runs.append((end, limit))
    return tuple(runs)


def _check_each(plan: PlainPlan, route: Route, first: int, values: NDArray[np.float32]) -> None:
    """Raise `ContributionError` with the place of the first value that is not finite or exceeds its clip, if any."""
    bounds = plan.layout.contribution_bounds(route, first, first + values.size)
    finite = np.isfinite(values)  # as float32: widening a signalling NaN warns
    wrong = np.flatnonzero(~(np.abs(values, where=finite, out=np.full_like(values, np.inf)) <= bounds * _SLACK))
    if wrong.size:
        raise ContributionError(f"value {first + int(wrong[0])} is not finite or exceeds its clip")


def _seal_chosen(plan: PlainPlan, parts: Sequence[NDArray[np.float64]]) -> bytes:
    head, values = name_blocks(plan.layout, parts)
    block = plan.layout.blocks[0]
    if not (np.abs(values) <= block.bounds() * _SLACK).all():
        raise BudgetError(f"block {block.name!r} holds a value that is not finite or exceeds its clip")
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


class _Total:
    """A partial sum that is being computed, in the memory of the body that it becomes."""

    def __init__(self, plan: PlainPlan) -> None:
        self._plan, self._draft, self._count = plan, Draft(plan.partial_bytes), 0

    @property
    def sums(self) -> NDArray[np.float64]:
        """The sums, writable."""
        return np.frombuffer(self._draft.body, "<f8", offset=_COUNT.size)

    def add_partial(self, partial: Buffer) -> None:
        """Add a partial sum, which is exact: all are multiples of the same grains."""
        count, values = _read_partial(self._plan, partial)
        self.count_more(count)
        np.add(self.sums, values, out=self.sums)

    def count_more(self, more: int) -> None:
        """Count contributions; `BudgetError` if there are more than planned."""
        self._count += more
        if self._count > self._plan.max_contributions:
            raise BudgetError(f"the plan allows {self._plan.max_contributions} contributions, and this is one more")

    def encode(self) -> bytes:
        """Return the partial sum. Nothing may hold `sums` any more."""
        _COUNT.pack_into(self._draft.body, 0, self._count)
        return self._draft.finish()


def _read_partial(plan: PlainPlan, partial: Buffer) -> tuple[int, NDArray[np.float64]]:
    """Return the count, and a view of the sums."""
    view = exact(partial, plan.partial_bytes, "a partial sum")
    (count,) = _COUNT.unpack_from(view)
    sums = np.frombuffer(view, "<f8", offset=_COUNT.size)
    for start in range(0, sums.size, _PIECE):
        if not (np.abs(sums[start : start + _PIECE]) <= _LARGEST).all():
            raise CodecError("a partial sum holds a value that is not finite or exceeds float32's range")
    return count, sums


def _widened(plan: PlainPlan, aggregate: Buffer, start: int, stop: int) -> NDArray[np.float64]:
    """Return values `start` to `stop` of an aggregate; `CodecError` for another length or values not finite."""
    narrow = np.frombuffer(exact(aggregate, plan.aggregate_bytes, "an aggregate"), "<f4")[start:stop]
    if not np.isfinite(narrow).all():
        raise CodecError("the aggregate holds values that are not finite")
    return narrow.astype(np.float64)


def _require_own_plan(plan: SumPlan) -> PlainPlan:
    if not isinstance(plan, PlainPlan):
        raise ParameterError(f"this plan belongs to {plan.mechanism!r}, not to 'plain'")
    return plan


PLAIN: Final = PlainMechanism()
"""The mechanism; stateless."""
