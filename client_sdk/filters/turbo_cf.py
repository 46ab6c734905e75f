"""Turbo-CF (Park et al., SIGIR 2024): a polynomial in the item-item matrix, without a decomposition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from client_sdk.filters.components import Components
from client_sdk.filters.parts import linear, polynomial
from client_sdk.filters.requirements import check_exponent
from client_sdk.filters.rows import by_chunk, check_rows
from protocols.errors import ParameterError

__all__ = ["TURBO_CF_PRESETS", "TurboCF"]

FILTER_COEFFICIENTS: Final[Mapping[int, tuple[float, ...]]] = {
    1: (1.0,),
    2: (2.0, -1.0),
    3: (1.0 - 0.29, 0.1, -0.01),
}
"""Coefficients of powers of P that R P is multiplied by. Filter 1 is P, 2 is 2P - P^2, 3 is
P + 0.01 (-P^3 + 10 P^2 - 29 P)."""


@dataclass(frozen=True)
class TurboCF:
    """S = R p(P^s), with P = R~^T R~, R~ = D_u^-a R D_i^(a-1), and P^s entry by entry (PriviRec, eq. 5).

    Raises `ParameterError` for values out of range.
    """

    user_exponent: float = 0.5
    """a, the exponent that the components must have."""
    power: float = 1.0
    """s, the power of each entry of P. Any value other than 1 needs the Gram matrix."""
    filter: Literal[1, 2, 3] = 1
    """The paper's polynomial: 1 is linear, 2 of second order, 3 of third order."""

    def __post_init__(self) -> None:
        if self.power <= 0 or self.filter not in FILTER_COEFFICIENTS:
            raise ParameterError(f"power must be > 0 and filter 1, 2 or 3, got {self.power} and {self.filter}")

    @property
    def needs_gram(self) -> bool:
        """True if s is not 1: a power of the entries needs the entries, not the factors of PriviRec-k."""
        return self.power != 1

    def scores(self, components: Components, rows: csr_array[Any, Any]) -> NDArray[np.float32]:
        """Return the scores of all items for binary `rows` (users, m), float32 (users, m).

        The user's own items have scores too. Raises `ParameterError` if rows or components do not match the filter.
        """
        check_rows(rows, components.n_items)
        check_exponent(components, self.user_exponent)
        powered = self._powered(components)
        coefficients = FILTER_COEFFICIENTS[self.filter]
        if len(coefficients) == 1:
            return by_chunk(rows, lambda chunk: linear(powered, chunk))
        return by_chunk(rows, lambda chunk: polynomial(powered, linear(powered, chunk), coefficients))

    def _powered(self, components: Components) -> Components:
        if not self.needs_gram:
            return components
        if components.gram is None:
            raise ParameterError(f"Turbo-CF with power {self.power:g} needs the Gram matrix, not its factors")
        gram = components.gram.copy()
        # quantisation can make a very small entry negative
        gram.data = np.maximum(gram.data, 0) ** np.float32(self.power)
        return replace(components, gram=gram)


TURBO_CF_PRESETS: Final[Mapping[str, TurboCF]] = {
    "gowalla": TurboCF(user_exponent=0.6, power=0.7, filter=1),
    "yelp2018": TurboCF(user_exponent=0.6, power=1.0, filter=2),
    "amazon-book": TurboCF(user_exponent=0.5, power=1.4, filter=1),
}
"""Settings of the released code, by data set."""
