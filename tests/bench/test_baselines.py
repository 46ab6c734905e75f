"""The central baselines of `bench.experiments.quality` solve what their papers state."""

from __future__ import annotations

import numpy as np

from bench.experiments.quality import scorer_of
from client_sdk.lab.data.interactions import Interactions, LeaveOneOut, interaction_rows
from client_sdk.lab.measures import OneHeldOut


def test_slim_is_the_least_of_its_objective() -> None:
    """With B >= 0 and a zero diagonal the gradient is near 0 where B is positive, and not negative elsewhere."""
    rng, squares, sizes = np.random.default_rng(5), 3.0, 0.7
    users, items = np.nonzero(rng.random((60, 12)) < np.linspace(0.6, 0.1, 12))
    train = Interactions.from_pairs(users, items)
    held = LeaveOneOut(train, np.full(train.n_users, -1, np.int32), None)
    scores = scorer_of("slim", {"squares": squares, "sizes": sizes}, OneHeldOut(held, None), 0)
    assert scores is not None
    rows = interaction_rows(train).toarray().astype(np.float64)
    found = np.linalg.lstsq(rows, scores(np.arange(train.n_users)), rcond=None)[0]  # 60 rows determine B
    gram = rows.T @ rows
    gradient = gram @ found - gram + squares * found + sizes
    outside = ~np.eye(12, dtype=bool)
    used = found > 1e-4
    assert np.abs(np.diag(found)).max() < 1e-5 and found.min() > -1e-5 and 10 < used.sum() < 120
    assert np.abs(gradient[used]).max() < 0.1
    assert gradient[outside & ~used].min() > -0.1
