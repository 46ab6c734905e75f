"""Local training of item factors compared with finite differences and equations; Top-K's residual."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from client_sdk.history import History
from client_sdk.training import client_side
from client_sdk.training.base import distinct
from client_sdk.training.factors import RESIDUAL_ITEMS, RESIDUAL_ROWS, USER_FACTOR, TopKSide
from client_sdk.training.mf import MFConfig, draw_negatives, train_locally
from protocols.errors import ParameterError
from protocols.recipes.registry import recipe
from tests.support.measured import peak_of, slopes

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
@settings(max_examples=10, deadline=None)
def test_full_training_equals_the_steps_of_the_released_code(seed: int, batch: int, epochs: int) -> None:
    item_factors, user, positives = problem(seed)
    config = MFConfig(batch_size=batch, epochs=epochs, weight_decay=0.01)
    got = train_locally(None, item_factors, user, positives, config, np.random.default_rng(seed))
    q, p = reference(item_factors, user, positives, config, np.random.default_rng(seed))
    change = np.zeros((ITEMS, DIM))
    change[got.items] = got.values
    np.testing.assert_allclose(item_factors + change, q, atol=2e-4)
    np.testing.assert_allclose(got.user_factor, p, atol=2e-4)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_low_rank_training_of_full_rank_equals_full_training(seed: int) -> None:
    """With r = d and an orthonormal B (sqrt(d/r) = 1) the trained A B is FedMF's change."""
    item_factors, user, positives = problem(seed)
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((DIM, DIM)))[0].astype(np.float32)
    full = train_locally(None, item_factors, user, positives, MFConfig(), np.random.default_rng(seed))
    low = train_locally(rotation, item_factors, user, positives, MFConfig(), np.random.default_rng(seed))
    np.testing.assert_array_equal(full.items, low.items)
    np.testing.assert_allclose(low.values @ rotation, full.values, atol=2e-4)
    np.testing.assert_allclose(low.user_factor, full.user_factor, atol=2e-4)


def test_invalid_input_is_refused() -> None:
    item_factors, user, own = problem(0)
    wrong = (
        (None, user, own[:0], "nothing to train on"),
        (None, user, np.arange(ITEMS, dtype=np.int32), "the client has all 40 items"),
        (np.zeros((2, DIM + 1), np.float32), user, own, "does not match"),
        (np.zeros((2, DIM), np.float32), user[:-1], own, "do not match"),
        *((None, user, np.array([0, item], np.int32), "positives must lie in") for item in (-1, ITEMS)),
    )
    for projection, factor, positives, words in wrong:
        with pytest.raises(ParameterError, match=words):
            train_locally(projection, item_factors, factor, positives, MFConfig(), np.random.default_rng(0))
    with pytest.raises(ParameterError, match="epochs"):
        MFConfig(epochs=0)


LOW_RANK_ITEMS, LOW_RANK_DIM, RANK = 30, 8, 3
BIG_BATCH = MFConfig(learning_rate=1e-3, epochs=1, weight_decay=0.02, negatives=2, batch_size=10_000)


def low_rank_problem(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    item_factors = (0.5 * rng.standard_normal((LOW_RANK_ITEMS, LOW_RANK_DIM))).astype(np.float32)
    user = (0.5 * rng.standard_normal(LOW_RANK_DIM)).astype(np.float32)
    projection = (np.linalg.qr(rng.standard_normal((LOW_RANK_DIM, RANK)))[0].T * np.sqrt(LOW_RANK_DIM / RANK)).astype(
        np.float32
    )
    return item_factors, user, projection, rng.permutation(LOW_RANK_ITEMS)[:9].astype(np.int32)


def test_low_rank_step_equals_the_gradient_of_the_loss() -> None:
    """One batch: A = -lr sqrt(r/d) * (batch * d loss/dA at A = 0, divided by each item's count), and p's own step."""
    item_factors, user, projection, positives = low_rank_problem(0)
    got = train_locally(projection, item_factors, user, positives, BIG_BATCH, np.random.default_rng(0))
    negatives = draw_negatives(positives, LOW_RANK_ITEMS, 2 * positives.size, np.random.default_rng(0))
    samples = np.concatenate([positives, negatives])
    labels = np.arange(samples.size) < positives.size

    flat = np.concatenate([user.astype(np.float64), np.zeros(LOW_RANK_ITEMS * RANK)])

    def loss() -> float:
        p, low = flat[:LOW_RANK_DIM], flat[LOW_RANK_DIM:].reshape(LOW_RANK_ITEMS, RANK)
        rows = (item_factors + low @ projection)[samples]
        logits = rows @ p
        decay = BIG_BATCH.weight_decay * ((rows**2).sum() + samples.size * (p**2).sum())
        return float(((np.logaddexp(0, logits) - labels * logits).sum() + decay) / samples.size)

    gradient = slopes(loss, flat)
    counts = np.bincount(samples, minlength=LOW_RANK_ITEMS)[got.items]
    mean = gradient[LOW_RANK_DIM:].reshape(LOW_RANK_ITEMS, RANK)[got.items] * samples.size / counts[:, None]
    step = -BIG_BATCH.learning_rate * np.sqrt(RANK / LOW_RANK_DIM) * mean
    np.testing.assert_allclose(got.values, step, atol=1e-7)
    np.testing.assert_allclose(got.user_factor - user, -BIG_BATCH.learning_rate * gradient[:LOW_RANK_DIM], atol=1e-7)


def test_large_logits_do_not_overflow() -> None:
    item_factors, user, _, positives = low_rank_problem(7)
    got = train_locally(None, item_factors * 1000, user * 100, positives, MFConfig(epochs=1), np.random.default_rng(3))
    assert np.isfinite(got.values).all()
    assert np.isfinite(got.loss)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(2, 60))
