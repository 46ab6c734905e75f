"""What bench/quality.py and bench/rating_quality.py compute for all clients at once is what the clients' sums give."""

from __future__ import annotations

import numpy as np

from bench.quality_parts.federated import spectrum
from bench.quality_parts.rfrec_fast import RFRecTogether
from client_sdk.data.interactions import Interactions
from client_sdk.data.synthetic import SyntheticConfig, synthetic
from client_sdk.simulation.federation import Federation
from protocols.recipes.privirec.state import privirec_state
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec.recipe import RFRec, rfrec_state


def test_spectrum_is_that_of_the_clients_sums() -> None:
    train = synthetic(SyntheticConfig(users=60, items=50, positives=10))
    parameters = {"items": 50, "components": 8, "oversampling": 4, "rayleigh_ritz": True}
    made = Federation(train, "privirec-k", parameters, cohort_size=60, seed=3)
    list(made.run(9))
    ours, theirs = privirec_state(spectrum(train, parameters, 3)), privirec_state(made.state)
    assert (ours.round_number, ours.sum_index) == (theirs.round_number, theirs.sum_index) == (6, 6)
    np.testing.assert_array_equal(ours.item_degrees, theirs.item_degrees)
    np.testing.assert_allclose(ours.singular_values, theirs.singular_values, atol=1e-5)
    np.testing.assert_allclose(np.abs(ours.basis), np.abs(theirs.basis), atol=1e-4)


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
