"""Groups of a cohort: which are kept, and the bound on what those that lie can do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import ParameterError
from protocols.sums.groups import keep_groups, sum_of_kept


@given(st.integers(0, 2**32), st.integers(3, 12), st.floats(1.0, 4.0), st.integers(1, 200))
def test_liars_move_the_mean_of_the_kept_by_at_most_the_bound(seed: int, groups: int, tau: float, length: int) -> None:
    """Whatever less than half of the groups hold; also where the liars agree, or are near."""
    rng = np.random.default_rng(seed)
    means = list(rng.standard_normal((groups, length)) * rng.choice([1e-3, 1.0, 1e3]))
    lying = int(rng.integers(0, (groups + 1) // 2))
    push = rng.standard_normal(length) * rng.choice([0.1, 1.0, 1e6])
    for group in range(lying):
        means[group] = means[group] + push * (1.0 if seed % 2 else rng.standard_normal())
    found = keep_groups(means, tau)
    assert len(found.kept) >= groups / 2
    honest = [group for group in found.kept if group >= lying]
    if not honest:
        return
    clients = rng.integers(1, 9, groups)
    sums = [mean * count for mean, count in zip(means, clients, strict=True)]
    all_kept, honest_kept = (sum_of_kept(sums, clients, kept) / clients.sum() for kept in (found.kept, honest))
    share = 1.0 - clients[honest].sum() / clients[list(found.kept)].sum()
    assert np.linalg.norm(all_kept - honest_kept) <= found.deviation(share, tau) * (1 + 1e-6) + 1e-6


def test_far_groups_are_dropped_whatever_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocols.sums.groups._PIECE", 7)
    rng = np.random.default_rng(1)
    means = [rng.standard_normal(100).astype(np.float32) for _ in range(9)]
    means[4][:] += 9.0
    found = keep_groups(means, 2.0)
    assert found.kept == (0, 1, 2, 3, 5, 6, 7, 8)
    whole = np.linalg.norm(np.array(means, float) - np.median(np.array(means, float), axis=0), axis=1)
    np.testing.assert_allclose(found.distances, whole)
    sums = [mean * count for mean, count in zip(means, range(1, 10), strict=True)]
    expected = np.sum([sums[group] for group in found.kept], axis=0) * 45 / 40
    np.testing.assert_allclose(sum_of_kept(sums, range(1, 10), found.kept), expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(sum_of_kept(sums, range(1, 10), range(9)), np.sum(sums, axis=0, dtype=float))


def test_values_that_are_no_numbers_are_refused() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(ParameterError, match="not finite"):
            keep_groups([np.zeros(2), np.zeros(2), np.array([0.0, value])], 2.0)
    for tau in (np.nan, np.inf, 0.99):
        with pytest.raises(ParameterError, match="tau"):
            keep_groups([np.zeros(2)] * 3, tau)
    with pytest.raises(ParameterError, match="one length"):
        keep_groups([np.zeros((2, 2))] * 3, 1.0)