def test_draws_equal_those_from_the_pool(seed: int, n_items: int) -> None:
    rng = np.random.default_rng(seed)
    positives = rng.permutation(n_items)[: rng.integers(0, n_items - 1)].astype(np.int32)
    pool = np.setdiff1d(np.arange(n_items), positives)
    drawn = draw_negatives(positives, n_items, 30, np.random.default_rng(seed))
    np.testing.assert_array_equal(drawn, pool[np.random.default_rng(seed).integers(0, pool.size, 30)])
    assert drawn.dtype == np.int32


def test_drawing_does_not_allocate_a_list_of_all_items() -> None:
    positives = np.arange(0, 5000, 5, dtype=np.int32)
    assert peak_of(lambda: draw_negatives(positives, 4_000_000, 1000, np.random.default_rng(0)))[1] < 100_000


@settings(max_examples=25)
@given(
    arrays(np.dtype("int32"), st.integers(0, 40), elements=st.integers(0, 50)),
    st.sampled_from([51, 8 * 40, 10_000]),
)
def test_values_places_and_counts_are_those_of_unique(values: np.ndarray, bound: int) -> None:
    expected = np.unique(values, return_inverse=True, return_counts=True)
    found = distinct(values, bound)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == np.intp
        assert ours.tolist() == theirs.tolist()


TOPK_ITEMS, TOPK_DIM, TASK_SEED = 40, 6, bytes(32)
MODES: dict[str, dict[str, Any]] = {
    "aggregate": {},
    "vote": {"support_from": "vote", "reveal_touched": True},
    "own": {"support": "own", "reveal_indices": True},
}


def side_of(mode: str, **changes: Any) -> TopKSide:
    parameters = {"items": TOPK_ITEMS, "dim": TOPK_DIM, "clip": 0.05, "share": 0.1, **MODES[mode], **changes}
    return client_side(recipe("topk", parameters), MFConfig(epochs=1))


def dense(items: np.ndarray, rows: np.ndarray) -> np.ndarray:
    full = np.zeros((TOPK_ITEMS, TOPK_DIM))
    full[items] = rows
    return full


def sent(side: TopKSide, state: Any, blocks: Any) -> np.ndarray:
    full = np.zeros(TOPK_ITEMS * TOPK_DIM)
    if side.recipe.parameters.support == "own":
        full[blocks[0].astype(int)] = blocks[1].reshape(-1, 2)[:, 0]
    else:
        full[state.support] = blocks[0][: side.recipe.kept]
    return full.reshape(TOPK_ITEMS, TOPK_DIM)


@pytest.mark.parametrize("mode", sorted(MODES))
@given(seed=st.integers(0, 10_000))
@settings(max_examples=4, deadline=None)
def test_with_error_feedback_sent_and_residual_add_up_to_the_change(mode: str, seed: int) -> None:
    """Over several rounds, the whole change has been sent or is in the residual, including clipped parts."""
    side, rng = side_of(mode, error_feedback=True, clip=0.01), np.random.default_rng(seed)
    positives = rng.permutation(TOPK_ITEMS)[:7].astype(np.int32)
    state, client_state = side.recipe.initial_state(TASK_SEED), side.initial_client_state(rng)
    trained, delivered, clipped = np.zeros((TOPK_ITEMS, TOPK_DIM)), np.zeros((TOPK_ITEMS, TOPK_DIM)), 0
    for number in range(1, 5):
        spec = side.recipe.round_spec(TASK_SEED, number)
        own_rng = np.random.default_rng([seed, number])
        update = train_locally(None, state.item_factors, client_state[USER_FACTOR], positives, side.training, own_rng)
        trained[update.items] += update.values
        local = side.contribute(
            spec, "c_1", state, History(positives), client_state, np.random.default_rng([seed, number])
        )
        delivered += sent(side, state, local.blocks)
        client_state, clipped = local.client_state, clipped + local.contribution.clipped
        np.testing.assert_array_equal(client_state[USER_FACTOR], update.user_factor)
        owed = dense(client_state[RESIDUAL_ITEMS], client_state[RESIDUAL_ROWS])
        np.testing.assert_allclose(delivered + owed, trained, atol=1e-5)
    assert clipped > 0
    assert np.abs(owed).max() > 0
    assert (np.diff(client_state[RESIDUAL_ITEMS]) > 0).all()
    assert client_state[RESIDUAL_ROWS].any(axis=1).all()
