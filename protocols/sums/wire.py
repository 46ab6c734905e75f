"""Bytes that several mechanisms have in common: heads that name blocks, and partial sums.

*Contributions that name their blocks.* A route is public and reveals nothing. In a layout with `chosen` blocks per
contribution, the client chooses the blocks, so the server learns the choice: in Top-K's `own` support, which entries of
the item factors the client changes most. A mechanism that can sum such blocks uses `name_blocks` in `seal` and
`read_blocks` in `check` and `fold`; the others reject the layout with `refuse_chosen`.

    head      `chosen` block numbers, uint32 little-endian, strictly ascending

*Partial sums.* The number of contributions so far, then the sums, in the memory of the bytes that they become.

    partial   contributions so far, uint64 little-endian, then what the mechanism adds
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import BudgetError, ContributionError, ParameterError
from protocols.layout import VectorLayout
from protocols.sums.base import COUNT_BYTES, Buffer, SumPlan

INDEX_BYTES: Final = 4


def head_bytes(layout: VectorLayout) -> int:
    """Return the length in bytes of the head of a contribution; 0 if the layout has no chosen blocks."""
    return INDEX_BYTES * layout.chosen


def name_blocks(layout: VectorLayout, parts: Sequence[NDArray[np.float64]]) -> tuple[bytes, NDArray[np.float64]]:
    """Return the head of a contribution and its values, float64 (chosen, block length).

    parts: block numbers (chosen,), then values. Raises `ParameterError` unless the numbers are ascending whole numbers
    of blocks of the layout, and there are as many values as these blocks hold.
    """
    if len(parts) != 2:
        raise ParameterError(f"a contribution is a vector of block numbers and one of values, {len(parts)} were given")
    numbers, values = parts
    width = layout.blocks[0].length
    if values.size != layout.chosen * width:
        raise ParameterError(f"{layout.chosen} blocks hold {layout.chosen * width} values, got {values.size}")
    whole = numbers.astype(np.int64) if np.isfinite(numbers).all() else np.zeros(0, np.int64)
    if not (np.array_equal(whole, numbers) and _ascending(layout, whole)):
        raise ParameterError(f"a contribution must name {layout.chosen} blocks of the sum, ascending, each once")
    return whole.astype("<u4").tobytes(), values.reshape(layout.chosen, width)


def read_blocks(plan: SumPlan, body: Buffer) -> tuple[NDArray[np.int64], memoryview]:
    """Return the block numbers, int64 (chosen,), that a contribution names, and the bytes after them.

    Raises `ContributionError` for another length than the plan's, and for numbers that are not ascending or not of a
    block of the layout.
    """
    view = plan.require_length((), body)
    head = head_bytes(plan.layout)
    numbers = np.frombuffer(view[:head], "<u4").astype(np.int64)
    if not _ascending(plan.layout, numbers):
        raise ContributionError("a contribution must name blocks of the sum in ascending order, each once")
    return numbers, view[head:]


def refuse_chosen(layout: VectorLayout, mechanism: str) -> None:
    """Raise `ParameterError` if contributions to this layout choose their blocks; `mechanism` needs public routes."""
    if layout.chosen:
        raise ParameterError(f"{mechanism!r} sums need public routes: contributions cannot choose their blocks")


def _ascending(layout: VectorLayout, numbers: NDArray[np.int64]) -> bool:
    fits = numbers.shape == (layout.chosen,) and numbers[0] >= 0 and numbers[-1] < len(layout.blocks)
    return bool(fits and (numbers[1:] > numbers[:-1]).all())


Number = TypeVar("Number", bound=np.generic)


class BytesBuilder:
    """`length` zero bytes, writable as `body` until `finish`, and then returned as bytes without a copy."""

    def __init__(self, length: int) -> None:
        self._stream = BytesIO(bytes(length))
        self.body = self._stream.getbuffer()

    def finish(self) -> bytes:
        """Return the bytes, which nothing changes any more: a view of `body` that is still in use costs a copy."""
        self.body.release()
        return self._stream.getvalue()


def read_count(plan: SumPlan, partial: Buffer) -> tuple[int, memoryview]:
    """Return the number of contributions of a partial sum, and what follows; `CodecError` for another length."""
    view = exact(partial, plan.partial_bytes, "a partial sum")
    return int.from_bytes(view[:COUNT_BYTES], "little"), view[COUNT_BYTES:]


def count_more(plan: SumPlan, count: int, more: int) -> int:
    """Return count + more; `BudgetError` if the plan allows fewer contributions."""
    count += more
    if count > plan.max_contributions:
        raise BudgetError(f"the plan allows {plan.max_contributions} contributions, and this is one more")
    return count


class PartialSum(Generic[Number]):
    """A partial sum that is being computed: a count, and little-endian numbers of one dtype, zeros at first."""

    def __init__(self, plan: SumPlan, dtype: np.dtype[Number]) -> None:
        self._plan, self._dtype, self._count = plan, dtype.newbyteorder("<"), 0
        self._builder = BytesBuilder(plan.partial_bytes)

    @property
    def sums(self) -> NDArray[Number]:
        """The sums, writable."""
        return np.frombuffer(self._builder.body, self._dtype, offset=COUNT_BYTES)

    def take(self, partial: Buffer) -> NDArray[Number]:
        """Count the contributions of a partial sum; return a view of its sums, for the caller to add.

        Raises `CodecError` for another length, `BudgetError` if there are more contributions than planned.
        """
        more, body = read_count(self._plan, partial)
        self.count_more(more)
        return np.frombuffer(body, self._dtype)

    def count_more(self, more: int) -> None:
        """Count contributions; `BudgetError` if there are more than planned."""
        self._count = count_more(self._plan, self._count, more)

    def encode(self) -> bytes:
        """Return the partial sum. Nothing may hold `sums` any more."""
        self._builder.body[:COUNT_BYTES] = self._count.to_bytes(COUNT_BYTES, "little")
        return self._builder.finish()
