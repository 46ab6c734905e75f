"""BSPM (Choi et al., SIGIR 2023): blur a user's row with the graph, then sharpen it again by an ODE."""

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
"""A solver's order: on dy/dt = -y P a step h is the Taylor polynomial of exp(-h P) up to it."""


@dataclass(frozen=True)
class BSPM:
    """Blur y = R P, ideal part L = R D_i^-1/2 V V^T D_i^1/2, sharpening dy/dt = -y P over `sharpening_time`.

    Early merge starts from y + beta L and ends with the sharpened signal; late merge starts from y and adds beta L at
    the end. Blurring and the ideal part are one Euler step of length 1, as in the released code.
    """

    early_merge: bool
    """EM, or LM."""
    solver: Literal["euler", "rk4"] = "euler"
    """Of the sharpening ODE."""
    sharpening_time: float = 1.0
    """T_s."""
    sharpening_steps: int = 1
    """K_s: equal steps that T_s is cut into."""
    beta: float = 0.3
    """Weight of the ideal part; 0 leaves it out."""
    ideal_dims: int = 256
    """Columns of V that the ideal part uses, all when the components have fewer."""
    average_points: bool = False
    """The mean of the blurred signal and of every sharpening step, in place of the last step."""

    def __post_init__(self) -> None:
        if self.solver not in ORDERS:
            raise ParameterError(f"solver euler or rk4 was expected, got {self.solver!r}")
        if self.sharpening_time <= 0 or self.sharpening_steps < 1 or self.beta < 0 or self.ideal_dims < 1:
            raise ParameterError(
                "sharpening_time > 0, sharpening_steps >= 1, beta >= 0 and ideal_dims >= 1 were expected, got "
                f"{self.sharpening_time}, {self.sharpening_steps}, {self.beta} and {self.ideal_dims}"
            )

    @property
    def needs_gram(self) -> bool:
        """It also runs on PriviRec-k's factors."""
        return False

    @property
    def user_exponent(self) -> float:
        """a of the components that it takes."""
        return 0.5

    @property
    def step_coefficients(self) -> list[float]:
        """c_k of one step, y <- y sum_k c_k P^k: (-h)^k / k! up to the solver's order."""
        step = self.sharpening_time / self.sharpening_steps
        return [(-step) ** power / factorial(power) for power in range(ORDERS[self.solver] + 1)]

    def scores(self, components: Components, rows: csr_array[Any, Any]) -> NDArray[np.float32]:
        """Scores of all items, float32 (users, m), for binary `rows` (users, m); a user's own items are scored too.

        Raises `ParameterError` when rows and components do not fit each other or this filter.
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

BSPM_EM_PRESETS: Final[Mapping[str, BSPM]] = {"gowalla": _GOWALLA, "yelp2018": _YELP}
"""The released code's settings."""

BSPM_LM_PRESETS: Final[Mapping[str, BSPM]] = {"gowalla": replace(_GOWALLA, early_merge=False), "amazon-book": _AMAZON}
"""amazon-book: the released code's. gowalla: not printed; early merge's give the paper's figure (docs/fidelity.md)."""
