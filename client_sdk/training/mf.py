"""Local training of matrix factorisation on one client, with the steps of the released CoLR code.

Model: logit = p . q_i, binary cross entropy on labels 1 (positives) and 0 (drawn negatives), L2 on both factors. The
released code averages the loss over the batch, multiplies the learning rate by the batch size and divides an embedding
row's gradient by how often the row is in the batch. The resulting steps are

    q_i <- q_i - lr * mean over i's samples in the batch of ((sigmoid(p.q_i) - y) p + 2 wd q_i)
    p   <- p   - lr * mean over the batch of                ((sigmoid(p.q_i) - y) q_i + 2 wd p)

plain SGD without momentum. Only the rows that the client uses are copied, not the whole item matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_sdk.training.base import Rng, TrainingConfig, distinct
from protocols.errors import ParameterError
from protocols.recipes.base import Update
from protocols.recipes.rows import NEGATIVES


@dataclass(frozen=True)
class MFConfig(TrainingConfig):
    """How a client trains. The defaults are those of the released CoLR code for MovieLens-1M."""

    learning_rate: float = 0.5
    """Step size lr, which includes the factor of the batch size (see the equations of the module)."""
    epochs: int = 2
    """Passes over the client's samples in one round."""
    batch_size: int = 256
    """Samples in one step."""
    weight_decay: float = 5e-4
    """L2 weight wd on both factors."""
    negatives: int = NEGATIVES
    """Negatives drawn for each positive, anew in each round that the client takes part in."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight_decay >= 0:
            raise ParameterError(f"weight_decay must not be negative, got {self.weight_decay}")


# --- draws of training negatives from all items outside the user's TRAINING items ------------------------------------
# The held-out item may be drawn, because a device cannot know which of its future items an evaluation holds out.
# Several published code bases never draw it. The model then learns which items are never negatives, and this alone can
# give an HR@10 close to 1; `docs/results.md` has the figures.


NegativeSampler = Callable[[NDArray[np.int32], int, int, Rng], NDArray[np.int32]]
"""A function like `draw_negatives`: (positives, n_items, count, rng) -> items, int32 (count,)."""


def draw_negatives(positives: NDArray[np.int32], n_items: int, count: int, rng: Rng) -> NDArray[np.int32]:
    """Return `count` items, int32 (count,), drawn independently and uniformly from those outside `positives`.

    Needs memory for the draws and the positives only, because a small device may have no memory for a list of all
    items. Raises `ParameterError` if `positives` are all items.
    """
    taken = np.unique(positives).astype(np.int64)
    if taken.size >= n_items:
        raise ParameterError(f"no item is left as a negative: the client has all {n_items} items")
    drawn = rng.integers(0, n_items - taken.size, count)
    # the r-th item outside `taken` is r plus the number of taken items before it
    return (drawn + np.searchsorted(taken - np.arange(taken.size), drawn, side="right")).astype(np.int32)


# --- one client's samples of a round, and the steps on their batches --------------------------------------------------


@dataclass(frozen=True)
class LocalUpdate(Update):
    """The result of one round of local training: changes of the rows, or rows of A, and what stays on the device.

    items: of the samples, ascending.
    """

    user_factor: NDArray[np.float32]
    """float32 (d,), never sent."""
    loss: float
    """Mean cross entropy of the batches of the last epoch, each before its step."""
    samples: int
    """Number of positives and negatives."""


@dataclass(frozen=True)
class Samples:
    """A client's samples in one round."""

    items: NDArray[np.int32]
    """int32 (k,), distinct, ascending."""
    rows: NDArray[np.intp]
    """intp (n,), index of each sample's item in `items`."""
    labels: NDArray[np.float32]
    """float32 (n,), 1 for a positive and 0 for a negative."""


def check_shapes(item_factors: NDArray[np.float32], user_factor: NDArray[np.float32], n_items: int) -> None:
    """Raise `ParameterError` unless item_factors is (n_items, d) and user_factor (d,)."""
    if item_factors.ndim != 2 or item_factors.shape != (n_items, *user_factor.shape):
        raise ParameterError(
            f"item factors of shape {item_factors.shape} do not match {n_items} items and a user factor of shape "
            f"{user_factor.shape}"
        )


def init_user_factor(dim: int, rng: Rng) -> NDArray[np.float32]:
    """Return a random user factor from N(0, 1/dim), float32 (dim,)."""
    return np.asarray(rng.standard_normal(dim) / np.sqrt(dim), dtype=np.float32)


def draw_samples(
    positives: NDArray[np.int32], n_items: int, negatives: int, rng: Rng, draw: NegativeSampler = draw_negatives
) -> Samples:
    """Return the samples of a round: each positive with label 1, and `negatives` drawn items for each with label 0.

    Raises `ParameterError` without positives, for a positive outside 0..n_items-1, and if there is no negative.
    """
    if not positives.size:
        raise ParameterError("a client without interactions has nothing to train on")
    if not (positives.min() >= 0 and positives.max() < n_items):
        raise ParameterError(f"positives must lie in 0..{n_items - 1}, got {positives.min()}..{positives.max()}")
    drawn = draw(positives, n_items, positives.size * negatives, rng)
    items, rows, _ = distinct(np.concatenate([positives, drawn]), n_items)
    labels = np.zeros(rows.size, dtype=np.float32)
    labels[: positives.size] = 1.0
    return Samples(items.astype(np.int32), rows, labels)


