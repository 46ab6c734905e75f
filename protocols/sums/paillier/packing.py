"""Packing of many fixed-point values into one plaintext, for whole arrays at a time.

A plaintext is m = sum_i v_i * 2^(p_i) over signed whole numbers v_i, each with a slot of w_i bits at position p_i.
Slots are adjacent and do not overlap. The sum of plaintexts is M = sum_i S_i * 2^(p_i), with S_i the sum of the v_i,
independent of the order and of the signs of intermediate sums.

*No carries.* Let K contributions have |v_i| <= L_i and let w_i be the least with K * L_i < 2^(w_i - 1).
Then 0 <= S_i + 2^(w_i - 1) < 2^(w_i), so the digits of M + C, C = sum_i 2^(w_i - 1) * 2^(p_i), are exactly
S_i + 2^(w_i - 1). To open a sum, add C once and read the slots, for any number of contributions.

*No wrap-around.* The slots end two bits below the top of key_bits bits, so with the top slot at 2^p and w bits wide
|M| <= (2^(w-1) - 1) * 2^p + (the lower slots, less than 2^p) < 2^(key_bits - 3) <= n/4: M mod n determines M with its
sign. phe, which takes numbers up to n/3 as positive and from 2n/3 on as negative, decodes the same number.

A slot has at most 54 bits, so |S_i| < 2^53 is exact in float64. Scales are powers of two, so scaling is exact too. The
only error of a sum is each value's rounding to nearest, at most 1/2 step per contribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import frexp, isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocols.errors import BudgetError, CodecError, ParameterError
from protocols.layout import CLIP_SLACK, Block, Segment

MAX_SUM: Final = 2**53 - 1
"""The largest |sum| of a slot, which float64 represents exactly."""

_MARGIN: Final = 2
"""Bits at the top of a plaintext that stay zero, so that phe decodes the same signed number."""


@dataclass(frozen=True)
class SegmentCode:
    """The code of a segment's values as whole numbers: v = round(x * scale), |v| <= largest, slots of `width` bits."""

    scale: float
    largest: int
    width: int

    @classmethod
    def of(cls, segment: Segment, value_bits: int, contributions: int) -> SegmentCode:
        """Return the code of a segment for sums of `contributions`.

        Counts have scale 1; other values the largest power of two at which the clip fits `value_bits` bits. Raises
        `BudgetError` for a clip without such a scale in float64.
        """
        bound = segment.clip * CLIP_SLACK
        scale = 1.0
        if not segment.integral:
            limit = (2 ** (value_bits - 1) - 1) / bound
            if not (isfinite(limit) and limit > 2.0**-1000):
                raise BudgetError(f"segment {segment.name!r}: a clip of {segment.clip:g} has no scale in float64")
            scale = 2.0 ** (frexp(limit)[1] - 1)
        largest = max(1, int(np.rint(bound * scale)))
        return cls(scale, largest, (contributions * largest).bit_length() + 1)


@dataclass(frozen=True)
class _SlotRun:
    """A rectangle of slots of one segment: in `rows` plaintexts from `first` on, `slots` slots from bit `offset` on."""

    segment: int
    first: int
    rows: int
    offset: int
    slots: int


