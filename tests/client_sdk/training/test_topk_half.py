"""The client side of Top-K: what is sent and what is kept add up to what was trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_sdk.errors import LocalFileError
from client_sdk.history import History
from client_sdk.store.client_store import ClientStore
from client_sdk.store.stores import MemoryStore
from client_sdk.training import client_half
from client_sdk.training.factors import RESIDUAL_ITEMS, RESIDUAL_ROWS, USER_FACTOR, TopKHalf
from client_sdk.training.mf import MFConfig, train_full
from protocols.recipes.registry import recipe

ITEMS, DIM, TASK_SEED = 40, 6, bytes(32)
MODES: dict[str, dict[str, Any]] = {
    "aggregate": {},
    "vote": {"support_from": "vote", "reveal_touched": True},
    "own": {"support": "own", "reveal_indices": True},
}


def half_of(mode: str, **changes: Any) -> TopKHalf:
    parameters = {"items": ITEMS, "dim": DIM, "clip": 0.05, "share": 0.1, **MODES[mode], **changes}
    half = client_half(recipe("topk", parameters), MFConfig(epochs=1))
    assert isinstance(half, TopKHalf)
    return half


def dense(items: np.ndarray, rows: np.ndarray) -> np.ndarray:
    full = np.zeros((ITEMS, DIM))
    full[items] = rows
    return full


def sent(half: TopKHalf, state: Any, blocks: Any) -> np.ndarray:
    full = np.zeros(ITEMS * DIM)
    if half.recipe.parameters.support == "own":
        full[blocks[0].astype(int)] = blocks[1].reshape(-1, 2)[:, 0]
    else:
        full[state.support] = blocks[0][: half.recipe.kept]
    return full.reshape(ITEMS, DIM)


@pytest.mark.parametrize("mode", sorted(MODES))
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_with_error_feedback_sent_and_residual_add_up_to_the_change(mode: str, seed: int) -> None:
    """Over several rounds, the whole change has been sent or is in the residual, including clipped parts."""
    half, rng = half_of(mode, error_feedback=True, clip=0.01), np.random.default_rng(seed)
    positives = rng.permutation(ITEMS)[:7].astype(np.int32)
    state, client_state = half.recipe.initial_state(TASK_SEED), half.initial_client_state(rng)
    trained, delivered, clipped = np.zeros((ITEMS, DIM)), np.zeros((ITEMS, DIM)), 0
    for number in range(1, 5):
        spec = half.recipe.round_spec(TASK_SEED, number)
        update = train_full(
            state.item_factors,
            client_state[USER_FACTOR],
            positives,
            ITEMS,
            half.training,
            np.random.default_rng([seed, number]),
        )
        trained[update.items] += update.values
        local = half.contribute(
            spec, "c_1", state, History(positives), client_state, np.random.default_rng([seed, number])
        )
        delivered += sent(half, state, local.blocks)
        client_state, clipped = local.client_state, clipped + local.contribution.clipped
        np.testing.assert_array_equal(client_state[USER_FACTOR], update.user_factor)
        owed = dense(client_state[RESIDUAL_ITEMS], client_state[RESIDUAL_ROWS])
        np.testing.assert_allclose(delivered + owed, trained, atol=1e-5)
    assert clipped > 0
    assert np.abs(owed).max() > 0
    assert (np.diff(client_state[RESIDUAL_ITEMS]) > 0).all()
    assert client_state[RESIDUAL_ROWS].any(axis=1).all()


@pytest.mark.parametrize("mode", sorted(MODES))
def test_without_error_feedback_only_the_user_factor_is_kept(mode: str) -> None:
    half, rng = half_of(mode), np.random.default_rng(0)
    spec, state, positives = (
        half.recipe.round_spec(TASK_SEED, 1),
        half.recipe.initial_state(TASK_SEED),
        np.arange(4, dtype=np.int32),
    )
    first = half.initial_client_state(rng)
    local = half.contribute(spec, "c_1", state, History(positives), first, rng)
    prepared = half.prepare(spec, state, History(positives), rng)
    assert set(first) == set(local.client_state) == set(prepared) == {USER_FACTOR}
    assert half.scores(state, local.client_state, History(positives)).shape == (ITEMS,)


def test_residual_of_any_length_is_stored_and_loaded() -> None:
    half, rng, client_store = (
        half_of("own", error_feedback=True),
        np.random.default_rng(0),
        ClientStore(MemoryStore(), "aa"),
    )
    first = half.initial_client_state(rng)
    spec, state = half.recipe.round_spec(TASK_SEED, 1), half.recipe.initial_state(TASK_SEED)
    kept = half.contribute(spec, "c_1", state, History(np.arange(4, dtype=np.int32)), first, rng).client_state
    client_store.keep_client_state("t_1", kept)
    found = client_store.client_state("t_1", first)
    assert found is not None
    for name, array in kept.items():
        np.testing.assert_array_equal(found[name], array)
    assert found[RESIDUAL_ITEMS].size > 0
    prepared = half.prepare(spec, state, History(np.arange(4, dtype=np.int32)), rng)
    assert prepared[RESIDUAL_ROWS].shape == (0, DIM)
    for wrong in ({USER_FACTOR: first[USER_FACTOR]}, {**first, RESIDUAL_ROWS: np.zeros((0, DIM + 1), np.float32)}):
        with pytest.raises(LocalFileError, match="does not fit its recipe"):
            client_store.client_state("t_1", wrong)