class _Batch(NamedTuple):
    """The samples of a step, and which distinct rows they have."""

    rows: NDArray[np.intp]
    labels: NDArray[np.float32]
    fixed: NDArray[np.float32] | None
    """Of each sample, (n,); fixed is the offset of its logit."""
    used: NDArray[np.intp]
    """The distinct rows (t,), ascending."""
    places: NDArray[np.intp]
    """Index in `used` of each sample's row."""
    counts: NDArray[np.intp]
    """Samples of each distinct row (t,)."""


def _batches(samples: Samples, offsets: NDArray[np.float32] | None, size: int, rng: Rng) -> Iterator[_Batch]:
    """Yield the shuffled batches of an epoch. offsets: added to the logit of each item of `samples`, float32 (k,).

    The distinct rows of all batches are found in one sort, because a batch is too short for many calls.
    """
    order = rng.permutation(samples.rows.size)
    rows, labels = samples.rows[order], samples.labels[order]
    fixed = None if offsets is None else offsets[rows]
    n_rows, batch_of, batches = samples.items.size, np.arange(rows.size) // size, -(-rows.size // size)
    keys, places, counts = distinct(batch_of * n_rows + rows, batches * n_rows)
    edges = keys.searchsorted(np.arange(batches + 1) * n_rows)
    used, places = keys % n_rows, places - edges[batch_of]
    for start, (first, last) in zip(range(0, rows.size, size), pairwise(edges.tolist()), strict=True):
        own, distinct_own = slice(start, start + size), slice(first, last)
        own_fixed = None if fixed is None else fixed[own]
        yield _Batch(rows[own], labels[own], own_fixed, used[distinct_own], places[own], counts[distinct_own])


def train_locally(
    projection: NDArray[np.float32] | None,
    item_factors: NDArray[np.float32],
    user_factor: NDArray[np.float32],
    positives: NDArray[np.int32],
    config: MFConfig,
    rng: Rng,
    offsets: NDArray[np.float32] | None = None,
    draw: NegativeSampler = draw_negatives,
) -> LocalUpdate:
    """Train the user factor and item rows on `positives`, int32 (k,); no argument is changed.

    projection: None to train the rows of the samples (FedMF): the update's values are their changes (k, d). Or B,
    float32 (r, d), for a low-rank change of frozen rows (CoLR; for SCoLR the rows of B for the client's columns, so r
    is the client's own rank): the effective row of item i is q_i + A_i B, A begins at zero, and the update's values are
    the rows of A (k, r) (Nguyen et al., WWW 2024, eq. 5). The gradient of A is G B^T; the released code scales it by
    sqrt(r/d) in a backward hook that the paper does not mention. item_factors: float32 (items, d). user_factor: float32
    (d,). offsets: added to the items' logits, float32 (items,), None for zeros. draw: draws the negatives. Raises
    `ParameterError` without positives or negatives, and for wrong shapes.
    """
    n_items, dim = item_factors.shape
    if projection is not None and projection.shape[1] != dim:
        raise ParameterError(f"a projection to {projection.shape[1]} values does not match factors of {dim}")
    check_shapes(item_factors, user_factor, n_items)
    samples = draw_samples(positives, n_items, config.negatives, rng, draw)
    start = item_factors[samples.items]
    rows, user = start.copy(), user_factor.copy()
    rank = dim if projection is None else projection.shape[0]
    low = np.zeros((0 if projection is None else samples.items.size, rank), dtype=np.float32)
    rate, decay = np.float32(config.learning_rate * np.sqrt(rank / dim)), np.float32(2 * config.weight_decay)
    losses: list[float] = []
    fixed = None if offsets is None else offsets[samples.items]
    for epoch in range(config.epochs):
        for batch in _batches(samples, fixed, config.batch_size, rng):
            factors = rows.take(batch.rows, axis=0)
            logits = factors @ user
            if batch.fixed is not None:
                logits += batch.fixed
            residuals = np.tanh(0.5 * logits)  # sigmoid(x) = (1 + tanh(x/2)) / 2
            residuals *= 0.5
            residuals += 0.5
            residuals -= batch.labels
            if epoch == config.epochs - 1:
                losses.append(float((np.logaddexp(0.0, logits) - batch.labels * logits).sum()) / len(logits))
            means = (np.bincount(batch.places, weights=residuals) / batch.counts).astype(np.float32)
            before = rows.take(batch.used, axis=0)
            if projection is None:
                change = means[:, None] * user
                change += decay * before
                change *= -rate
            else:
                own = means[:, None] * (projection @ user)
                own += decay * (before @ projection.T)
                own *= -rate
                low[batch.used] += own
                change = own @ projection
            before += change
            rows[batch.used] = before
            gradient = residuals @ factors / batch.rows.size + 2 * config.weight_decay * user
            user -= config.learning_rate * gradient
    values = rows - start if projection is None else low
    return LocalUpdate(samples.items, values, user, float(np.mean(losses)), samples.rows.size)
