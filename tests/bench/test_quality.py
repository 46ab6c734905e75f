"""What bench/rating_quality.py computes for all clients at once is what the clients' sums give."""

from __future__ import annotations

import numpy as np

from bench.quality_parts.rfrec_fast import RFRecTogether
from client_sdk.data.interactions import Interactions
from client_sdk.simulation.federation import Federation
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec.recipe import RFRec, rfrec_state


def test_rfrec_of_all_devices_together_is_that_of_the_federation() -> None:
    rng = np.random.default_rng(4)
    owners, items = np.nonzero(rng.random((30, 20)) < 0.4)
    train = Interactions.from_pairs(
        owners, items, n_users=30, n_items=20, ratings=rng.integers(1, 6, owners.size).astype(np.float32)
    )
    parameters = {"items": 20, "dim": 4, "item_bias": "means", "penalty": 0.3, "learning_rate": 0.03}
    federation = Federation(train, "rfrec", parameters, cohort_size=30, seed=5)
    list(federation.run(1 + 12))
    made = recipe("rfrec", parameters)
    assert isinstance(made, RFRec)
    together = RFRecTogether(train, made, seed=5)
    together.run(12)
    expected = federation.scores(np.arange(30))[train.users, train.items]
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(together.predictions(train), expected, atol=2e-3)
    np.testing.assert_allclose(together.average, rfrec_state(federation.state).item_factors, atol=2e-3)
