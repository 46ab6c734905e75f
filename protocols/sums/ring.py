"""Sums of fixed-point values in a ring of 2^b, where only the total of a sum must fit: segments with a scale each.

The ring is shared by all segments of a layout. Every segment has the finest power-of-two scale whose sums fit
(`FixedPoint.widest`), by the segment's bound on the SUM, which a recipe may prove to be far below contributions * clip.
Counts have scale 1 and are exact. A layout does not fit unless a ring step is at most the clip: with a coarser step,
nothing but rounding error would remain of a value. Rounding to nearest has an error of half a step per contribution.
Scales are powers of two, so encoding and decoding add no error. The rounding of float64 itself is included in the error
bounds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, isfinite, log2
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from protocols.crypto.keys import Keyring
from protocols.errors import BudgetError, CodecError, ParameterError
from protocols.layout import Floats, Route, Segment, VectorLayout, spans_of
from protocols.sums.base import (
    COUNT_BYTES,
    Blocks,
    Buffer,
    FixedPointPlan,
    Mechanism,
    OpensByParts,
    SumPlan,
)
from protocols.sums.group_sums import (
    GroupSums,
    aggregate_bytes,
    fold_by_group,
    merge_by_group,
    open_by_group,
    split_groups,
)
from protocols.sums.groups import TAU, GroupedParameters
from protocols.sums.wire import packed_bytes, ring_dtype, unpack_part

_EXACT: Final = 2**53
"""Whole numbers up to this one are exact in float64."""

_PIECE: Final = 8192
"""Values encoded at a time, so that intermediate arrays stay in the processor's cache."""


@dataclass(frozen=True)
class FixedPoint:
    """The encoding of a value x as the ring element round(x * scale) mod 2^bits.

    Invariant: bound * scale < 2^(bits-1). A recipe may prove a bound on the sum that is far below contributions * clip,
    so only the bound counts. Raises `ParameterError` for invalid fields, `BudgetError` if the invariant does not hold.
    """

    bits: int
    """Size of the ring, 16 to 64; arrays have the narrowest of uint16, uint32 and uint64 that holds it."""
    bound: float
    """Largest size of any coordinate of the TRUE SUM. Intermediate sums may wrap around, which cancels."""
    scale: float
    """Ring steps per 1.0."""

    def __post_init__(self) -> None:
        ring_dtype(self.bits)  # raises for a width that no ring has
        if not (isfinite(self.bound) and self.bound > 0 and isfinite(self.scale) and self.scale > 0):
            raise ParameterError(f"bound and scale must be finite and positive, got {self.bound} and {self.scale}")
        if self.bound * self.scale >= 2.0 ** (self.bits - 1):
            raise BudgetError(self._error_text())

    @classmethod
    def widest(cls, bits: int, bound: float, contributions: int = 0) -> FixedPoint:
        """Return the encoding with the finest power-of-two scale for sums of up to `contributions` encodings.

        There is room for a step of rounding of every contribution. Raises `BudgetError` if no scale fits.
        """
        if not 16 <= bits <= 64 or not (isfinite(bound) and bound > 0):
            raise ParameterError(f"a ring has 16 to 64 bits and a positive bound, got {bits} and {bound}")
        if contributions < 0 or contributions >= 2 ** (bits - 1) - 1:
            raise BudgetError(f"the rounding errors of {contributions} contributions alone fill a ring of {bits} bits")
        room = min(2 ** (bits - 1) - 1 - contributions, _EXACT)
        scale = 2.0 ** floor(log2(room / bound))
        return cls(bits, bound, scale if bound * scale <= room else scale / 2)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of ring elements: uint16, uint32 or uint64."""
        return ring_dtype(self.bits)

    def _error_text(self) -> str:
        needed = log2(self.bound) + log2(self.scale) + 1
        largest_scale = floor(self.bits - 1 - log2(self.bound)) - 1
        fitting = f"{floor(needed) + 1} bits, or " if needed < 64 else ""
        return (
            f"a sum of up to {self.bound:g} at scale {self.scale:g} does not fit in {self.bits} bits: it would fit "
            f"with {fitting}a scale of 2^{largest_scale}"
        )

    def encode(
        self, values: NDArray[np.floating[Any]], clip: float, into: NDArray[np.unsignedinteger[Any]] | None = None
    ) -> tuple[NDArray[np.unsignedinteger[Any]], int]:
        """Return the ring elements of `values` (any shape), and how many were clipped to +-`clip`: callers report it.

        into: a vector of as many elements of the ring's dtype, to which they are written; None: a new array. Rounds to
        nearest. Raises `ParameterError` for values that are not finite, `BudgetError` if `clip` has more than 2^53
        steps.
        """
        if not (isfinite(clip) and clip > 0):
            raise ParameterError(f"a clip must be finite and positive, got {clip}")
        if clip * self.scale > _EXACT:
            raise BudgetError(f"clip {clip:g} at scale {self.scale:g} is over 2^53 steps, which float64 cannot hold")
        exact, clipped = np.asarray(values, dtype=np.float64).reshape(-1), 0
        elements = np.empty(exact.size, self.dtype) if into is None else into
        for start in range(0, exact.size, _PIECE):
            steps = exact[start : start + _PIECE]
            sizes = np.abs(steps)
            largest = sizes.max()
            if not isfinite(largest):
                raise ParameterError("values that are not finite cannot be encoded")
            if largest > clip:
                clipped += int(np.count_nonzero(sizes > clip))
                steps = np.clip(steps, -clip, clip)
            steps = np.rint(np.multiply(steps, self.scale, out=sizes), out=sizes)
            elements[start : start + _PIECE] = self.reduce(steps.astype(np.int64).view(np.uint64))
        return elements.reshape(values.shape), clipped

    def reduce(self, elements: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.unsignedinteger[Any]]:
        """Return the elements modulo 2^bits, in the ring's dtype; after additions not needed for 16, 32 or 64 bits."""
        narrow = elements.astype(self.dtype, copy=False)  # modulo its own width
        return narrow & self.dtype.type((1 << self.bits) - 1) if self.bits < 8 * self.dtype.itemsize else narrow

    def decode(self, total: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.float64]:
        """Return the sum as float64, of the same shape, exact up to 2^53 steps.

        Elements from 2^(bits-1) on are negative. Raises `ParameterError` for another dtype, `BudgetError` for an
        element that is not below 2^bits.
        """
        if total.dtype != self.dtype:
            raise ParameterError(f"a sum in this ring must have dtype {self.dtype}, got {total.dtype}")
        if self.bits < 8 * total.dtype.itemsize and bool((total >> total.dtype.type(self.bits)).any()):
            raise BudgetError(f"the sum has elements that are not below 2^{self.bits}: reduce it first")
        shift = np.uint64(64 - self.bits)
        signed = (total.astype(np.uint64) << shift).view(np.int64) >> np.int64(shift)
        return signed / self.scale


