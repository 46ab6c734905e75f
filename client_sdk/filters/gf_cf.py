"""GF-CF (Shen et al., CIKM 2021): one linear and one ideal low-pass filter, nothing trained."""

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
    """S = R P + alpha R D_i^-1/2 V V^T D_i^1/2 (PriviRec, eq. 4). The rows of R are raw, not normalised."""

    alpha: float = 0.3
    """Weight of the ideal part; 0 leaves it out."""
    ideal_dims: int = 256
    """Columns of V that the ideal part uses, all when the components have fewer."""

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.ideal_dims < 1:
            raise ParameterError(f"alpha >= 0 and ideal_dims >= 1 were expected, got {self.alpha}, {self.ideal_dims}")

    @property
    def needs_gram(self) -> bool:
        """It also runs on PriviRec-k's factors."""
        return False

    @property
    def user_exponent(self) -> float:
        """a of the components that it takes."""
        return 0.5

    def scores(self, components: Components, rows: csr_array[Any, Any]) -> NDArray[np.float32]:
        """Scores of all items, float32 (users, m), for binary `rows` (users, m); a user's own items are scored too.

        Raises `ParameterError` when rows and components do not fit each other or this filter.
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
"""What the released code changes by data set."""
