"""Low-rank training: steps equal the gradient of the loss in A and p; columns of B; shapes and large logits."""

from __future__ import annotations

import numpy as np
import pytest

from client_sdk.training.mf import MFConfig, draw_negatives, train_full, train_lowrank
from protocols.errors import ParameterError

ITEMS, DIM, RANK = 30, 8, 3
BIG_BATCH = MFConfig(learning_rate=1e-3, epochs=1, weight_decay=0.02, negatives=2, batch_size=10_000)


def problem(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    item_factors = (0.5 * rng.standard_normal((ITEMS, DIM))).astype(np.float32)
    user = (0.5 * rng.standard_normal(DIM)).astype(np.float32)
    projection = (np.linalg.qr(rng.standard_normal((DIM, RANK)))[0].T * np.sqrt(DIM / RANK)).astype(np.float32)
    return item_factors, user, projection, rng.permutation(ITEMS)[:9].astype(np.int32)


@pytest.mark.parametrize("seed", range(4))
def test_low_rank_step_equals_the_gradient_of_the_loss(seed: int) -> None:
    """One batch: A = -lr sqrt(r/d) * (batch * d loss/dA at A = 0, divided by each item's count), and p's own step."""
    item_factors, user, projection, positives = problem(seed)
    got = train_lowrank(item_factors, user, projection, positives, ITEMS, BIG_BATCH, np.random.default_rng(seed))
    negatives = draw_negatives(positives, ITEMS, 2 * positives.size, np.random.default_rng(seed))
    samples = np.concatenate([positives, negatives])
    labels = np.arange(samples.size) < positives.size

    def loss(flat: np.ndarray) -> float:
        p, low = flat[:DIM], flat[DIM:].reshape(ITEMS, RANK)
        rows = (item_factors + low @ projection)[samples]
        logits = rows @ p
        decay = BIG_BATCH.weight_decay * ((rows**2).sum() + samples.size * (p**2).sum())
        return float(((np.logaddexp(0, logits) - labels * logits).sum() + decay) / samples.size)

    flat = np.concatenate([user.astype(np.float64), np.zeros(ITEMS * RANK)])
    nudges = 1e-6 * np.eye(flat.size)
    gradient = np.array([(loss(flat + nudge) - loss(flat - nudge)) / 2e-6 for nudge in nudges])
    counts = np.bincount(samples, minlength=ITEMS)[got.items]
    mean = gradient[DIM:].reshape(ITEMS, RANK)[got.items] * samples.size / counts[:, None]
    step = -BIG_BATCH.learning_rate * np.sqrt(RANK / DIM) * mean
    np.testing.assert_allclose(got.values, step, atol=1e-7)
    np.testing.assert_allclose(got.user_factor - user, -BIG_BATCH.learning_rate * gradient[:DIM], atol=1e-7)


def test_client_trains_only_its_own_columns() -> None:
    """SCoLR: training with B[columns] is low-rank training with that B, of the client's own rank."""
    item_factors, user, projection, positives = problem(5)
    got = train_lowrank(item_factors, user, projection[[2]], positives, ITEMS, MFConfig(), np.random.default_rng(1))
    assert got.values.shape == (got.items.size, 1)
    assert got.values.dtype == got.user_factor.dtype == np.float32
    assert got.items.dtype == np.int32
    assert np.all(np.diff(got.items) > 0)
    assert np.count_nonzero(got.values) == got.items.size


def test_only_rows_of_samples_are_read() -> None:
    """Rows of items that a client neither has nor draws can have any value."""
    item_factors, user, projection, positives = problem(6)
    few = MFConfig(negatives=1)
    clean = train_full(item_factors, user, positives, ITEMS, few, np.random.default_rng(2))
    spoiled = item_factors.copy()
    spoiled[np.setdiff1d(np.arange(ITEMS), clean.items)] = np.nan
    again = train_full(spoiled, user, positives, ITEMS, few, np.random.default_rng(2))
    np.testing.assert_array_equal(again.values, clean.values)
    low = train_lowrank(spoiled, user, projection, positives, ITEMS, few, np.random.default_rng(2))
    assert np.isfinite(low.values).all()


def test_large_logits_do_not_overflow() -> None:
    item_factors, user, _, positives = problem(7)
    got = train_full(item_factors * 1000, user * 100, positives, ITEMS, MFConfig(epochs=1), np.random.default_rng(3))
    assert np.isfinite(got.values).all()
    assert np.isfinite(got.loss)


def test_wrong_shapes_are_refused() -> None:
    item_factors, user, projection, positives = problem(8)
    rng = np.random.default_rng(0)
    with pytest.raises(ParameterError, match="do not match 31 items"):
        train_full(item_factors, user, positives, ITEMS + 1, MFConfig(), rng)
    with pytest.raises(ParameterError, match="do not match"):
        train_lowrank(item_factors, user[:-1], projection, positives, ITEMS, MFConfig(), rng)
    for wrong in (-1, ITEMS):
        with pytest.raises(ParameterError, match="positives must lie in"):
            train_full(item_factors, user, np.array([0, wrong], np.int32), ITEMS, MFConfig(), rng)