Places = tuple[tuple[tuple[FixedPoint, slice], ...], ...]
"""The fixed point and the slice of every segment, by block of the aggregate."""


def require_fit(layout: VectorLayout, contributions: int, bits: range, clients: range) -> None:
    """Raise `BudgetError`, with what would fit, unless sums of `contributions` fit a ring of bits[0] bits, less spare.

    bits: widths from the ring's to the widest that the mechanism has. clients: the contributions that it can sum.
    `ParameterError` for fewer.
    """
    if contributions < clients[0]:
        raise ParameterError(f"such a sum has at least {clients[0]} contributions, got {contributions}")
    fault = _fault(layout, contributions, bits[0], clients)
    if fault is None:
        return
    most, over = 0, contributions
    while over - most > 1:
        middle = (most + over) // 2
        most, over = (middle, over) if _fault(layout, middle, bits[0], clients) is None else (most, middle)
    fitting = [f"at most {most} contributions fit"] if most >= clients[0] else []
    enough = next((width for width in bits[1:] if _fault(layout, contributions, width, clients) is None), None)
    fitting += [f"{enough} bits fit"] if enough else []
    raise BudgetError(
        f"sums of {contributions} contributions do not fit a ring of {bits[0]} bits ({fault}); "
        f"{', or '.join(fitting) or 'no ring fits'}"
    )


def _fault(layout: VectorLayout, contributions: int, bits: int, clients: range) -> str | None:
    """Return why sums of this layout do not fit a ring of `bits` bits, for the first segment; None if they do."""
    if contributions > clients[-1]:
        return f"no sum has over {clients[-1]} contributions"
    for block in layout.blocks:
        for segment in block.segments:
            try:
                step = 1.0 / _ring(bits, segment, contributions).scale
            except BudgetError as error:
                return f"{block.name}/{segment.name}: {error}"
            if step > segment.clip:
                return f"{block.name}/{segment.name}: a ring step is {step:g}, greater than the clip {segment.clip:g}"
    return None


