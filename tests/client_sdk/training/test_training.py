"""Local training compared with finite differences and with the equations evaluated sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.training.mf import MFConfig, draw_negatives, train_full, train_locally, train_lowrank
from protocols.errors import ParameterError
from protocols.recipes.registry import recipe

ITEMS, DIM = 40, 6


def problem(seed: int, positives: int = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    item_factors = rng.standard_normal((ITEMS, DIM)).astype(np.float32) * 0.5
    user = rng.standard_normal(DIM).astype(np.float32) * 0.5
    return item_factors, user, rng.permutation(ITEMS)[:positives].astype(np.int32)


def reference(
    item_factors: np.ndarray, user: np.ndarray, positives: np.ndarray, config: MFConfig, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The steps of the released code, one sample at a time, in float64, with the same draws."""
    q, p = item_factors.astype(np.float64), user.astype(np.float64)
    items = np.concatenate([positives, draw_negatives(positives, ITEMS, positives.size * config.negatives, rng)])
    labels = np.arange(items.size) < positives.size
    for _ in range(config.epochs):
        order = rng.permutation(items.size)
        for start in range(0, order.size, config.batch_size):
            batch = order[start : start + config.batch_size]
            row_gradient, counts, user_gradient = np.zeros_like(q), np.zeros(ITEMS), np.zeros_like(p)
            for sample in batch:
                i = items[sample]
                residual = 1 / (1 + np.exp(-q[i] @ p)) - labels[sample]
                row_gradient[i] += residual * p + 2 * config.weight_decay * q[i]
                user_gradient += residual * q[i] + 2 * config.weight_decay * p
                counts[i] += 1
            q -= config.learning_rate * row_gradient / np.maximum(counts, 1)[:, None]
            p -= config.learning_rate * user_gradient / batch.size
    return q, p


@given(seed=st.integers(0, 10_000), batch=st.sampled_from([1, 5, 256]), epochs=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_full_training_equals_the_steps_of_the_released_code(seed: int, batch: int, epochs: int) -> None:
    item_factors, user, positives = problem(seed)
    config = MFConfig(batch_size=batch, epochs=epochs, weight_decay=0.01)
    got = train_full(item_factors, user, positives, ITEMS, config, np.random.default_rng(seed))
    q, p = reference(item_factors, user, positives, config, np.random.default_rng(seed))
    change = np.zeros((ITEMS, DIM))
    change[got.items] = got.values
    np.testing.assert_allclose(item_factors + change, q, atol=2e-4)
    np.testing.assert_allclose(got.user_factor, p, atol=2e-4)


def test_step_equals_the_gradient_of_the_loss() -> None:
    """One batch of distinct items: the step equals lr * batch * the batch-mean loss's finite differences."""
    item_factors, user, _ = problem(3)
    positives = np.arange(ITEMS - 1, dtype=np.int32)
    config = MFConfig(learning_rate=1e-3, epochs=1, weight_decay=0.02, negatives=1, batch_size=1000)
    seed = 5
    got = train_full(item_factors, user, positives, ITEMS, config, np.random.default_rng(seed))
    negatives = draw_negatives(positives, ITEMS, positives.size, np.random.default_rng(seed))
    samples = np.concatenate([positives, negatives])
    labels = np.arange(samples.size) < positives.size

    def loss(flat: np.ndarray) -> float:
        p, q = flat[:DIM], flat[DIM:].reshape(ITEMS, DIM)
        logits = q[samples] @ p
        bce = np.logaddexp(0, logits) - labels * logits
        decay = config.weight_decay * ((q[samples] ** 2).sum() + samples.size * (p**2).sum())
        return float((bce.sum() + decay) / samples.size)

    flat = np.concatenate([user, item_factors.ravel()]).astype(np.float64)
    nudge = 1e-6 * np.eye(flat.size)
    gradient = np.array([(loss(flat + step) - loss(flat - step)) / 2e-6 for step in nudge])
    counts = np.bincount(samples, minlength=ITEMS)
    rows = gradient[DIM:].reshape(ITEMS, DIM)[got.items] * samples.size / counts[got.items][:, None]
    np.testing.assert_allclose(got.values, -config.learning_rate * rows, atol=2e-6)
    np.testing.assert_allclose(got.user_factor - user, -config.learning_rate * gradient[:DIM], atol=2e-6)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_low_rank_training_of_full_rank_equals_full_training(seed: int) -> None:
    """With r = d and an orthonormal B (sqrt(d/r) = 1) the trained A B is FedMF's change."""
    item_factors, user, positives = problem(seed)
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((DIM, DIM)))[0].astype(np.float32)
    full = train_full(item_factors, user, positives, ITEMS, MFConfig(), np.random.default_rng(seed))
    low = train_lowrank(item_factors, user, rotation, positives, ITEMS, MFConfig(), np.random.default_rng(seed))
    np.testing.assert_array_equal(full.items, low.items)
    np.testing.assert_allclose(low.values @ rotation, full.values, atol=2e-4)
    np.testing.assert_allclose(low.user_factor, full.user_factor, atol=2e-4)


