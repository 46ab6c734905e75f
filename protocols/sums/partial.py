"""Partial sums: the number of contributions so far, then the sums, in the memory of the bytes that they become."""

from __future__ import annotations

from io import BytesIO
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocols.codec import exact
from protocols.errors import BudgetError
from protocols.sums.base import COUNT_BYTES, Buffer, SumPlan

__all__ = ["Draft", "PartialSum", "count_more", "read_count"]

Number = TypeVar("Number", bound=np.generic)


class Draft:
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
        self._draft = Draft(plan.partial_bytes)

    @property
    def sums(self) -> NDArray[Number]:
        """The sums, writable."""
        return np.frombuffer(self._draft.body, self._dtype, offset=COUNT_BYTES)

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
        self._draft.body[:COUNT_BYTES] = self._count.to_bytes(COUNT_BYTES, "little")
        return self._draft.finish()
