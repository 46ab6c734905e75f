"""Adam over the part of a long vector that a client comes across, in the memory of that part.

Adam (Kingma and Ba, ICLR 2015, Algorithm 1) moves a value at every step, whether or not the step's gradient touches it.
One that no gradient has touched yet has no moments and stays, so that only the others need be stepped: those come first
here, in the order in which they were met. The decay of the moments is kept apart, as one number for all: with M and V
the moments over b1^t and b2^t, a gradient g adds (1 - b1) g / b1^t to M and (1 - b2) g^2 / b2^t to V, and

    value -= M / (sqrt(V) a_t + e_t),   a_t = (1 - b1^t) / (lr b1^t) sqrt(b2^t / (1 - b2^t)),
                                        e_t = (1 - b1^t) / (lr b1^t) epsilon

is the published step. What every value costs at every step is then a multiply, an add, a divide and a subtract.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.adam import BETA1, BETA2, EPSILON

__all__ = ["TouchedAdam"]

_SMALLEST: Final = 1e-15
"""How far b1^t may fall before the moments are brought back to their own size: float32 has room for far more."""


class TouchedAdam:
    """Moves the values of `start` (m,) float32 that `find` was asked for; `start` itself stays as it is.

    most: how many distinct values will be asked for at most.
    """

    def __init__(self, start: NDArray[np.float32], rate: float, most: int) -> None:
        room = min(start.size, most)
        self._start, self._rate = start, rate
        self._slots = np.zeros(start.size, dtype=np.int32)  # from 1; 0 for what was never asked for
        self._places = np.empty(room, dtype=np.int32)
        self._values, self._mean, self._square, self._root, self._gradient, self._scratch = np.zeros(
            (6, room), dtype=np.float32
        )
        self._known = self._steps = 0
        self._decay1 = self._decay2 = 1.0

    def find(self, places: NDArray[np.integer]) -> NDArray[np.int32]:
        """Where the values of `places` (k,), repeated or not, are kept from now on, int32 (k,)."""
        slots: NDArray[np.int32] = self._slots[places]
        new = places[slots == 0]
        if new.size:
            order = np.arange(1, new.size + 1, dtype=np.int32)
            self._slots[new] = order  # of a place that comes twice, one order stays
            new = new[self._slots[new] == order]
            known = self._known + new.size
            self._slots[new] = np.arange(self._known + 1, known + 1, dtype=np.int32)
            self._places[self._known : known] = new
            self._values[self._known : known] = self._start[new]
            self._known = known
            slots = self._slots[places]
        slots -= 1
        return slots

    def values(self, slots: NDArray[np.int32]) -> NDArray[np.float32]:
        """The values kept there, as they stand."""
        return np.asarray(np.take(self._values, slots))

    def step(self, slots: NDArray[np.int32], gradients: NDArray[np.float32]) -> None:
        """One step; the gradient of a slot that is listed several times is the sum."""
        self._steps += 1
        self._decay1 *= BETA1
        self._decay2 *= BETA2
        np.add.at(self._gradient, slots, gradients)
        found = np.take(self._gradient, slots)
        # a slot that is listed twice is written twice, with the same values
        self._mean[slots] = np.take(self._mean, slots) + np.float32((1 - BETA1) / self._decay1) * found
        square = np.take(self._square, slots) + np.float32((1 - BETA2) / self._decay2) * (found * found)
        self._square[slots] = square
        self._root[slots] = np.sqrt(square)
        self._gradient[slots] = 0.0
        self._move()
        if self._decay1 < _SMALLEST:
            self._rescale()

    def _move(self) -> None:
        every = slice(self._known)
        unbiased1, unbiased2 = 1 - BETA1**self._steps, 1 - BETA2**self._steps
        inverse = unbiased1 / (self._rate * self._decay1)
        scratch = self._scratch[every]
        np.multiply(self._root[every], np.float32(inverse * sqrt(self._decay2 / unbiased2)), out=scratch)
        scratch += np.float32(inverse * EPSILON)
        np.divide(self._mean[every], scratch, out=scratch)
        self._values[every] -= scratch

    def _rescale(self) -> None:
        self._mean *= np.float32(self._decay1)
        self._square *= np.float32(self._decay2)
        np.sqrt(self._square, out=self._root)
        self._decay1 = self._decay2 = 1.0

    def changes(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The places that were asked for, each once, and how far each moved."""
        places = self._places[: self._known]
        return places, self._values[: self._known] - self._start[places]