@pytest.mark.parametrize(("name", "extra"), [("fedmf", {}), ("colr", {"rank": 2}), ("scolr", {"rank": 4})])
def test_training_does_not_change_its_arguments_and_matches_the_recipe(name: str, extra: dict[str, int]) -> None:
    chosen = recipe(name, {"items": ITEMS, "dim": DIM, **extra})
    state, spec = chosen.initial_state(bytes(32)), chosen.round_spec(bytes(32), 1)
    _, user, positives = problem(1)
    before, user_before = state.item_factors.copy(), user.copy()
    rng = np.random.default_rng(0)
    projection = chosen.projection(spec, "c_1")
    update = train_locally(projection, state.item_factors, user, positives, MFConfig(), rng)
    np.testing.assert_array_equal(state.item_factors, before)
    np.testing.assert_array_equal(user, user_before)
    assert update.values.shape == (update.items.size, DIM if projection is None else projection.shape[0])
    assert set(positives) <= set(update.items.tolist())
    assert update.samples == 5 * positives.size


def test_training_lowers_the_loss() -> None:
    item_factors, user, positives = problem(9, positives=12)
    short = train_full(item_factors, user, positives, ITEMS, MFConfig(epochs=1), np.random.default_rng(1))
    long = train_full(item_factors, user, positives, ITEMS, MFConfig(epochs=20), np.random.default_rng(1))
    assert long.loss < 0.7 * short.loss


@given(seed=st.integers(0, 1000), held=st.integers(1, ITEMS - 1))
@settings(deadline=None)
def test_negatives_are_drawn_from_all_items_outside_the_training_items(seed: int, held: int) -> None:
    rng = np.random.default_rng(seed)
    positives = rng.permutation(ITEMS)[:held].astype(np.int32)
    drawn = draw_negatives(positives, ITEMS, 2000, rng)
    assert drawn.dtype == np.int32
    assert not np.isin(drawn, positives).any()
    if ITEMS - held <= 20:
        assert set(drawn.tolist()) == set(range(ITEMS)) - set(positives.tolist())


def test_invalid_input_is_refused() -> None:
    item_factors, user, positives = problem(0)
    rng = np.random.default_rng(0)
    with pytest.raises(ParameterError, match="nothing to train on"):
        train_full(item_factors, user, positives[:0], ITEMS, MFConfig(), rng)
    with pytest.raises(ParameterError, match="the client has all 40 items"):
        train_full(item_factors, user, np.arange(ITEMS, dtype=np.int32), ITEMS, MFConfig(), rng)
    with pytest.raises(ParameterError, match="does not match"):
        train_lowrank(item_factors, user, np.zeros((2, DIM + 1), np.float32), positives, ITEMS, MFConfig(), rng)
    with pytest.raises(ParameterError, match="epochs"):
        MFConfig(epochs=0)
