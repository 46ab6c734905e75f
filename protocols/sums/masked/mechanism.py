"""The masked mechanism: ring elements added modulo 2^bits, one contribution at a time, and the sum without masks.

Clients agree on masks within a round: they contribute through `protocols.sums.masked.client`, and the server removes
the masks from the folded sum (`correct`) before it releases it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.crypto.keys import Keyring
from protocols.errors import ContributionError
from protocols.layout import Route, VectorLayout
from protocols.sums.base import Buffer, Mechanism, SumPlan
from protocols.sums.masked.plan import MaskedPlan, make_plan
from protocols.sums.ring import GROUP, RAW_BITS, Ring, pack, packed_bytes, unpack
from protocols.sums.wire import PartialSum, read_count

T = TypeVar("T")

_PIECE: Final = 1024 * GROUP
"""Elements unpacked and added at a time, for widths that are packed on the wire."""


class MaskedMechanism(Mechanism):
    """Sums of ring elements under pairwise masks, which cancel in the sum, and self masks, which unmasking removes."""

    name: ClassVar[str] = "masked"
    interactive: ClassVar[bool] = True

    def plan(self, parameters: Mapping[str, Any], layout: VectorLayout, max_contributions: int) -> MaskedPlan:
        """Return the plan of a task; `parameters` are the fields of `MaskedParameters`. See `make_plan`."""
        return make_plan(parameters, layout, max_contributions)

    def check(self, plan: SumPlan, route: Route, body: Buffer) -> None:
        """Raise `ContributionError` unless the length is exact and the unused bits of the last byte are zero.

        Any ring elements are valid, since masked elements are uniform.
        """
        own = MaskedPlan.of(plan)
        view = own.require_length(route, body)
        used = own.layout.length * own.bits % 8
        if used and view[-1] >> used:
            raise ContributionError("the unused bits of the last byte are not zero")

    def fold(self, plan: SumPlan, partial: Buffer | None, contributions: Iterable[tuple[Route, Buffer]]) -> bytes:
        """Return the partial sum plus contributions, modulo 2^bits."""
        own = MaskedPlan.of(plan)
        total = _total(own, () if partial is None else (partial,))
        for route, contribution in contributions:
            total.count_more(1)
            _add(own, total.sums, exact(contribution, own.contribution_bytes(route), "a contribution along this route"))
        return _encode(own, total)

    def merge(self, plan: SumPlan, partials: Iterable[Buffer]) -> bytes:
        """Return the sum of partial sums, modulo 2^bits."""
        own = MaskedPlan.of(plan)
        return _encode(own, _total(own, partials))

    def correct(self, plan: SumPlan, partial: Buffer | None, add_to: Callable[[Ring], T]) -> tuple[bytes, T]:
        """Return the partial sum plus what `add_to` adds to its elements in place, and what `add_to` returns.

        partial: None gives a partial sum of no contributions, to be merged with others. add_to: gets the elements
        (layout.length,) of the ring's dtype, and keeps no view of them. The correction of unmasking is never a vector
        of its own.
        """
        own = MaskedPlan.of(plan)
        total = _total(own, () if partial is None else (partial,))
        found = add_to(total.sums)
        return _encode(own, total), found

    def release(self, plan: SumPlan, partial: Buffer) -> bytes:
        """Return the corrected sums as packed ring elements, without the count."""
        own = MaskedPlan.of(plan)
        sums = np.frombuffer(read_count(own, partial)[1], own.dtype.newbyteorder("<"))
        return pack(sums.astype(own.dtype, copy=False), own.bits)

    def open(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, keyring: Keyring | None
    ) -> NDArray[np.float64]:
        """Return the sum, float64 (layout.length,). `keyring` is not used.

        Raises `CodecError` for another length, and for a value beyond the bound of a sum of so many contributions,
        which shows that masks did not cancel.
        """
        return MaskedPlan.of(plan).open_ring(aggregate, contributions)

    def open_part(
        self, plan: SumPlan, aggregate: Buffer, contributions: int, start: int, stop: int
    ) -> NDArray[np.float64]:
        """Return values `start` to `stop` of the sum; see `protocols.sums.base.OpensByParts`."""
        return MaskedPlan.of(plan).open_ring_part(aggregate, contributions, start, stop)


def _total(plan: MaskedPlan, partials: Iterable[Buffer]) -> PartialSum[Any]:
    total = PartialSum(plan, plan.dtype)
    for partial in partials:
        np.add(total.sums, total.take(partial), out=total.sums)
    return total


def _encode(plan: MaskedPlan, total: PartialSum[Any]) -> bytes:
    """Return the partial sum, its elements modulo 2^bits."""
    if plan.bits not in RAW_BITS:
        np.bitwise_and(total.sums, plan.dtype.type((1 << plan.bits) - 1), out=total.sums)
    return total.encode()


def _add(plan: MaskedPlan, sums: Ring, contribution: memoryview) -> None:
    """Add a contribution to `sums`: raw elements directly, packed elements unpacked piece by piece."""
    piece = sums.size if plan.bits in RAW_BITS else _PIECE
    for first in range(0, sums.size, piece):
        part = sums[first : first + piece]
        start = first * plan.bits // 8
        part += unpack(contribution[start : start + packed_bytes(part.size, plan.bits)], plan.bits, part.size)


MASKED: Final = MaskedMechanism()
"""The mechanism; stateless."""
