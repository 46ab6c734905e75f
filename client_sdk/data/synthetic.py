"""Made-up implicit feedback with taste in it: what the demo trains on, and what tests can rely on.

Items and users live near a few cluster centres. User u's chance to take item i is a softmax of

    log popularity_i + affinity * (x_u . y_i),     popularity_i ~ 1 / rank^skew   (Zipf)

and a user's items are drawn from it without replacement (Gumbel top-k). The inner product is low-rank, so matrix
factorisation can find it, and it differs from user to user, so popularity alone cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_sdk.data.interactions import Interactions
from protocols.errors import ParameterError

__all__ = ["SyntheticConfig", "synthetic"]


@dataclass(frozen=True)
class SyntheticConfig:
    """What to make. Equal configurations give equal data, byte for byte."""

    users: int = 400
    items: int = 500
    positives: int = 30
    """Mean interactions a user; single users have between half of it and twice it."""
    clusters: int = 5
    """Groups of taste; also the rank of the affinity."""
    affinity: float = 8.0
    """Weight of taste against popularity; 0 leaves popularity alone."""
    skew: float = 1.2
    """Zipf exponent of popularity; 0 makes all items equally popular."""
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.users, self.items, self.clusters) < 1 or self.positives < 2:
            raise ParameterError("users, items and clusters must be at least 1, positives at least 2")
        if 2 * self.positives > self.items:
            raise ParameterError(f"{self.items} items are too few for users with up to {2 * self.positives}")
        if not (0 <= self.affinity < np.inf and 0 <= self.skew < np.inf):
            raise ParameterError("affinity and skew must be finite and not negative")


def synthetic(config: SyntheticConfig | None = None) -> Interactions:
    """Interactions of `config.users` users with `config.items` items, with timestamps in a random order of taking.

    The last item in time is as typical of its user as any other: the order is independent of the scores.
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
    order = np.lexsort((times, users))  # a user's interactions stand in order of time
    start = 1_700_000_000
    return Interactions.from_pairs(
        users,
        ranked[taken][order],
        n_users=config.users,
        n_items=config.items,
        timestamps=start + 60 * times[order].astype(np.int64),
    )


def _scores(config: SyntheticConfig, rng: np.random.Generator) -> NDArray[np.float64]:
    """log popularity + affinity, float64 (users, items)."""
    centres = np.eye(config.clusters)
    tastes = _near(centres, config.users, rng)
    kinds = _near(centres, config.items, rng)
    popularity = -config.skew * np.log(1.0 + rng.permutation(config.items))
    # einsum without optimisation sums in a fixed order: the same bytes on every machine and BLAS
    return np.asarray(popularity + config.affinity * np.einsum("uc,ic->ui", tastes, kinds, optimize=False))


def _near(centres: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Points near a random centre each, of length 1, float64 (count, clusters)."""
    chosen = centres[rng.integers(0, len(centres), count)]
    points = chosen + 0.25 * rng.standard_normal(chosen.shape)
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))
