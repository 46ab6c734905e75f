"""Adam (Kingma and Ba, ICLR 2015, Algorithm 1), dense, on arrays that are updated in place.

A row whose gradient has been zero in every step so far has zero moments and does not change. Training only the rows
that take part in a round is therefore the same as training the whole matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BETA1: Final = 0.9
BETA2: Final = 0.999
EPSILON: Final = 1e-8

Array = NDArray[np.floating[Any]]


class Adam:
    """Adam that updates float32 `parameters` in place. The moments begin at zero.

    rates: learning rate of each parameter, a number or one per entry.
    """

    def __init__(self, parameters: Sequence[NDArray[np.float32]], rates: Sequence[float | NDArray[np.float32]]) -> None:
        self.steps = 0
        """Number of steps taken."""
        self.moments = [(np.zeros_like(value), np.zeros_like(value)) for value in parameters]
        """First and second moment of each parameter, in its shape. To go on after an interruption, set both."""
        self._slots = [
            (value, rate, *moments, np.empty_like(value))
            for value, rate, moments in zip(parameters, rates, self.moments, strict=True)
        ]

    def step(self, gradients: Sequence[NDArray[np.float32]]) -> None:
        """Take one step. `gradients` have the shapes of the parameters and are overwritten."""
        self.steps += 1
        scale1, scale2 = 1 - BETA1**self.steps, 1 - BETA2**self.steps
        for (value, rate, mean, square, scratch), gradient in zip(self._slots, gradients, strict=True):
            mean *= BETA1
            mean += np.multiply(gradient, 1 - BETA1, out=scratch)
            square *= BETA2
            gradient *= gradient
            gradient *= 1 - BETA2
            square += gradient
            np.sqrt(square, out=scratch)
            scratch *= scale2**-0.5
            scratch += EPSILON
            np.divide(mean, scratch, out=scratch)
            scratch *= rate / scale1
            value -= scratch


class OuterAdam:
    """Adam for a matrix whose gradients are all outer(c, direction), with the same direction in every step.

    The moments are then those of c, one number for each row, times the direction and its square. The steps equal
    Adam's and take a third of the operations. Updates `rows` (k, d) in place. direction: (d,).
    """

    def __init__(self, rows: Array, direction: Array, rate: float) -> None:
        self._rows, self._direction, self._size, self._rate = rows, direction, np.abs(direction), rate
        self._mean, self._square = (np.zeros(len(rows), rows.dtype) for _ in range(2))
        self._up, self._down = np.empty_like(rows), np.empty_like(rows)
        self._steps = 0

    def step(self, factors: Array) -> None:
        """Take one step with the gradient outer(factors, direction). factors: (k,)."""
        self._steps += 1
        self._mean += (1 - BETA1) * (factors - self._mean)
        self._square += (1 - BETA2) * (factors * factors - self._square)
        rate = self._rate / (1 - BETA1**self._steps)
        np.multiply.outer((rate * self._mean).astype(self._mean.dtype), self._direction, out=self._up)
        np.multiply.outer(np.sqrt(self._square / (1 - BETA2**self._steps)), self._size, out=self._down)
        self._down += EPSILON
        self._up /= self._down
        self._rows -= self._up


# --- adam over the entries of a long vector that a client uses, with memory for those entries only -------------------
# Adam (Kingma and Ba, ICLR 2015, Algorithm 1) updates an entry at every step, also when the gradient of that step is
# zero. An entry whose gradient has been zero in every step so far has zero moments and does not change, so only entries
# that have been used are updated. Each of them has a slot; slots are numbered in order of first use.
#
# The decay of the moments is stored as one number for all slots. With M and V the moments divided by b1^t and b2^t, a
# gradient g adds (1 - b1) g / b1^t to M and (1 - b2) g^2 / b2^t to V, and
#
#     value -= M / (sqrt(V) a_t + e_t),   a_t = (1 - b1^t) / (lr b1^t) sqrt(b2^t / (1 - b2^t)),
#                                         e_t = (1 - b1^t) / (lr b1^t) epsilon
#
# is the published step. Each step then costs one multiplication, addition, division and subtraction per slot.

_MIN_DECAY: Final = 1e-15
"""Lower bound of b1^t, at which M and V are rescaled to the moments. float32 would allow a far smaller bound."""


class TouchedAdam:
    """Adam over the entries of `start` that `find` was called with. `start` itself is not changed.

    start: float32 (m,), initial values. rate: learning rate. most: upper bound on the number of distinct entries.
    """

    def __init__(self, start: NDArray[np.float32], rate: float, most: int) -> None:
        room = min(start.size, most)
        self._start, self._rate = start, rate
        self._slot_numbers = np.zeros(start.size, dtype=np.int32)  # by place: slot + 1, or 0 if the place has no slot
        self._places = np.empty(room, dtype=np.int32)  # by slot
        self._values, self._mean, self._square, self._root, self._gradient, self._scratch = np.zeros(
            (6, room), dtype=np.float32
        )
        self._used = self._steps = 0
        self._decay1 = self._decay2 = 1.0

    def find(self, places: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the slots of the entries at `places`, int32 (k,). Entries without a slot are given one.

        places: integers (k,) in 0..m-1, with or without repetitions.
        """
        numbers: NDArray[np.int32] = self._slot_numbers[places]
        without_slot = places[numbers == 0]
        if without_slot.size:
            # Writes an index at every place; where a place is repeated, one of its indices remains and marks the
            # repetition to keep. `np.unique` sorts, which takes four to six times as long for FAIR on ML-1M.
            order = np.arange(1, without_slot.size + 1, dtype=np.int32)
            self._slot_numbers[without_slot] = order
            distinct = without_slot[self._slot_numbers[without_slot] == order]
            new = slice(self._used, self._used + distinct.size)
            self._slot_numbers[distinct] = np.arange(new.start + 1, new.stop + 1, dtype=np.int32)
            self._places[new] = distinct
            self._values[new] = self._start[distinct]
            self._used = new.stop
            numbers = self._slot_numbers[places]
        numbers -= 1
        return numbers

    def values(self, slots: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the current values at `slots` (k,), float32 (k,)."""
        return np.asarray(np.take(self._values, slots))

    def step(self, slots: NDArray[np.int32], gradients: NDArray[np.float32]) -> None:
        """Take one step. `gradients` (k,) belong to `slots` (k,); gradients of a repeated slot are added."""
        self._steps += 1
        self._decay1 *= BETA1
        self._decay2 *= BETA2
        np.add.at(self._gradient, slots, gradients)
        total = np.take(self._gradient, slots)
        # A repeated slot is assigned repeatedly, with equal values.
        self._mean[slots] = np.take(self._mean, slots) + np.float32((1 - BETA1) / self._decay1) * total
        square = np.take(self._square, slots) + np.float32((1 - BETA2) / self._decay2) * (total * total)
        self._square[slots] = square
        self._root[slots] = np.sqrt(square)
        self._gradient[slots] = 0.0
        used = slice(self._used)
        unbiased1, unbiased2 = 1 - BETA1**self._steps, 1 - BETA2**self._steps
        inverse = unbiased1 / (self._rate * self._decay1)
        scratch = self._scratch[used]
        np.multiply(self._root[used], np.float32(inverse * sqrt(self._decay2 / unbiased2)), out=scratch)
        scratch += np.float32(inverse * EPSILON)
        np.divide(self._mean[used], scratch, out=scratch)
        self._values[used] -= scratch
        if self._decay1 < _MIN_DECAY:
            self._mean *= np.float32(self._decay1)
            self._square *= np.float32(self._decay2)
            np.sqrt(self._square, out=self._root)
            self._decay1 = self._decay2 = 1.0

    def changes(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the places of all slots, int32 (n,), each once, and their changes since the start, float32 (n,)."""
        places = self._places[: self._used]
        return places, self._values[: self._used] - self._start[places]
