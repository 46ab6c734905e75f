"""Local differential privacy: a vector is clipped and noised before it leaves the device.

Every coordinate gets a draw of its own. One draw for all of them, as in RFRec's released code, hides the vector's mean
alone: every difference between two coordinates is sent as it is.

Values lie on a grid g, a power of two, and the noise is discrete Laplace on the same grid (Ghosh, Roughgarden and
Sundararajan, STOC 2009), drawn exactly (`protocols.privacy.discrete_laplace`). With values held to a whole number of
steps within +-clip, and a scale rounded up to a whole number of steps, the guarantee is pure epsilon-DP with epsilon at
most 2 * clip / scale a coordinate and delta = 0. Adding float Laplace noise to float values has no such guarantee:
which doubles can come out depends on the value that went in (Mironov, "On Significance of the Least Significant Bits
for Differential Privacy", CCS 2012).

What it rests on: that the entropy is uniform and the keystream of AES-256 cannot be told from random, so privacy is
against computationally bounded adversaries (Mironov et al., CRYPTO 2009); and that nobody measures how long a draw
takes, which depends on the noise, summed over the vector, and not on the values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocols.errors import ParameterError
from protocols.privacy.discrete_laplace import KEY_BYTES, discrete_laplace

__all__ = ["LaplaceNoise", "privatise"]

_STEPS: Final = 20
"""Scales are 2**20 to 2**21 steps, so rounding one up to a whole number of steps adds less than a millionth."""
_TAIL: Final = 40
_MAX_RATIO: Final = 2.0**31
"""Clip over scale, so that every noisy value is a whole number of steps below 2**53: exact as float64."""
_RANGE: Final = (1e-100, 1e100)


class LaplaceNoise(BaseModel):
    """What each value is clipped to, and how much noise it gets. A release of n values costs n * `epsilon`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clip: float = Field(gt=0, description="Bound on the size of each value before noise.")
    scale: float = Field(gt=0, description="Scale b of the Laplace noise; its standard deviation is b * sqrt(2).")

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        low, high = _RANGE
        if not (low <= self.clip <= high and low <= self.scale <= high):
            raise ValueError(f"clip and scale lie in {low:g} .. {high:g}, got {self.clip:g} and {self.scale:g}")
        if self.clip > _MAX_RATIO * self.scale:
            raise ValueError(f"noise of scale {self.scale:g} hides nothing in values up to {self.clip:g}")
        return self

    @property
    def bound(self) -> float:
        """What a noisy value is held within: it would be beyond with probability below e**-40."""
        return self.clip + _TAIL * self.scale

    @property
    def epsilon(self) -> float:
        """Cost of ONE value sent once: 2 * clip / scale."""
        return 2 * self.clip / self.scale

    @property
    def grid(self) -> float:
        """The step on which noisy values lie, a power of two: scale / 2**21 < grid <= scale / 2**20."""
        return 2.0 ** (math.frexp(self.scale)[1] - 1 - _STEPS)


def privatise(
    values: NDArray[np.float64], noise: LaplaceNoise, entropy: Callable[[int], bytes] = os.urandom
) -> tuple[NDArray[np.float64], int]:
    """`values` (n,) clipped and noised, float64 (n,) within +-`noise.bound`, and how many had to be moved.

    Moved are those beyond `clip`, and those that the noise threw beyond `bound`, which all but never happens; holding
    them back is post-processing. How many were clipped is said of the values without noise: keep it on the device.

    entropy: n -> n secret random bytes; asked for 32 once, and no two calls may get the same. Raises `ParameterError`
    for values that are not finite (training diverged) or not a vector.
    """
    if values.ndim != 1:
        raise ParameterError(f"noise is added to a vector, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ParameterError("values that are not finite cannot be noised: training diverged")
    grid = noise.grid
    most, furthest = math.floor(noise.clip / grid), math.floor(noise.bound / grid)
    clipped = int(np.count_nonzero(np.abs(values) > noise.clip))
    steps = np.rint(np.clip(values, -noise.clip, noise.clip) / grid).astype(np.int64)
    noisy = np.clip(steps, -most, most)  # rounding to the grid may lead beyond the clip
    noisy += discrete_laplace(entropy(KEY_BYTES), math.ceil(noise.scale / grid), values.size)
    thrown = int(np.count_nonzero(np.abs(noisy) > furthest))
    held = np.clip(noisy, -furthest, furthest).astype(np.float64)
    return held * np.float64(grid), clipped + thrown
