"""Ranks and metrics compared with values computed by hand and with a simple loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from client_sdk.lab.evaluation.leave_one_out import hit_ratio, ndcg, ranks_of
from protocols.errors import ParameterError

SCORES = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, np.inf, np.nan])


def slow_rank(target: float, others: list[float]) -> int:
    """Rank by sorting, with NaN lowest and the held-out item after all equal scores."""
    order = sorted([(math.isnan(x), 0 if math.isnan(x) else -x, 0) for x in others])
    order.append((math.isnan(target), 0 if math.isnan(target) else -target, 1))
    return sorted(order).index(order[-1]) + 1


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=SCORES))
@settings(deadline=None)
def test_ranks_equal_those_of_sorting(scores) -> None:
    ranks = ranks_of(scores[:, 0], scores[:, 1:])
    assert ranks.tolist() == [slow_rank(row[0], row[1:].tolist()) for row in scores]


def test_held_out_item_ranks_last_among_equal_scores() -> None:
    assert ranks_of(np.zeros(2), np.zeros((2, 99))).tolist() == [100, 100]
    assert ranks_of(np.array([np.nan]), np.full((1, 99), np.nan)).tolist() == [100]


def test_metrics_by_hand() -> None:
    ranks = np.array([1, 3, 10, 11])
    assert hit_ratio(ranks, 10) == 0.75
    assert ndcg(ranks, 10) == pytest.approx((1 + 0.5 + 1 / math.log2(11)) / 4)
    assert hit_ratio(ranks, 1) == ndcg(ranks, 1) == 0.25


def test_empty_input_is_an_error() -> None:
    for metric in (hit_ratio, ndcg):
        with pytest.raises(ParameterError, match="no user"):
            metric(np.zeros(0, dtype=np.int64), 10)
        with pytest.raises(ParameterError, match="k must be"):
            metric(np.array([1]), 0)
    with pytest.raises(ParameterError, match="does not match"):
        ranks_of(np.zeros(3), np.zeros((2, 5)))
