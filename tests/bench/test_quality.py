"""What the advice says about vectors is what bench/experiments/quality.py measured."""

from __future__ import annotations

import pytest

from bench.experiments.quality_models import RANKING_SETS
from bench.registry import read_results
from bench.run_all import COMMITTED
from protocols.advice import QUALITY_BY_COMPONENTS


@pytest.mark.parametrize("count", sorted(QUALITY_BY_COMPONENTS))
def test_the_worth_of_vectors_is_the_measured_one(count: int) -> None:
    figures = read_results(COMMITTED)["quality"]
    shares = [
        figures[f"{name}.privirec-k-{count}.ndcg20"] / figures[f"{name}.privirec-k.ndcg20"] for name in RANKING_SETS
    ]
    assert QUALITY_BY_COMPONENTS[count] == pytest.approx((min(shares), max(shares)), abs=0.006)
