from __future__ import annotations

import math
import os

import numpy as np
import pytest

from protocols.sums.oneshot.parameters import SIGMA
from protocols.sums.oneshot.sampler import LARGEST, gaussian, gaussian_table, uniform_residues
from tests.protocols.sums.oneshot.rounds import counting_random


def words(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def test_the_table_is_the_cumulative_distribution() -> None:
    weights = [math.exp(-(x**2) / (2 * SIGMA**2)) for x in range(200)]
    whole = weights[0] + 2 * sum(weights[1:])
    reached = weights[0]
    for k, entry in enumerate(gaussian_table()):
        reached += 2 * weights[k] if k else 0.0
        assert entry / 2**63 == pytest.approx(reached / whole, abs=1e-14)
    assert LARGEST == len(gaussian_table()) == 58
    assert list(gaussian_table()) == sorted(set(gaussian_table()))


def test_words_at_the_edges_of_the_table() -> None:
    table = gaussian_table()
    cases = [(0, 0), (table[0] - 1, 0), (table[0], 1), (table[5] - 1, 5), (table[5], 6), (2**63 - 1, LARGEST)]
    drawn = words(*[2 * word + sign for word, _ in cases for sign in (0, 1)])
    samples = gaussian(2 * len(cases), lambda count: drawn[:count])
    assert samples.tolist() == [sign * size for _, size in cases for sign in (1, -1)]


def test_samples_have_the_distribution() -> None:
    count = 400_000
    samples = gaussian(count, counting_random(5))
    assert samples.dtype == np.int64
    weights = np.exp(-(np.arange(-30, 31) ** 2) / (2 * SIGMA**2))
    expected = count * weights / weights.sum()
    observed = np.array([(samples == x).sum() for x in range(-30, 31)])
    kept = expected > 20
    chi_square = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    assert chi_square < 2 * kept.sum()
    assert abs(samples.std() - SIGMA) < 0.05


def test_the_source_gives_exactly_eight_bytes_a_sample() -> None:
    asked: list[int] = []

    def random(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    assert gaussian(20_000, random).size == 20_000
    assert asked == [160_000]


def test_residues_are_drawn_again_beyond_the_prime() -> None:
    prime = 2**31 + 11
    drawn = [(prime - 1, prime, 5, 2**32 - 1), (prime, 7), (9,)]
    source = iter(b"".join(word.to_bytes(4, "little") for word in row) for row in drawn)
    assert uniform_residues(4, prime, lambda _: next(source)).tolist() == [prime - 1, 9, 5, 7]