@dataclass(frozen=True)
class BlockPacking:
    """The position of every value of a block with these segments. Values fill plaintexts in order, from the top bit."""

    segments: tuple[Segment, ...]
    codes: tuple[SegmentCode, ...]
    key_bits: int

    @cached_property
    def runs(self) -> tuple[_SlotRun, ...]:
        """The runs of all segments, up to three each: the rest of a plaintext, whole plaintexts, part of the last."""
        runs: list[_SlotRun] = []
        row, offset = 0, _MARGIN
        for index, (segment, code) in enumerate(zip(self.segments, self.codes, strict=True)):
            left = segment.length
            while left:
                room = (self.key_bits - offset) // code.width
                if room == 0:
                    row, offset = row + 1, _MARGIN
                    continue
                rows = left // room if offset == _MARGIN else 0
                slots = room if rows else min(left, room)
                runs.append(_SlotRun(index, row, max(rows, 1), offset, slots))
                left -= max(rows, 1) * slots
                row, offset = (row + rows, _MARGIN) if rows else (row, offset + slots * code.width)
        return tuple(runs)

    @cached_property
    def plaintexts(self) -> int:
        """Number of plaintexts, and ciphertexts, of the block."""
        last = self.runs[-1]
        return last.first + last.rows

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        """C of each plaintext (module docstring)."""
        return tuple(int.from_bytes(row, "big") for row in self._pack([np.zeros(r.rows * r.slots) for r in self.runs]))

    def pack(self, block: Block, values: NDArray[np.float64]) -> list[int]:
        """Return the signed plaintexts of `values`, float64 (block.length,), of a block with these segments.

        Raises `ParameterError` for another shape or a count that is not a whole number, `BudgetError` for a value that
        is not finite or exceeds its clip.
        """
        block.check_values(values)
        parts = [self._steps(index, part) for index, part in enumerate(block.split(values).values())]
        taken = [0] * len(parts)
        digits = []
        for run in self.runs:
            start = taken[run.segment]
            taken[run.segment] = start + run.rows * run.slots
            digits.append(parts[run.segment][start : taken[run.segment]])
        return [int.from_bytes(row, "big") - c for row, c in zip(self._pack(digits), self._offsets, strict=True)]

    def _steps(self, index: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
        segment, code = self.segments[index], self.codes[index]
        steps = np.rint(values * code.scale)
        if segment.integral and not np.array_equal(steps, values):
            raise ParameterError(f"segment {segment.name!r} holds a count that is not a whole number")
        return steps

    def _pack(self, digits: Sequence[NDArray[np.float64]]) -> list[bytes]:
        """Return the plaintexts of M + C as big-endian bytes, from the signed digits of each run."""
        bits = np.zeros((self.plaintexts, self.key_bits), np.uint8)
        for run, signed in zip(self.runs, digits, strict=True):
            width = self.codes[run.segment].width
            unsigned = signed.astype(np.int64) + (1 << (width - 1))
            spread = np.unpackbits(unsigned.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)[:, -width:]
            window = bits[run.first : run.first + run.rows, run.offset : run.offset + run.slots * width]
            window[:] = spread.reshape(run.rows, -1)
        return [row.tobytes() for row in np.packbits(bits, axis=1)]

    def unpack(self, block: Block, plaintexts: Sequence[int]) -> NDArray[np.float64]:
        """Return the sums in the segments' units, float64 (block.length,), from the signed plaintexts of a sum.

        Raises `CodecError` if bits outside the slots are set, which no sum of contributions does.
        """
        totals = [int(m) + c for m, c in zip(plaintexts, self._offsets, strict=True)]
        if not all(0 <= total < 1 << self.key_bits for total in totals):
            raise CodecError(f"block {block.name!r} of the aggregate overflows its slots")
        body = b"".join(total.to_bytes(self.key_bits // 8, "big") for total in totals)
        bits = np.unpackbits(np.frombuffer(body, np.uint8)).reshape(-1, self.key_bits)
        starts = list(accumulate((segment.length for segment in self.segments), initial=0))
        values = np.zeros(block.length)
        for run in self.runs:
            code = self.codes[run.segment]
            window = bits[run.first : run.first + run.rows, run.offset : run.offset + run.slots * code.width]
            padded = np.zeros((run.rows * run.slots, 64), np.uint8)
            padded[:, -code.width :] = window.reshape(-1, code.width)
            window[:] = 0
            signed = np.packbits(padded, axis=1).view(">u8").ravel().astype(np.int64) - (1 << (code.width - 1))
            start = starts[run.segment]
            starts[run.segment] = start + signed.size
            np.divide(signed, code.scale, out=values[start : starts[run.segment]])
        if bits.any():
            raise CodecError(f"block {block.name!r} of the aggregate overflows its slots")
        return values
