"""The filters with all data in one place: float64, from R itself, without code of the SDK's filters."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds

from bench.systems.ring_sums import normalised
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.training.graph_filters import TurboCF

__all__ = ["Central", "exact_vectors"]


def exact_vectors(train: Interactions, columns: int) -> np.ndarray:
    """The top right singular vectors of R~ by ARPACK, float64 (m, columns), best first."""
    _, values, transposed = svds(normalised(train), k=columns, random_state=0, return_singular_vectors="vh")
    return transposed[np.argsort(-values)].T.copy()


class Central:
    """Parts of the users' scores, float64 (users, m), from the interaction matrix itself."""

    def __init__(self, train: Interactions) -> None:
        self.rows = interaction_rows(train).astype(np.float64)
        self.r = normalised(train)
        self.roots = np.sqrt(train.item_degrees().astype(np.float64))

    def product(self, vectors: np.ndarray) -> np.ndarray:
        """P Q for Q (m, K), without forming P = R~^T R~."""
        return self.r.T @ (self.r @ vectors)

    def linear(self, users: np.ndarray) -> np.ndarray:
        """The linear part R P of `users`, dense (users, m)."""
        return (self.rows[users] @ self.r.T @ self.r).toarray()

    def ideal(self, users: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """The ideal part R D_i^-1/2 V V^T D_i^1/2 of `users`, (users, m)."""
        inverse = np.divide(1, self.roots, out=np.zeros_like(self.roots), where=self.roots > 0)
        return (self.rows[users] @ (inverse[:, None] * vectors)) @ (vectors.T * self.roots)

    def powered(self, turbo: TurboCF, train: Interactions) -> csr_array:
        """P with every entry raised to s. Only the filter's linear form, S = R P^s, is supported."""
        assert turbo.filter == 1
        r = normalised(train, turbo.user_exponent)
        gram = csr_array(r.T @ r)
        gram.data **= turbo.power
        return gram
