"""The control on the published data, without a model: the size of the leak in the papers' protocol."""

from __future__ import annotations

import numpy as np
import pytest

from bench.experiments.leaks import (
    NegativeDraws,
    drawn_as_negative_control,
    hold_out_introduced_last,
    paper_protocol,
    users_with_at_least,
)
from client_sdk.lab.data import LeaveOneOut, load_dataset, load_interactions
from client_sdk.lab.evaluation import sample_candidates


@pytest.fixture(scope="module")
def ml_100k(published_data) -> LeaveOneOut:
    return load_dataset("ml-100k", published_data)


@pytest.mark.parametrize(
    ("rounds", "hr", "ndcg"),
    [(10, 0.456, 0.275), (20, 0.635, 0.455), (100, 0.998, 0.903)],  # means of five seeds; PFedCLR: 0.9989 / 0.9225
)
def test_on_ml_100k_by_round(ml_100k: LeaveOneOut, rounds: int, hr: float, ndcg: float) -> None:
    candidates = sample_candidates(ml_100k, np.random.default_rng(0))
    draws, excluded = NegativeDraws(rounds), paper_protocol(ml_100k).excluded
    leaky = drawn_as_negative_control(ml_100k, candidates, np.random.default_rng(1), draws=draws, excluded=excluded)
    assert leaky.sampled.hr == pytest.approx(hr, abs=0.04)  # deviation up to 0.016
    assert leaky.sampled.ndcg == pytest.approx(ndcg, abs=0.03)
    clean = drawn_as_negative_control(ml_100k, candidates, np.random.default_rng(1), draws=draws)
    assert clean.sampled.hr < 0.14


def test_on_filmtrust(published_data) -> None:
    whole = users_with_at_least(load_interactions("filmtrust", published_data), 10)
    data = hold_out_introduced_last(whole)
    candidates = sample_candidates(data, np.random.default_rng(0))
    excluded = paper_protocol(data).excluded
    leaky = drawn_as_negative_control(data, candidates, np.random.default_rng(1), excluded=excluded)
    assert leaky.sampled.hr == pytest.approx(0.80, abs=0.04)
    assert leaky.sampled.ndcg == pytest.approx(0.59, abs=0.03)
