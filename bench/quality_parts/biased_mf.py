"""A central biased matrix factorisation of ratings: what a model with all rows in one place reaches.

    r_ui ~ mu + b_u + b_i + p_u . q_i

trained by alternating least squares. A side's factors and biases are solved together, with the weight `penalty` times
the number of the owner's ratings on their squares (Zhou et al., AAIM 2008; biases as in Koren, KDD 2008, section 2.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from client_sdk.lab.data.interactions import Interactions
from protocols.errors import ParameterError

__all__ = ["CHOICES", "BiasedMF", "MFSettings"]

_INITIAL_STD: Final = 0.1


@dataclass(frozen=True)
class MFSettings:
    """dim: length of p and q. penalty: weight of the squares, for each rating. sweeps: solutions of either side."""

    dim: int
    penalty: float
    sweeps: int = 12


CHOICES: Final = tuple(MFSettings(20, penalty) for penalty in (0.05, 0.1, 0.15, 0.25, 0.4))
"""Settings to choose from, on validation rows."""


class BiasedMF:
    """A model trained on all rows. Raises `ParameterError` without ratings."""

    def __init__(self, train: Interactions, settings: MFSettings, seed: int) -> None:
        if train.ratings is None:
            raise ParameterError("a model of ratings needs ratings")
        self.mean = float(train.ratings.mean(dtype=np.float64))
        values = train.ratings.astype(np.float64) - self.mean
        by_user = csr_matrix((values, train.items, train.indptr), shape=(train.n_users, train.n_items))
        by_item = by_user.T.tocsr()
        draws = np.random.default_rng(seed)
        # the last column is the bias
        self.users = np.zeros((train.n_users, settings.dim + 1))
        self.items = _INITIAL_STD * draws.standard_normal((train.n_items, settings.dim + 1))
        self.items[:, -1] = 0.0
        for _ in range(settings.sweeps):
            _solve(by_user, self.users, self.items, settings.penalty)
            _solve(by_item, self.items, self.users, settings.penalty)

    def predictions(self, users: NDArray[np.integer], items: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the predicted ratings of k pairs, float64 (k,), not clipped."""
        own, others = self.users[users], self.items[items]
        products = np.einsum("kd,kd->k", own[:, :-1], others[:, :-1])
        return np.asarray(self.mean + own[:, -1] + others[:, -1] + products)


def _solve(rows: csr_matrix, own: NDArray[np.float64], others: NDArray[np.float64], penalty: float) -> None:
    """Set each row of `own` to its solution, with `others` fixed. An owner without ratings keeps zeros."""
    identity = np.eye(own.shape[1])
    own[:] = 0.0
    for owner in np.flatnonzero(np.diff(rows.indptr)):
        place = slice(rows.indptr[owner], rows.indptr[owner + 1])
        features = others[rows.indices[place]]
        targets = rows.data[place] - features[:, -1]
        features[:, -1] = 1.0
        gram = features.T @ features + penalty * targets.size * identity
        own[owner] = np.linalg.solve(gram, features.T @ targets)