def encode_vector(
    layout: VectorLayout,
    places: Places,
    route: Route,
    blocks: Blocks,
    elements: NDArray[np.unsignedinteger[Any]],
) -> None:
    """Write the ring elements of a contribution along `route` into `elements` (layout.length,), which are zeros.

    blocks: one float64 vector for each block of the route. Raises `BudgetError` for a value that is not finite or
    exceeds its clip, `ParameterError` for other shapes and for counts that are not whole numbers.
    """
    sent = layout.check_contribution(route, blocks)
    for block, values, where in zip(sent, blocks, places, strict=False):
        parts = tuple(block.split(values).values())
        for segment, part, (ring, span) in zip(block.segments, parts, where, strict=True):
            if segment.integral and not (np.rint(part) == part).all():
                raise ParameterError(f"block {block.name!r} holds a count that is not a whole number")
            ring.encode(part, segment.clip, elements[span])


def _ring(bits: int, segment: Segment, contributions: int, spare: int = 0) -> FixedPoint:
    """Return the segment's fixed point; `BudgetError` if its sums do not fit, with `spare` bits left."""
    bound = segment.bound_on_sum(contributions)
    if segment.integral:
        return replace(FixedPoint(bits - spare, bound, 1.0), bits=bits)
    exact = 2.0 ** floor(log2(_EXACT / segment.clip))  # a single value, which may exceed the sum's bound, must be exact
    return FixedPoint(bits, bound, min(FixedPoint.widest(bits - spare, bound, contributions).scale, exact))


def spare_bits(bits: int, contributions: int) -> int:
    """Return how many bits of a ring are better left free, at most `MOST_SPARE`, so that garbage shows.

    A mean keeps steps of 2^-`MEAN_BITS` of the clip: what is left is spare.
    """
    return max(0, min(MOST_SPARE, bits - MEAN_BITS - max(1, contributions).bit_length()))


MOST_SPARE: Final = 8
MEAN_BITS: Final = 12


@dataclass(frozen=True)
class RingPlan(FixedPointPlan):
    """A plan whose sums are fixed-point values in a ring of 2^bits, released as packed elements."""

    parameters: GroupedParameters
    layout: VectorLayout
    max_contributions: int

    @property
    @abstractmethod
    def bits(self) -> int:
        """Bits of the sum of one value."""

    @abstractmethod
    def encode(self, route: Route, blocks: Blocks) -> NDArray[Any]: ...

    @property
    def spare(self) -> int:
        """Bits of the ring that sums of honest contributions leave free."""
        return 0

    @property
    def garbage_passes(self) -> float:
        """The largest share of all ring elements that a value of a segment can have: garbage in one place passes the
        check of its size with this probability, and in two with its square. At most 2^-`spare`."""
        rings = (ring for own in self.places for ring, _ in own)
        return max(min(1.0, (2.0 * floor(ring.bound * ring.scale) + 1.0) / 2.0**ring.bits) for ring in rings)

    @property
    def groups(self) -> int:
        """1 for a sum that is not split (`VectorLayout.is_split`), as one over the same data in every round."""
        return self.parameters.groups if self.layout.is_split else 1

    @property
    def tau(self) -> float:
        """By which the sums of groups are judged; 0: not at all."""
        return TAU if self.parameters.tau is None else self.parameters.tau

    @cached_property
    def of_group(self) -> Self:
        """The plan of one group's sum."""
        of_one_group = self.parameters.model_copy(update={"groups": 1, "tau": None})
        return replace(self, parameters=of_one_group, max_contributions=self.most_in_sum)

    @property
    def most_in_sum(self) -> int:
        """Most contributions in one sum of the ring."""
        return self.max_contributions // self.groups

    @cached_property
    def places(self) -> Places:
        """The fixed point and the slice of every segment, by block of the aggregate."""
        segments = [segment for block in self.layout.blocks for segment in block.segments]
        spans = (slice(start, end) for start, end in spans_of(segment.length for segment in segments))
        return tuple(
            tuple((_ring(self.bits, segment, self.most_in_sum, self.spare), next(spans)) for segment in block.segments)
            for block in self.layout.blocks
        )

    @property
    def precision(self) -> dict[str, tuple[float, float]]:
        """Ring steps per 1.0 (1.0 for counts), and the error of rounding and of float64, by `block/segment`."""
        contributions = self.max_contributions
        return {
            f"{block.name}/{segment.name}": (
                ring.scale,
                0.0 if segment.integral else contributions / 2 / ring.scale + contributions * ring.bound / _EXACT,
            )
            for block, own in zip(self.layout.blocks, self.places, strict=True)
            for segment, (ring, _) in zip(block.segments, own, strict=True)
        }

    @property
    def aggregate_bytes(self) -> int:
        """Length in bytes of the packed ring elements; with groups of each group's, after its contribution count."""
        return aggregate_bytes(self.groups, packed_bytes(self.layout.length, self.bits))

    def decode(
        self, elements: NDArray[np.unsignedinteger[Any]], contributions: int, start: int = 0
    ) -> NDArray[np.float64]:
        """Return the part of a sum from place `start` on that `elements` stand for, float64 of their shape.

        Raises `CodecError` for a value beyond the bound of a sum of so many contributions, which shows that masks did
        not cancel.
        """
        total = np.empty(elements.size)
        for block, own in zip(self.layout.blocks, self.places, strict=True):
            if own[-1][1].stop <= start or own[0][1].start >= start + elements.size:
                continue
            for segment, (ring, span) in zip(block.segments, own, strict=True):
                part = slice(max(span.start - start, 0), min(span.stop - start, elements.size))
                if part.start >= part.stop:
                    continue
                total[part] = ring.decode(elements[part])
                rounding = 0.0 if segment.integral else contributions / 2 / ring.scale
                bound = segment.bound_on_sum(contributions) + rounding
                if max(total[part].max(), -total[part].min()) > bound * (1.0 + 2.0**-40):
                    raise CodecError(
                        f"{block.name}/{segment.name} holds a value beyond the bound of a sum of {contributions} "
                        "contributions"
                    )
        return total


