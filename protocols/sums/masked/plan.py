"""The plan of a masked sum: the ring, the scale of each segment, lengths, and the encoding as ring elements.

A masked contribution is always the whole aggregate vector, whatever its route (docs/adr/0006-masked-sums-are-dense.md):
blocks outside the route are masked zeros, and a block with two targets appears twice.

*Scales.* All segments share one ring Z_{2^bits}. Each segment has its own scale, the finest power of two whose sums fit
(`FixedPoint.widest`), by the segment's bound on the SUM, which a recipe may prove to be far below contributions * clip.
Counts have scale 1 and are exact. A plan is refused unless a ring step is at most the clip: with a coarser step,
nothing but rounding error would remain of a value.

*Error.* Rounding to nearest has an error of half a step per contribution, so max_contributions / 2 steps in a full sum.
Scales are powers of two, so encoding and decoding add no error. The rounding of float64 itself is included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import floor, log2
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from protocols.errors import BudgetError, ParameterError
from protocols.fixed_point import FixedPoint
from protocols.layout import Route, Segment, VectorLayout
from protocols.parameter_text.first_fault import first_fault
from protocols.sums.base import OpenedBy
from protocols.sums.chosen import refuse_chosen
from protocols.sums.masked.packing import Ring, packed_bytes, ring_dtype
from protocols.sums.masked.parameters import (
    MIN_CLIENTS,
    MOST_CLIENTS,
    MaskedParameters,
    Mode,
    Neighbourhood,
    choose_neighbourhood,
)

__all__ = ["COUNT_BYTES", "MaskedPlan", "encode", "make_plan"]

COUNT_BYTES: Final = 8
"""A partial sum starts with its number of contributions, a little-endian uint64."""

_SECURITY_BITS: Final = 128
"""Security of AES-128 and X25519."""

_SLACK: Final = 1.0 + 2.0**-22
"""Relative amount by which a value may exceed its clip, for float32 rounding of the clip itself."""

_EXACT: Final = 2.0**53


@dataclass(frozen=True)
class MaskedPlan:
    """The plan of a masked sum; all parties compute the same from the task's parameters."""

    parameters: MaskedParameters
    layout: VectorLayout
    max_contributions: int

    @property
    def mechanism(self) -> str:
        """`masked`."""
        return "masked"

    @property
    def opened_by(self) -> OpenedBy:
        """ "anyone": a released sum is in the clear, although no contribution is."""
        return "anyone"

    @property
    def bits(self) -> int:
        """Bits of a ring element."""
        return self.parameters.bits

    @property
    def mode(self) -> Mode:
        """Behaviour of the server that the sum withstands."""
        return self.parameters.mode

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of ring elements: uint16, uint32 or uint64."""
        return ring_dtype(self.bits)

    def neighbourhood(self, clients: int) -> Neighbourhood:
        """Return neighbours and threshold for a roster of `clients`; `ParameterError` if no values fit."""
        own = self.parameters
        return choose_neighbourhood(clients, own.corrupt, own.dropout, own.mode, own.sigma, own.eta)

    @cached_property
    def places(self) -> tuple[tuple[tuple[FixedPoint, slice], ...], ...]:
        """The fixed point and the slice of every segment, by block of the aggregate."""
        segments = [segment for block in self.layout.blocks for segment in block.segments]
        edges = accumulate((segment.length for segment in segments), initial=0)
        spans = iter([slice(start, end) for start, end in pairwise(edges)])
        return tuple(
            tuple((_ring(self.bits, segment, self.max_contributions), next(spans)) for segment in block.segments)
            for block in self.layout.blocks
        )

    @property
    def segment_errors(self) -> dict[str, float]:
        """Bound on the error by `block/segment`, in the segment's own unit; 0.0 for counts."""
        roundings = self.max_contributions / 2
        return {
            f"{block.name}/{segment.name}": 0.0
            if segment.integral
            else roundings / ring.scale + self.max_contributions * ring.bound / _EXACT
            for block, places in zip(self.layout.blocks, self.places, strict=True)
            for segment, (ring, _) in zip(block.segments, places, strict=True)
        }

    @property
    def predicted_error(self) -> float:
        """The largest of the segments' error bounds."""
        return max(self.segment_errors.values())

    @property
    def partial_bytes(self) -> int:
        """Length of a partial sum in bytes: the contribution count, then raw ring elements."""
        return COUNT_BYTES + self.layout.length * self.dtype.itemsize

    @property
    def aggregate_bytes(self) -> int:
        """Length of a released aggregate in bytes: packed ring elements."""
        return packed_bytes(self.layout.length, self.bits)

    def contribution_bytes(self, route: Route) -> int:
        """Return the length in bytes of a contribution: that of the whole vector, along any route."""
        self.layout.check_route(route)
        return packed_bytes(self.layout.length, self.bits)

    def describe(self) -> dict[str, Any]:
        """Return facts for people, JSON-ready; see `protocols.sums.base.SumPlan.describe`."""
        return {
            "mechanism": self.mechanism,
            **self.parameters.model_dump(),
            "security_bits": _SECURITY_BITS,
            "max_contributions": self.max_contributions,
            "neighbourhood": self.neighbourhood(self.max_contributions).describe(),
            "bytes_per_value": self.aggregate_bytes / self.layout.length,
            "aggregate_bytes": self.aggregate_bytes,
            "predicted_error": self.predicted_error,
            "segment_errors": self.segment_errors,
        }


