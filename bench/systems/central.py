"""The same filters with all data in one place: float64, from R itself, no code shared with `client_sdk.filters`."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds

from bench.systems.ring_sums import normalised
from client_sdk.data.interactions import Interactions
from client_sdk.filters import interaction_rows
from client_sdk.filters.turbo_cf import TurboCF

__all__ = ["Central", "exact_vectors"]


def exact_vectors(train: Interactions, columns: int) -> np.ndarray:
    """The top right singular vectors of R~ by ARPACK, float64 (m, columns), best first."""
    _, values, transposed = svds(normalised(train), k=columns, random_state=0, return_singular_vectors="vh")
    return transposed[np.argsort(-values)].T.copy()


class Central:
    """Scores of users, float64 (users, m), from the interaction matrix itself."""

    def __init__(self, train: Interactions) -> None:
        self.rows = interaction_rows(train).astype(np.float64)
        self.r = normalised(train)
        self.roots = np.sqrt(train.item_degrees().astype(np.float64))

    def product(self, vectors: np.ndarray) -> np.ndarray:
        """P Q of (m, K), P = R~^T R~ never formed."""
        return self.r.T @ (self.r @ vectors)

    def linear(self, users: np.ndarray) -> np.ndarray:
        """R P."""
        return (self.rows[users] @ self.r.T @ self.r).toarray()

    def ideal(self, users: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """R D_i^-1/2 V V^T D_i^1/2."""
        inverse = np.divide(1, self.roots, out=np.zeros_like(self.roots), where=self.roots > 0)
        return (self.rows[users] @ (inverse[:, None] * vectors)) @ (vectors.T * self.roots)

    def powered(self, turbo: TurboCF, train: Interactions) -> csr_array:
        """P with every entry raised to s; the filter's linear form, S = R P^s, is all that the data sets here use."""
        assert turbo.filter == 1
        r = normalised(train, turbo.user_exponent)
        gram = csr_array(r.T @ r)
        gram.data **= turbo.power
        return gram
