"""Synthetic implicit feedback with personal preferences, for the demo and for tests.

Users x_u and items y_i are points near a few cluster centres. The probability that user u interacts with item i is the
softmax over items of

    log popularity_i + affinity * (x_u . y_i),     popularity_i ~ 1 / rank^skew   (Zipf)

and a user's items are drawn from it without replacement (Gumbel top-k). The inner product has a low rank, so matrix
factorisation can learn it; it differs between users, so popularity cannot predict it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_sdk.lab.data.interactions import Interactions
from protocols.errors import ParameterError


@dataclass(frozen=True)
class SyntheticConfig:
    """Parameters of synthetic data. Equal configurations give identical data. Raises `ParameterError` if invalid."""

    users: int = 400
    items: int = 500
    positives: int = 30
    """Mean number of interactions per user; each user has between half and twice as many."""
    clusters: int = 5
    """Number of cluster centres, which is the rank of the inner products."""
    affinity: float = 8.0
    """Weight of the inner product relative to popularity, 0 for popularity alone."""
    skew: float = 1.2
    """Zipf exponent of popularity, 0 for items that are equally popular."""
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.users, self.items, self.clusters) < 1 or self.positives < 2:
            raise ParameterError("users, items and clusters must be at least 1, positives at least 2")
        if 2 * self.positives > self.items:
            raise ParameterError(f"{self.items} items are too few for users with up to {2 * self.positives}")
        if not (0 <= self.affinity < np.inf and 0 <= self.skew < np.inf):
            raise ParameterError("affinity and skew must be finite and not negative")


def synthetic(config: SyntheticConfig | None = None) -> Interactions:
    """Return synthetic interactions with timestamps, each user's in order of time.

    The order of time is random and independent of the scores, so a user's last item is as typical as any other.
    """
    config = config if config is not None else SyntheticConfig()
    rng = np.random.default_rng([0x5EED, config.seed])
    scores = _scores(config, rng) + rng.gumbel(size=(config.users, config.items))
    counts = np.clip(
        np.rint(config.positives * rng.lognormal(-0.08, 0.4, config.users)),
        max(2, config.positives // 2),
        2 * config.positives,
    ).astype(np.int64)
    ranked = np.argsort(-scores, axis=1, kind="stable")
    taken = np.arange(config.items) < counts[:, None]
    users = np.nonzero(taken)[0]
    times = rng.permutation(users.size)
    order = np.lexsort((times, users))
    start = 1_700_000_000
    return Interactions.from_pairs(
        users,
        ranked[taken][order],
        n_users=config.users,
        n_items=config.items,
        timestamps=start + 60 * times[order].astype(np.int64),
    )


def _scores(config: SyntheticConfig, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return log popularity + affinity * inner product, float64 (users, items)."""
    centres = np.eye(config.clusters)
    user_points = _points_near(centres, config.users, rng)
    item_points = _points_near(centres, config.items, rng)
    popularity = -config.skew * np.log(1.0 + rng.permutation(config.items))
    # einsum without optimisation sums in a fixed order, so the result does not depend on machine and BLAS
    return np.asarray(popularity + config.affinity * np.einsum("uc,ic->ui", user_points, item_points, optimize=False))


def _points_near(centres: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return points of length 1, each near a randomly chosen centre, float64 (count, clusters)."""
    chosen = centres[rng.integers(0, len(centres), count)]
    points = chosen + 0.25 * rng.standard_normal(chosen.shape)
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))