def make_plan(parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> MaskedPlan:
    """Return the plan of a task.

    Raises `ParameterError` for invalid parameters or a full cohort without a neighbourhood, `BudgetError` if the sums
    do not fit the ring.
    """
    try:
        checked = MaskedParameters.model_validate(dict(parameters))
    except ValidationError as error:
        raise ParameterError(f"masked parameters: {first_fault(error, MaskedParameters.model_fields)}") from None
    if max_contributions < MIN_CLIENTS:
        raise ParameterError(
            f"a masked sum has at least {MIN_CLIENTS} contributions: max_contributions must be at least "
            f"{MIN_CLIENTS}, got {max_contributions}"
        )
    refuse_chosen(layout, "masked")
    plan = MaskedPlan(checked, layout, max_contributions)
    fault = _first_fault(checked.bits, layout, max_contributions)
    if fault is not None:
        raise BudgetError(_error_text(fault, checked.bits, layout, max_contributions))
    plan.neighbourhood(max_contributions)
    return plan


def encode(plan: MaskedPlan, route: Route, blocks: Sequence[NDArray[np.float64]]) -> Ring:
    """Return the ring elements (layout.length,) of a contribution along `route`, before masks are added.

    blocks: one float64 vector per route entry. Raises `BudgetError` for a value that is not finite or exceeds its clip,
    `ParameterError` for other shapes and for counts that are not whole numbers.
    """
    layout_blocks = plan.layout.contribution_blocks(route)
    if len(blocks) != len(layout_blocks):
        raise ParameterError(f"the route has {len(layout_blocks)} blocks, {len(blocks)} were given")
    elements = np.zeros(plan.layout.length, plan.dtype)
    for targets, block, values in zip(route, layout_blocks, blocks, strict=True):
        if values.shape != (block.length,):
            raise ParameterError(f"block {block.name!r} needs {block.length} values, got shape {values.shape}")
        parts = tuple(block.split(values).values())
        for segment, part in zip(block.segments, parts, strict=True):
            _check_values(block.name, segment, part)
        for target in targets:
            for segment, part, (ring, span) in zip(block.segments, parts, plan.places[target], strict=True):
                ring.encode_into(elements[span], part, segment.clip)
    return elements


def _check_values(block: str, segment: Segment, values: NDArray[np.float64]) -> None:
    if not max(values.max(), -values.min()) <= segment.clip * _SLACK:
        raise BudgetError(f"block {block!r} holds a value that is not finite or exceeds its clip")
    if segment.integral and not (np.rint(values) == values).all():
        raise ParameterError(f"block {block!r} holds a count that is not a whole number")


def _ring(bits: int, segment: Segment, contributions: int) -> FixedPoint:
    """Return the segment's fixed point; `BudgetError` if its sums do not fit."""
    bound = segment.bound_on_sum(contributions)
    if segment.integral:
        return FixedPoint(bits, bound, 1.0)
    ring = FixedPoint.widest(bits, bound, contributions)
    exact = 2.0 ** floor(log2(_EXACT / segment.clip))  # a single value, which may exceed the sum's bound, must be exact
    return ring if ring.scale <= exact else FixedPoint(bits, bound, exact)


def _segment_fault(bits: int, segment: Segment, contributions: int) -> str | None:
    """Return why the segment's sums do not fit; None if they do."""
    try:
        ring = _ring(bits, segment, contributions)
    except BudgetError as error:
        return str(error)
    step = 1.0 / ring.scale
    return f"a ring step is {step:g}, greater than the clip {segment.clip:g}" if step > segment.clip else None


def _first_fault(bits: int, layout: VectorLayout, contributions: int) -> str | None:
    if contributions > MOST_CLIENTS:
        return f"no neighbour graph has over {MOST_CLIENTS} clients"
    for block in layout.blocks:
        for segment in block.segments:
            fault = _segment_fault(bits, segment, contributions)
            if fault is not None:
                return f"{block.name}/{segment.name}: {fault}"
    return None


def _error_text(fault: str, bits: int, layout: VectorLayout, contributions: int) -> str:
    most, over = 0, contributions
    while over - most > 1:
        middle = (most + over) // 2
        most, over = (middle, over) if _first_fault(bits, layout, middle) is None else (most, middle)
    fitting = [f"at most {most} contributions fit"] if most >= MIN_CLIENTS else []
    enough = next((b for b in range(bits + 1, 65) if _first_fault(b, layout, contributions) is None), None)
    fitting += [f"{enough} bits fit"] if enough else []
    return (
        f"sums of {contributions} contributions do not fit a ring of {bits} bits ({fault}); "
        f"{', or '.join(fitting) or 'no ring fits'}"
    )
