"""Adam (Kingma and Ba, ICLR 2015, Algorithm 1), dense, on arrays that are updated in place.

A row whose gradient has been zero in every step so far has zero moments and does not change. Training only the rows
that take part in a round is therefore the same as training the whole matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Adam", "OuterAdam"]

BETA1: Final = 0.9
BETA2: Final = 0.999
EPSILON: Final = 1e-8

Array = NDArray[np.floating[Any]]


class Adam:
    """Adam that updates float32 `parameters` in place. The moments begin at zero.

    rates: learning rate of each parameter, a number or one per entry.
    """

    def __init__(self, parameters: Sequence[NDArray[np.float32]], rates: Sequence[float | NDArray[np.float32]]) -> None:
        self._steps = 0
        self._slots = [
            (value, rate, np.zeros_like(value), np.zeros_like(value), np.empty_like(value))
            for value, rate in zip(parameters, rates, strict=True)
        ]

    def step(self, gradients: Sequence[NDArray[np.float32]]) -> None:
        """Take one step. `gradients` have the shapes of the parameters and are overwritten."""
        self._steps += 1
        scale1, scale2 = 1 - BETA1**self._steps, 1 - BETA2**self._steps
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

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return self._steps

    @property
    def moments(self) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
        """First and second moments, with the shapes of the parameters."""
        return [slot[2] for slot in self._slots], [slot[3] for slot in self._slots]

    def resume(self, steps: int, means: Sequence[NDArray[np.float32]], squares: Sequence[NDArray[np.float32]]) -> None:
        """Continue after `steps` steps with the given first and second moments, which are copied."""
        self._steps = steps
        for (_, _, mean, square, _), kept_mean, kept_square in zip(self._slots, means, squares, strict=True):
            mean[:], square[:] = kept_mean, kept_square


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
