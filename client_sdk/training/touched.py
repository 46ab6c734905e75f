"""Adam over the entries of a long vector that a client uses, with memory for those entries only.

Adam (Kingma and Ba, ICLR 2015, Algorithm 1) updates an entry at every step, also when the gradient of that step is
zero. An entry whose gradient has been zero in every step so far has zero moments and does not change, so only entries
that have been used are updated. Each of them has a slot; slots are numbered in order of first use.

The decay of the moments is stored as one number for all slots. With M and V the moments divided by b1^t and b2^t, a
gradient g adds (1 - b1) g / b1^t to M and (1 - b2) g^2 / b2^t to V, and

    value -= M / (sqrt(V) a_t + e_t),   a_t = (1 - b1^t) / (lr b1^t) sqrt(b2^t / (1 - b2^t)),
                                        e_t = (1 - b1^t) / (lr b1^t) epsilon

is the published step. Each step then costs one multiplication, addition, division and subtraction per slot.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.adam import BETA1, BETA2, EPSILON

__all__ = ["TouchedAdam"]

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
            self._add(self._distinct_places(without_slot))
            numbers = self._slot_numbers[places]
        numbers -= 1
        return numbers

    def _distinct_places(self, places: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return `places`, none of which has a slot yet, without repetitions.

        Writes an index at every place; where a place is repeated, one of its indices remains and marks the repetition
        to keep. `np.unique` sorts, which takes four to six times as long on the vectors of FAIR on ML-1M.
        """
        order = np.arange(1, places.size + 1, dtype=np.int32)
        self._slot_numbers[places] = order
        distinct: NDArray[np.integer] = places[self._slot_numbers[places] == order]
        return distinct

    def _add(self, places: NDArray[np.integer]) -> None:
        """Give the next free slots to `places`, which are distinct."""
        used = self._used + places.size
        self._slot_numbers[places] = np.arange(self._used + 1, used + 1, dtype=np.int32)
        self._places[self._used : used] = places
        self._values[self._used : used] = self._start[places]
        self._used = used

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
        self._update_values()
        if self._decay1 < _MIN_DECAY:
            self._rescale()

    def _update_values(self) -> None:
        used = slice(self._used)
        unbiased1, unbiased2 = 1 - BETA1**self._steps, 1 - BETA2**self._steps
        inverse = unbiased1 / (self._rate * self._decay1)
        scratch = self._scratch[used]
        np.multiply(self._root[used], np.float32(inverse * sqrt(self._decay2 / unbiased2)), out=scratch)
        scratch += np.float32(inverse * EPSILON)
        np.divide(self._mean[used], scratch, out=scratch)
        self._values[used] -= scratch

    def _rescale(self) -> None:
        self._mean *= np.float32(self._decay1)
        self._square *= np.float32(self._decay2)
        np.sqrt(self._square, out=self._root)
        self._decay1 = self._decay2 = 1.0

    def changes(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the places of all slots, int32 (n,), each once, and their changes since the start, float32 (n,)."""
        places = self._places[: self._used]
        return places, self._values[: self._used] - self._start[places]
