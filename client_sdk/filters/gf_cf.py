"""GF-CF (Shen et al., CIKM 2021): the sum of a linear and an ideal low-pass filter, without training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from client_sdk.filters.components import Components
from client_sdk.filters.parts import ideal, linear
from client_sdk.filters.requirements import check_exponent
from client_sdk.filters.rows import by_chunk, check_rows
from protocols.errors import ParameterError

__all__ = ["GF_CF_PRESETS", "GFCF"]


@dataclass(frozen=True)
class GFCF:
    """S = R P + alpha R D_i^-1/2 V V^T D_i^1/2 (PriviRec, eq. 4). The rows of R are not normalised.

    Raises `ParameterError` for values out of range.
    """

    alpha: float = 0.3
    """Weight of the ideal part; with 0 it is not computed."""
    ideal_dims: int = 256
    """Number of columns of V in the ideal part, at most all columns of the components."""

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.ideal_dims < 1:
            raise ParameterError(f"alpha must be >= 0 and ideal_dims >= 1, got {self.alpha} and {self.ideal_dims}")

    @property
    def needs_gram(self) -> bool:
        """False: the filter also works with the factors of PriviRec-k."""
        return False

    @property
    def user_exponent(self) -> float:
        """The exponent a that the components must have."""
        return 0.5

    def scores(self, components: Components, rows: csr_array[Any, Any]) -> NDArray[np.float32]:
        """Return the scores of all items for binary `rows` (users, m), float32 (users, m).

        The user's own items have scores too. Raises `ParameterError` if rows or components do not match the filter.
        """
        check_rows(rows, components.n_items)
        check_exponent(components, self.user_exponent)

        def score(chunk: csr_array[Any, Any]) -> NDArray[np.float32]:
            found = linear(components, chunk)
            if self.alpha:
                found += np.float32(self.alpha) * ideal(components, chunk, self.ideal_dims)
            return found

        return by_chunk(rows, score)


GF_CF_PRESETS: Final[Mapping[str, GFCF]] = {"amazon-book": GFCF(alpha=0.0)}
"""Settings of the released code for data sets that differ from the defaults."""
