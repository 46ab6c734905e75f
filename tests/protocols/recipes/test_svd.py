"""SVD compression: the best low-rank part of what a client trained, and of the mean of all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import ParameterError
from protocols.recipes.base import Local, Update
from protocols.recipes.fedmf import SVD, low_rank
from protocols.recipes.registry import recipe

ITEMS, DIM, RANK, TASK_SEED = 30, 8, 3, bytes(32)
TOUCHED = {"normalise": "touched", "reveal_touched": True}


def make(rank: int = RANK) -> SVD:
    chosen = recipe("svd", {"items": ITEMS, "dim": DIM, "rank": rank, "clip": 50.0, **TOUCHED})
    assert isinstance(chosen, SVD)
    return chosen


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, ITEMS), rank=st.integers(1, DIM))
def test_low_rank_is_the_truncated_svd(seed: int, rows: int, rank: int) -> None:
    matrix = np.random.default_rng(seed).normal(size=(rows, DIM))
    left, sizes, right = np.linalg.svd(matrix, full_matrices=False)
    expected = left[:, :rank] * sizes[:rank] @ right[:rank]
    np.testing.assert_allclose(low_rank(matrix, rank), expected, atol=1e-7)


@given(seed=st.integers(0, 2**32 - 1))
def test_clients_and_the_mean_are_both_cut_to_the_rank(seed: int) -> None:
    chosen, rng = make(), np.random.default_rng(seed)
    spec, before = chosen.round_spec(TASK_SEED, 1), chosen.initial_state(TASK_SEED)
    total, counts, expected = np.zeros(chosen.layout().length), np.zeros(ITEMS), np.zeros((ITEMS, DIM))
    for _ in range(5):
        items = np.sort(rng.permutation(ITEMS)[: rng.integers(RANK + 2, ITEMS)]).astype(np.int32)
        values = rng.normal(size=(items.size, DIM)).astype(np.float32)
        made = chosen.contribute(before, spec, Local(Update(items, values)))
        block = made.vector
        sent = block[: ITEMS * DIM].reshape(ITEMS, DIM)
        assert made.clipped == 0
        assert np.linalg.matrix_rank(sent, tol=1e-4) == RANK
        assert not np.delete(sent, items, axis=0).any()
        expected[items] += low_rank(values, RANK)
        counts[items] += 1
        total += block
    after = chosen.absorb(before, spec, total, 5)
    mean = low_rank(expected / np.maximum(counts, 1)[:, None], RANK)
    np.testing.assert_allclose(after.item_factors - before.item_factors, mean, atol=1e-4)


def test_full_rank_is_fedmf() -> None:
    chosen, plain = (
        make(DIM),
        recipe("fedmf", {"items": ITEMS, "dim": DIM, "clip": 50.0, **TOUCHED}),
    )
    rng, spec = np.random.default_rng(3), make().round_spec(TASK_SEED, 1)
    update = Update(np.arange(12, dtype=np.int32), rng.normal(size=(12, DIM)).astype(np.float32))
    state = chosen.initial_state(TASK_SEED)
    ours, theirs = (made.contribute(state, spec, Local(update)).vector for made in (chosen, plain))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(
        chosen.absorb(state, spec, ours, 1).item_factors, plain.absorb(state, spec, theirs, 1).item_factors, atol=1e-5
    )


def test_what_cannot_be_is_refused_and_the_papers_payload_is_told() -> None:
    chosen = make()
    assert chosen.factor_values == RANK * (ITEMS + DIM)
    spec, state, item = chosen.round_spec(TASK_SEED, 1), chosen.initial_state(TASK_SEED), np.array([1], np.int32)
    with pytest.raises(ParameterError, match="diverged"):
        chosen.contribute(state, spec, Local(Update(item, np.full((1, DIM), np.nan, np.float32))))
    with pytest.raises(ParameterError, match="rows x 8"):
        chosen.contribute(state, spec, Local(Update(item, np.ones(DIM, np.float32))))
    with pytest.raises(ParameterError, match="rank 9 is greater than dim 8"):
        recipe("svd", {"items": ITEMS, "dim": DIM, "rank": 9})
