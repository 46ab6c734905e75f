"""What bounds a recipe's sums and states: one client's share of a sum, and how far sums can move a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.errors import CodecError
from protocols.layout import Floats


@dataclass(frozen=True)
class Sensitivity:
    """What bounds the change of a sum when one client's contribution is replaced by zeros."""

    l2: float | None = None
    """Bound on the L2 norm of a contribution that follows from what it is; None: the task's clip, which adapts."""
    counts: bool = False
    """All values are 0 or 1, so that a contribution is limited to the task's `most_items` ones."""
    per_item: int = 0
    """Values that are not 0 for each item of a client; 0 if all may be. It decides how fine steps are, not how private
    sums are."""


@dataclass(frozen=True)
class Reach:
    """How far the sums of a task can move its model: what a client checks a state by that it did not compute itself."""

    sums: int
    """Sums that can be in the state."""
    fewest: int
    most: int
    """Contributions to a sum."""
    largest: float | None = None
    """Size of a value of a contribution in the recipe's units, noise included, in a task with a privacy block; None:
    the recipe's clip bounds it."""

    @property
    def of_mean(self) -> float:
        """How many times larger than the largest value of a contribution a value of their mean can be.

        Above 1 because one bad contribution can make the sum as large as the largest round allows, which must not end a
        task.
        """
        return self.most / self.fewest


def require_within(values: NDArray[np.floating], bound: Floats | float, what: str) -> None:
    """Raise `CodecError` for a value, or a row of (n, d), whose size is above its bound, a number or (n,).

    The size of a row is its L2 norm. what: the name of the values in the error's text.
    """
    with np.errstate(over="ignore"):  # becomes infinite, which is refused
        sizes = np.abs(values) if values.ndim < 2 else np.sqrt(np.einsum("ij,ij->i", values, values))
    if not (sizes <= bound).all():
        raise CodecError(
            f"{what} of a model state are up to {float(sizes.max()):g} in size: more than sums of this task can make "
            "of them"
        )


def noise_level(noise: float) -> float:
    """Return twice the deviation `noise`: a count of 0 has a larger sum for 1 item in 40. 0.0 without noise."""
    return 2.0 * noise
