"""Local differential privacy: a vector is clipped and noise is added before it leaves the device.

Every coordinate gets an independent draw. One draw for all coordinates, as in RFRec's released code, hides only the
vector's mean: every difference between two coordinates is sent unchanged.

Values are on a grid g, a power of two, and the noise is discrete Laplace on the same grid (Ghosh, Roughgarden and
Sundararajan, STOC 2009), sampled exactly (`protocols.privacy.discrete_laplace`). With values rounded to whole steps
within +-clip, and a scale rounded up to a whole number of steps, the guarantee is pure epsilon-DP with epsilon at most
2 * clip / scale per coordinate and delta = 0. Adding float Laplace noise to float values has no such guarantee: the set
of possible results depends on the input (Mironov, "On Significance of the Least Significant Bits for Differential
Privacy", CCS 2012).

Assumptions: the entropy is uniform and the keystream of AES-256 is indistinguishable from random, so privacy holds
against computationally bounded adversaries (Mironov et al., CRYPTO 2009); and nobody measures the time of a draw, which
depends on the sum of the noise over the vector, not on the values.
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

__all__ = ["LaplaceNoise", "privatise", "refuse_exact_sums"]

_STEPS: Final = 20
"""Scales are 2**20 to 2**21 steps, so rounding a scale up to a whole number of steps adds less than one millionth."""
_TAIL: Final = 40
"""Scales between the clip and the bound of noisy values."""
_MAX_RATIO: Final = 2.0**31
"""Largest clip / scale: every noisy value is then a whole number of steps below 2**53, exact in float64."""
_RANGE: Final = (1e-100, 1e100)
"""Smallest and largest clip and scale."""


class LaplaceNoise(BaseModel):
    """The clip and noise of each value. A release of n values costs n * `epsilon`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clip: float = Field(gt=0, description="Bound on the size of each value before noise.")
    scale: float = Field(gt=0, description="Scale b of the Laplace noise; its standard deviation is b * sqrt(2).")

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        low, high = _RANGE
        if not (low <= self.clip <= high and low <= self.scale <= high):
            raise ValueError(f"clip and scale must be in {low:g} .. {high:g}, got {self.clip:g} and {self.scale:g}")
        if self.clip > _MAX_RATIO * self.scale:
            raise ValueError(f"noise of scale {self.scale:g} is too small for values up to {self.clip:g}")
        return self

    @property
    def bound(self) -> float:
        """Bound to which noisy values are clipped; they exceed it with probability below e**-40."""
        return self.clip + _TAIL * self.scale

    @property
    def epsilon(self) -> float:
        """Epsilon of ONE value sent once: 2 * clip / scale."""
        return 2 * self.clip / self.scale

    @property
    def grid(self) -> float:
        """The step of the grid of noisy values, a power of two: scale / 2**21 < grid <= scale / 2**20."""
        return 2.0 ** (math.frexp(self.scale)[1] - 1 - _STEPS)


def refuse_exact_sums(noise: LaplaceNoise | None, setting: str, exact: bool) -> None:
    """Raise `ValueError` if a task with noise also sums its clients' data without: `setting` says so, if `exact`."""
    if noise is not None and exact:
        raise ValueError(
            f"{setting} sums the same data without noise, so the epsilon of the noise would promise nothing: "
            "leave one of the two out"
        )


def privatise(
    values: NDArray[np.float64], noise: LaplaceNoise, entropy: Callable[[int], bytes] = os.urandom
) -> tuple[NDArray[np.float64], int]:
    """Return `values` (n,) clipped and with noise, float64 (n,) within +-`noise.bound`, and how many were clipped.

    The number includes values beyond `clip` and noisy values beyond `bound`, which are very unlikely; clipping these is
    post-processing. The number depends on the values without noise: keep it on the device.

    entropy: n -> n secret random bytes, different in every call; called once, for 32 bytes. Raises `ParameterError` for
    values that are not finite (training diverged) or not a vector.
    """
    if values.ndim != 1:
        raise ParameterError(f"noise is added to a vector, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ParameterError("noise cannot be added to values that are not finite: training diverged")
    grid = noise.grid
    most, bound = math.floor(noise.clip / grid), math.floor(noise.bound / grid)
    clipped = int(np.count_nonzero(np.abs(values) > noise.clip))
    steps = np.rint(np.clip(values, -noise.clip, noise.clip) / grid).astype(np.int64)
    noisy = np.clip(steps, -most, most)  # rounding to the grid may exceed the clip
    noisy += discrete_laplace(entropy(KEY_BYTES), math.ceil(noise.scale / grid), values.size)
    clipped += int(np.count_nonzero(np.abs(noisy) > bound))
    return np.clip(noisy, -bound, bound).astype(np.float64) * np.float64(grid), clipped
