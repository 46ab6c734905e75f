"""What tests measure: the memory that some work takes, and the slopes of a loss by finite differences."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Made = TypeVar("Made")


def peak_of(work: Callable[[], Made]) -> tuple[Made, int]:
    """Return what `work` returns, and the bytes that were allocated at the same time, at most, while it ran."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def slopes(loss: Callable[[], float], parameter: NDArray[np.float64], step: float = 1e-6) -> NDArray[np.float64]:
    """The slope of `loss` in each entry of `parameter`, which is moved in place and put back."""
    found = np.zeros_like(parameter)
    for place in np.ndindex(parameter.shape):
        kept, sides = parameter[place], []
        for moved in (kept + step, kept - step):
            parameter[place] = moved
            sides.append(loss())
        parameter[place] = kept
        found[place] = (sides[0] - sides[1]) / (2 * step)
    return found
