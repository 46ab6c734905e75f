"""PFedCLR's sum: the weighted mean of the clients' item factors, with and without noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.combinations import check_combination
from protocols.errors import CombinationError, ParameterError
from protocols.recipes.base import MOVES_ALIKE, Contribution, FactorState, Local, Update
from protocols.recipes.pfedclr import PFedCLR
from protocols.recipes.registry import recipe

TASK_SEED = bytes(range(32))
ITEMS, DIM = 20, 6
SIZES = (3, 40, 900, 5000)


def make(**changes: Any) -> PFedCLR:
    made = recipe("pfedclr", {"items": ITEMS, "dim": DIM, **changes})
    assert isinstance(made, PFedCLR)
    return made


def entropy(seed: int) -> Any:
    return np.random.default_rng(seed).bytes


def updates(scale: float = 0.3) -> list[Update]:
    rng = np.random.default_rng(5)
    touched = [np.sort(rng.permutation(ITEMS)[: 4 + 3 * index]).astype(np.int32) for index in range(len(SIZES))]
    return [Update(items, (scale * rng.standard_normal((items.size, DIM))).astype(np.float32)) for items in touched]


def sent(made: PFedCLR, update: Update, size: int, seed: int = 0) -> Contribution:
    local = Local(update, examples=size, entropy=entropy(seed))
    return made.contribute(made.initial_state(TASK_SEED), made.round_spec(TASK_SEED, 1), local)


def absorbed(made: PFedCLR, changes: list[Update]) -> tuple[FactorState, np.ndarray, int]:
    """The state after a round, the sum, and how many values were clipped."""
    parts = [sent(made, update, size, index) for index, (update, size) in enumerate(zip(changes, SIZES, strict=True))]
    total = np.sum([part.vector for part in parts], axis=0)
    before = made.initial_state(TASK_SEED)
    after = made.absorb(before, made.round_spec(TASK_SEED, 1), total, len(SIZES))
    assert isinstance(after, FactorState)
    return after, total, sum(part.clipped for part in parts)


@pytest.mark.parametrize(("most", "weights"), [(10_000, SIZES), (1000, (3, 40, 900, 1000)), (None, (1, 1, 1, 1))])
def test_the_model_is_the_mean_of_the_clients_factors_weighted_by_their_interactions(
    most: int | None, weights: tuple[int, ...]
) -> None:
    made, changes = make(max_interactions=most, reveal_weights=most is not None), updates()
    start = made.initial_state(TASK_SEED).item_factors
    own = np.tile(start.astype(np.float64), (len(SIZES), 1, 1))  # Q_u, untouched rows being those of Q
    for factors, update in zip(own, changes, strict=True):
        factors[update.items] += update.values
    after, _, clipped = absorbed(made, changes)
    np.testing.assert_allclose(after.item_factors, np.average(own, axis=0, weights=weights), atol=1e-6)
    assert clipped == int(sum((np.abs(update.values) > 1.0).sum() for update in changes))


def test_what_exceeds_the_clip_is_held_and_counted_before_the_weight() -> None:
    made = make(clip=0.2, max_interactions=100, reveal_weights=True)
    values = np.full((1, DIM), 0.1, np.float32)
    values[0, :2] = (0.7, -3.0)
    part = sent(made, Update(np.array([4], np.int32), values), 50)
    assert part.clipped == 2
    block = part.vector
    rows = block[:-1].reshape(ITEMS, DIM)
    np.testing.assert_allclose(rows[4], 0.5 * np.array([0.2, -0.2, 0.1, 0.1, 0.1, 0.1]), atol=1e-7)
    assert not rows[np.arange(ITEMS) != 4].any()
    assert block[-1] == 0.5


def test_training_that_diverged_is_not_sent() -> None:
    values = np.full((1, DIM), np.nan, np.float32)
    for made in (make(), make(noise_scale=0.5)):
        with pytest.raises(ParameterError, match="diverged"):
            sent(made, Update(np.array([4], np.int32), values), 50)


def test_noise_is_drawn_for_every_entry_untouched_items_included() -> None:
    made = make(noise_scale=0.5)
    block = sent(made, Update(np.array([4], np.int32), np.zeros((1, DIM), np.float32)), 50, 1).vector
    assert np.unique(block).size == block.size == ITEMS * DIM
    assert (np.abs(block) <= made.layout().blocks[0].bounds()).all()
    large = make(items=5000, noise_scale=0.5)
    noise = sent(large, Update(np.zeros(0, np.int32), np.zeros((0, DIM), np.float32)), 1, 2).vector
    assert np.abs(noise).mean() == pytest.approx(0.5, rel=0.03)  # E|Laplace(b)| = b
    assert np.abs(noise.mean()) < 0.03


@pytest.mark.parametrize(
    ("name", "parameters", "exact"),
    [
        ("pfedclr", {"noise_scale": 0.5}, {"item_bias": "counts"}),
        ("rfrec", {"ldp": {"clip": 0.2, "scale": 0.04}}, {"item_bias": "means"}),
    ],
)
def test_noise_comes_without_exact_sums_of_the_same_rows(
    name: str, parameters: dict[str, Any], exact: dict[str, Any]
) -> None:
    """The first sum of such a task would be the row itself, whatever epsilon its warning states."""
    for kept in (parameters, exact):
        recipe(name, {"items": 5, **kept})
    with pytest.raises(ParameterError, match="the same data without noise"):
        recipe(name, {"items": 5, **parameters, **exact})


def test_noise_comes_with_equal_weights_only() -> None:
    with pytest.raises(ParameterError, match="reveals its number of interactions"):
        make(noise_scale=0.5, max_interactions=1, reveal_weights=True)
    assert make(noise_scale=0.5).warnings()[0].count("epsilon") == 1
    assert make().warnings() == (MOVES_ALIKE,)


def test_noise_averages_out_over_many_clients_and_is_within_the_layout() -> None:
    made, quiet = make(noise_scale=0.05), make()
    changes = updates()
    noisy, silent = absorbed(made, changes)[0], absorbed(quiet, changes)[0]
    difference = noisy.item_factors - silent.item_factors
    assert 0 < np.abs(difference).mean() < 0.05  # four draws of mean size 0.05 in a mean


def test_the_first_factors_are_standard_normal_and_follow_from_the_seed() -> None:
    made = make(items=2000)
    factors = made.initial_state(TASK_SEED).item_factors
    assert factors.std() == pytest.approx(1.0, abs=0.02)
    np.testing.assert_array_equal(factors, made.initial_state(TASK_SEED).item_factors)
    assert (factors != made.initial_state(bytes(32)).item_factors).any()
    state = made.decode_state(3, made.encode_state(FactorState(3, factors)))
    np.testing.assert_array_equal(state.item_factors, factors)
    assert len(made.encode_state(state)) == made.state_bytes(1)


def test_which_parameters_fit_each_other() -> None:
    with pytest.raises(ParameterError, match="rank 7 is greater than dim 6"):
        make(rank=7)
    assert make(rank=7, variant="cf").parameters.rank == 7
    with pytest.raises(ParameterError, match="variant"):
        make(variant="lr")
    for carrier in ("plain", "ckks", "masked", "paillier"):
        check_combination(make(), carrier)
    with pytest.raises(CombinationError, match="small sums"):
        check_combination(make(items=200_000), "paillier")
