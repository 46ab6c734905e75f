"""RFRecF's coin tosses: stretches against the algorithm executed toss by toss."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.recipes.rfrec_parameters import Moves, Stretch, stretches, tosses

SEED = bytes(range(32))
MOVE, RATE = 0.3, 0.1


def targets(clients: int) -> np.ndarray:
    """Client i's loss is 1/2 |x_i - target_i|^2, so that training is a step towards its target."""
    return np.random.default_rng(1).standard_normal((clients, 4))


def toss_by_toss(coins: tuple[bool, ...], moves: Moves) -> tuple[np.ndarray, np.ndarray]:
    """Return all clients' x and the average at the end, averaging in every iteration that needs it."""
    wanted = targets(5)
    x, average, before = np.zeros_like(wanted), np.zeros(4), False
    for k, averages in enumerate(coins):
        if moves == "coin" and averages:
            average = x.mean(axis=0)
            x = x + MOVE * (average - x)
        elif averages:  # Algorithm 2, line 16
            average = x.mean(axis=0)
        elif moves == "run" and before and k:  # line 12
            x = x + MOVE * (average - x)
        else:  # line 10
            x = x + RATE * (wanted - x)
        before = averages
    return x, x.mean(axis=0)


def by_stretches(found: tuple[Stretch, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the same with one average per stretch."""
    wanted = targets(5)
    x, average = np.zeros_like(wanted), np.zeros(4)
    for stretch in found:
        for _ in range(stretch.local):
            x = x + RATE * (wanted - x)
        average = x.mean(axis=0)
        x = average + (1 - MOVE) ** stretch.moves * (x - average)
    return x, average


@pytest.mark.parametrize("moves", ["coin", "run"])
@given(seed=st.binary(min_size=32, max_size=32), iterations=st.integers(1, 60), probability=st.floats(0.1, 0.9))
def test_one_sum_a_stretch_gives_what_an_average_in_every_iteration_gives(
    moves: Moves, seed: bytes, iterations: int, probability: float
) -> None:
    found = stretches(seed, iterations, probability, moves)
    for ours, theirs in zip(
        by_stretches(found), toss_by_toss(tosses(seed, iterations, probability), moves), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


@given(seed=st.binary(min_size=32, max_size=32), iterations=st.integers(1, 200))
def test_stretches_account_for_every_toss_and_for_no_sum_without_training(seed: bytes, iterations: int) -> None:
    coins, found = tosses(seed, iterations, 0.5), stretches(seed, iterations, 0.5, "coin")
    assert sum(stretch.local for stretch in found) == coins.count(False)
    lead = next((k for k, averages in enumerate(coins) if not averages), iterations)
    assert sum(stretch.moves for stretch in found) == coins.count(True) - lead
    assert all(stretch.local for stretch in found)
    assert all(stretch.moves for stretch in found[:-1])
    assert len(found) == sum(not averages for averages, _ in groupby(coins))
    assert [s.until for s in found] == sorted({s.until for s in found})
    assert not found or found[-1].until == iterations


def test_sums_are_about_p_times_one_minus_p_of_the_iterations() -> None:
    assert abs(len(stretches(SEED, 40_000, 0.8, "coin")) / 40_000 - 0.16) < 0.005
    assert abs(np.mean(tosses(SEED, 40_000, 0.8)) - 0.8) < 0.01


def test_another_seed_tosses_other_coins() -> None:
    assert tosses(SEED, 100, 0.5) == tosses(SEED, 100, 0.5) != tosses(SEED[::-1], 100, 0.5)