def ring_mechanism(mechanism: Mechanism) -> RingMechanism:
    """Return a mechanism whose sums can be split into groups; `ParameterError` for the others."""
    if not isinstance(mechanism, RingMechanism):
        raise ParameterError(f"sums of {mechanism.name} are not split into groups")
    return mechanism


class RingMechanism(Mechanism, OpensByParts):
    """A mechanism of several messages whose sums, once the masks are off, are elements of a ring that need no key."""

    interactive: ClassVar[bool] = True
    plan_class: ClassVar[type[RingPlan]]

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Raises `ParameterError` for a plan with groups, whose contributions `fold_groups` adds."""
        own = self.plan_class.of(plan)
        if own.groups > 1:
            raise ParameterError("contributions of groups are added by group")
        return self._added(own, () if partial is None else (partial,), contributions)

    def fold_groups(
        self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[int, Route, Buffer]]
    ) -> bytes:
        """Return what `fold` returns, of contributions with the index of their group, in ascending order of it."""
        own = self.plan_class.of(plan)
        parts = split_groups(own, partial)
        return fold_by_group(lambda group, those: self.fold(own.of_group, parts[group], those), own, contributions)

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        own = self.plan_class.of(plan)
        if own.groups > 1:
            return merge_by_group(lambda those: self._added(own.of_group, those), own, partials)
        return self._added(own, partials)

    @abstractmethod
    def _added(self, plan: RingPlan, partials: Iterable[Buffer], more: Iterable[tuple[Route, Buffer]] = ()) -> bytes:
        """Return the sum of partial sums, and of more contributions, of a plan without groups."""

    def _released_groups(self, plan: RingPlan, partial: Buffer, release: Callable[[Buffer], bytes]) -> bytes:
        """Return the released sums of all groups, each after its count. release: returns that of one group."""
        parts = [part for part in split_groups(plan, partial) if part is not None]
        return b"".join(bytes(part[:COUNT_BYTES]) + release(part) for part in parts)

    def open(self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None) -> Floats:
        """Return the sum of a released aggregate, float64 (layout.length,); `CodecError` as `RingPlan.decode`.

        With groups: of those that the rule keeps, times what makes them as many contributions as there are.
        """
        own = self.plan_class.of(plan)
        if own.groups > 1:
            return self.open_groups(own, aggregate, contributions).total()
        own.require_count(contributions)
        return self.open_part(own, aggregate, contributions, 0, own.layout.length)

    def open_groups(self, plan: SumPlan, aggregate: Buffer, contributions: int) -> GroupSums:
        """Return the sums of the groups in an aggregate, and which of them are used.

        Raises `CodecError` for a malformed one, other contributions, and if the sums of half of the groups or more
        cannot be those of honest contributions.
        """
        own = self.plan_class.of(plan)
        return open_by_group(self, own.of_group, own.groups, own.tau, aggregate, contributions)

    def open_part(self, plan: SumPlan, aggregate: Buffer, contributions: int, start: int, stop: int) -> Floats:
        own = self.plan_class.of(plan)
        elements = unpack_part(aggregate, own.bits, own.layout.length, start, stop)
        return own.decode(elements, contributions, start)
