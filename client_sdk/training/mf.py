"""Local training of matrix factorisation on one client, as the released CoLR code does it.

Model: logit = p . q_i, binary cross entropy on labels 1 (positives) and 0 (drawn negatives), L2 on both factors. The
released code averages the loss over the batch, multiplies the learning rate by the batch size and divides an embedding
row's gradient by how often the row is in the batch. What remains, and what stands here, is

    q_i <- q_i - lr * mean over i's samples in the batch of ((sigmoid(p.q_i) - y) p + 2 wd q_i)
    p   <- p   - lr * mean over the batch of                ((sigmoid(p.q_i) - y) q_i + 2 wd p)

plain SGD, no momentum. Only the rows a client touches are copied, never the whole item matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.base import TrainingConfig
from client_sdk.training.negatives import draw_negatives
from protocols.errors import ParameterError

__all__ = [
    "LocalUpdate",
    "MFConfig",
    "Samples",
    "Step",
    "check_shapes",
    "draw_samples",
    "init_user_factor",
    "steps",
    "train_full",
]


@dataclass(frozen=True)
class MFConfig(TrainingConfig):
    """How a client trains; the defaults are the released CoLR code's for MovieLens-1M."""

    learning_rate: float = 0.5
    """Step size after the batch-size factor (see the module's equations)."""
    epochs: int = 2
    """Passes over the client's samples in one round."""
    batch_size: int = 256
    """Samples a step."""
    weight_decay: float = 5e-4
    """L2 weight on both factors."""
    negatives: int = 4
    """Negatives drawn for each positive, anew at each participation."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "negatives"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not (self.learning_rate > 0 and self.weight_decay >= 0):
            raise ParameterError("learning_rate must be positive and weight_decay not negative")


@dataclass(frozen=True)
class LocalUpdate:
    """What one round of local training gives.

    user_factor: float32 (d,), the client's own, never sent. items: int32 (k,), unique, ascending, every item that
    took part. values: float32 (k, d) change of the rows, or (k, r) rows of A. loss: mean BCE of the last epoch's
    batches before each step. samples: positives and negatives trained on.
    """

    user_factor: NDArray[np.float32]
    items: NDArray[np.int32]
    values: NDArray[np.float32]
    loss: float
    samples: int


@dataclass(frozen=True)
class Samples:
    """A client's samples of one round: unique `items` (k,), each sample's `rows` into them and its 0/1 `labels`."""

    items: NDArray[np.int32]
    rows: NDArray[np.intp]
    labels: NDArray[np.float32]


@dataclass(frozen=True)
class Step:
    """One batch: touched local `rows` (t,), the mean residual of each (t,), and the step that moves p."""

    rows: NDArray[np.intp]
    residuals: NDArray[np.float32]
    user_step: NDArray[np.float32]
    loss: float


def check_shapes(item_factors: NDArray[np.float32], user_factor: NDArray[np.float32], n_items: int) -> None:
    """Raise `ParameterError` unless item_factors is (n_items, d) and user_factor (d,)."""
    if item_factors.ndim != 2 or item_factors.shape != (n_items, *user_factor.shape):
        raise ParameterError(
            f"item factors of shape {item_factors.shape} do not fit {n_items} items and a user factor of shape "
            f"{user_factor.shape}"
        )


def init_user_factor(dim: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """A fresh user factor, N(0, 1/dim), float32 (dim,)."""
    return np.asarray(rng.standard_normal(dim) / np.sqrt(dim), dtype=np.float32)


def draw_samples(
    positives: NDArray[np.int32],
    n_items: int,
    negatives: int,
    rng: np.random.Generator,
    excluded: NDArray[np.int32] | None = None,
) -> Samples:
    """Every positive once with label 1, and `negatives` drawn items for each with label 0.

    Raises `ParameterError` without positives, for one that is not in 0..n_items-1, and when no negative is left.
    """
    if not positives.size:
        raise ParameterError("a client without interactions has nothing to train on")
    if not (positives.min() >= 0 and positives.max() < n_items):
        raise ParameterError(f"positives must lie in 0..{n_items - 1}, got {positives.min()}..{positives.max()}")
    drawn = draw_negatives(positives, n_items, positives.size * negatives, rng, excluded)
    items, rows = np.unique(np.concatenate([positives, drawn]), return_inverse=True)
    labels = np.zeros(rows.size, dtype=np.float32)
    labels[: positives.size] = 1.0
    return Samples(items.astype(np.int32), rows, labels)


def steps(
    samples: Samples,
    item_rows: NDArray[np.float32],
    user_factor: NDArray[np.float32],
    config: MFConfig,
    rng: np.random.Generator,
) -> Iterator[tuple[int, Step]]:
    """(epoch, step) for every shuffled batch; the caller moves `item_rows` (k, d) and `user_factor` in place."""
    for epoch in range(config.epochs):
        order = rng.permutation(samples.rows.size)
        for start in range(0, order.size, config.batch_size):
            batch = order[start : start + config.batch_size]
            yield epoch, _step(samples.rows[batch], samples.labels[batch], item_rows, user_factor, config)


def _step(
    rows: NDArray[np.intp],
    labels: NDArray[np.float32],
    item_rows: NDArray[np.float32],
    user_factor: NDArray[np.float32],
    config: MFConfig,
) -> Step:
    factors = item_rows[rows]
    logits = factors @ user_factor
    residuals = (0.5 + 0.5 * np.tanh(0.5 * logits) - labels).astype(np.float32)  # sigmoid(x) = (1 + tanh(x/2)) / 2
    counts = np.bincount(rows, minlength=len(item_rows))
    touched = np.flatnonzero(counts)
    means = np.bincount(rows, weights=residuals, minlength=len(item_rows))[touched] / counts[touched]
    gradient = residuals @ factors / rows.size + 2 * config.weight_decay * user_factor
    loss = float(np.mean(np.logaddexp(0.0, logits) - labels * logits))
    return Step(touched, means.astype(np.float32), (config.learning_rate * gradient).astype(np.float32), loss)


def train_full(
    item_factors: NDArray[np.float32],
    user_factor: NDArray[np.float32],
    positives: NDArray[np.int32],
    n_items: int,
    config: MFConfig,
    rng: np.random.Generator,
    excluded: NDArray[np.int32] | None = None,
) -> LocalUpdate:
    """FedMF: train the user factor and every touched item row; the update holds the rows' change (k, d).

    item_factors: float32 (n_items, d), left unchanged. Raises `ParameterError` without positives or negatives,
    and when the shapes do not fit each other.
    """
    check_shapes(item_factors, user_factor, n_items)
    samples = draw_samples(positives, n_items, config.negatives, rng, excluded)
    start = item_factors[samples.items]
    rows, user = start.copy(), user_factor.copy()
    losses: dict[int, list[float]] = {}
    for epoch, step in steps(samples, rows, user, config, rng):
        moved = rows[step.rows]
        rows[step.rows] -= config.learning_rate * (
            step.residuals[:, None] * user + np.float32(2 * config.weight_decay) * moved
        )
        user -= step.user_step
        losses.setdefault(epoch, []).append(step.loss)
    loss = float(np.mean(losses[config.epochs - 1]))
    return LocalUpdate(user, samples.items, rows - start, loss, samples.rows.size)
