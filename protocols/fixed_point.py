"""Fixed-point encoding of floats as elements of the ring Z_{2^bits}, where only the total of a sum must fit."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, isfinite, log2
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import BudgetError, ParameterError

_EXACT_BITS: Final = 53
"""Integers up to 2^53 are exact in float64."""

_PIECE: Final = 8192
"""Values encoded at a time, so that intermediate arrays stay in the processor's cache."""


@dataclass(frozen=True)
class FixedPoint:
    """The encoding of a value x as the ring element round(x * scale) mod 2^bits.

    bits: size of the ring, 16 to 64; arrays have the narrowest of uint16, uint32 and uint64 that holds it.
    bound: largest size of any coordinate of the TRUE SUM. Intermediate sums may wrap around, which cancels.
    scale: ring steps per 1.0.

    Invariant: bound * scale < 2^(bits-1). A recipe may prove a bound on the sum that is far below contributions * clip,
    so only the bound counts. Raises `ParameterError` for invalid fields, `BudgetError` if the invariant does not hold.
    """

    bits: int
    bound: float
    scale: float

    def __post_init__(self) -> None:
        if not 16 <= self.bits <= 64:
            raise ParameterError(f"a ring has 16 to 64 bits, got {self.bits}")
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
        room = min(2 ** (bits - 1) - 1 - contributions, 2**_EXACT_BITS)
        scale = 2.0 ** floor(log2(room / bound))
        return cls(bits, bound, scale if bound * scale <= room else scale / 2)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of ring elements: uint16, uint32 or uint64."""
        return np.dtype(np.uint16 if self.bits == 16 else np.uint32 if self.bits <= 32 else np.uint64)

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
        if clip * self.scale > 2.0**_EXACT_BITS:
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
