"""Gradients of a loss by finite differences, to compare with those that code computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


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
