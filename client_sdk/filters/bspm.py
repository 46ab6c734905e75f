"""BSPM (Choi et al., SIGIR 2023): blurs a user's row with the graph, then sharpens it by an ODE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import factorial
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from client_sdk.filters.components import Components
from client_sdk.filters.parts import ideal, linear, polynomial
from client_sdk.filters.requirements import check_exponent
from client_sdk.filters.rows import by_chunk, check_rows
from protocols.errors import ParameterError

__all__ = ["BSPM", "BSPM_EM_PRESETS", "BSPM_LM_PRESETS"]

ORDERS: Final[Mapping[str, int]] = {"euler": 1, "rk4": 4}
"""Order of each solver. On dy/dt = -y P a step h is the Taylor polynomial of exp(-h P) of that order."""


@dataclass(frozen=True)
class BSPM:
    """Blurring y = R P, ideal part L = R D_i^-1/2 V V^T D_i^1/2, and sharpening dy/dt = -y P for `sharpening_time`.

    Early merge (EM) sharpens y + beta L. Late merge (LM) sharpens y and adds beta L to the result. Blurring and the
    ideal part are one Euler step of length 1, as in the released code. Raises `ParameterError` for values out of range.
    """

    early_merge: bool
    """True for EM, False for LM."""
    solver: Literal["euler", "rk4"] = "euler"
    """Solver of the sharpening ODE."""
    sharpening_time: float = 1.0
    """T_s, the time over which the ODE is solved."""
    sharpening_steps: int = 1
    """K_s, the number of equal steps of the solver."""
    beta: float = 0.3
    """Weight of the ideal part; with 0 it is not computed."""
    ideal_dims: int = 256
    """Number of columns of V in the ideal part, at most all columns of the components."""
    average_points: bool = False
    """Whether the result is the mean of the blurred signal and all steps, instead of the last step."""

    def __post_init__(self) -> None:
        if self.solver not in ORDERS:
            raise ParameterError(f"solver must be euler or rk4, got {self.solver!r}")
        if self.sharpening_time <= 0 or self.sharpening_steps < 1 or self.beta < 0 or self.ideal_dims < 1:
            raise ParameterError(
                "sharpening_time must be > 0, sharpening_steps >= 1, beta >= 0 and ideal_dims >= 1, got "
                f"{self.sharpening_time}, {self.sharpening_steps}, {self.beta} and {self.ideal_dims}"
            )

    @property
    def needs_gram(self) -> bool:
        """False: the filter also works with the factors of PriviRec-k."""
        return False

    @property
    def user_exponent(self) -> float:
        """The exponent a that the components must have."""
        return 0.5

    @property
    def step_coefficients(self) -> list[float]:
        """Coefficients c_k of one step, y <- y sum_k c_k P^k: (-h)^k / k! up to the solver's order."""
        step = self.sharpening_time / self.sharpening_steps
        return [(-step) ** power / factorial(power) for power in range(ORDERS[self.solver] + 1)]

    def scores(self, components: Components, rows: csr_array[Any, Any]) -> NDArray[np.float32]:
        """Return the scores of all items for binary `rows` (users, m), float32 (users, m).

        The user's own items have scores too. Raises `ParameterError` if rows or components do not match the filter.
        """
        check_rows(rows, components.n_items)
        check_exponent(components, self.user_exponent)
        return by_chunk(rows, lambda chunk: self._score(components, chunk))

    def _score(self, components: Components, rows: csr_array[Any, Any]) -> NDArray[np.float32]:
        blurred = linear(components, rows)
        low_pass = np.float32(self.beta) * ideal(components, rows, self.ideal_dims) if self.beta else np.float32(0)
        signal = blurred + low_pass if self.early_merge else blurred
        total = blurred.copy() if self.average_points else None
        for _ in range(self.sharpening_steps):
            signal = polynomial(components, signal, self.step_coefficients)
            if total is not None:
                total += signal
        if total is not None:
            signal = total / np.float32(self.sharpening_steps + 1)
        return signal if self.early_merge else signal + low_pass


_GOWALLA: Final = BSPM(early_merge=True, solver="rk4", sharpening_time=2.5, beta=0.2, ideal_dims=448)
_YELP: Final = BSPM(early_merge=True, sharpening_time=1.2, beta=0.3, ideal_dims=384, average_points=True)
_AMAZON: Final = BSPM(early_merge=False, solver="rk4", sharpening_time=2.2, sharpening_steps=2, beta=0.0)

BSPM_EM_PRESETS: Final[Mapping[str, BSPM]] = {
    "amazon-book": replace(_AMAZON, early_merge=True),
    "gowalla": _GOWALLA,
    "yelp2018": _YELP,
}
"""Settings of the released code, by data set. On amazon-book both variants are the same, because beta is 0."""

BSPM_LM_PRESETS: Final[Mapping[str, BSPM]] = {
    "amazon-book": _AMAZON,
    "gowalla": replace(_GOWALLA, early_merge=False),
    "yelp2018": replace(_YELP, early_merge=False),
}
"""amazon-book: of the released code. gowalla and yelp2018: not published; those of early merge give the paper's figure
on gowalla (docs/fidelity.md)."""
