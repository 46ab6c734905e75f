"""FAIR in one process: encrypted and plain sums of devices of unequal memory train the same model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.federation import Federation
from client_sdk.training.fair import USER_VECTORS, FairConfig
from protocols.errors import CombinationError

USERS, COHORT = 40, 8
CAPACITIES = (0, 2)
MOST = 20


@pytest.fixture(scope="module")
def train() -> Interactions:
    return synthetic(SyntheticConfig(users=USERS, items=80, positives=12))


def federation(train: Interactions, mechanism: str, **changes: Any) -> Federation:
    parameters = {
        "items": train.n_items,
        "dim": 4,
        "capacities": CAPACITIES,
        "max_interactions": MOST,
        "reveal_weights": True,
    }
    device_groups = np.arange(USERS) % len(CAPACITIES)
    training = FairConfig(learning_rate=0.02, epochs=2, batch_size=8)
    return Federation(
        train,
        "fair",
        parameters,
        mechanism,
        training=training,
        cohort_size=COHORT,
        user_groups=device_groups,
        **changes,
    )


@pytest.mark.parametrize(
    ("mechanism", "parameters"), [("ckks", {"set": "standard"}), ("masked", {"dropout": 0.0}), ("plain", {})]
)
def test_encrypted_and_plain_sums_train_the_same_model(
    train: Interactions, mechanism: str, parameters: dict[str, Any]
) -> None:
    """Each turn starts from one model: Adam divides by the root of squared gradients and so amplifies rounding."""
    plain, hidden = federation(train, "plain"), federation(train, mechanism, mechanism_parameters=parameters)
    # a sum's error, over the turn's weight: every client has 6 interactions or more
    least = len(CAPACITIES) * COHORT * 6 / MOST
    predicted = sum(
        made.mechanism.plan(made.mechanism_parameters, made.recipe.layout(step), COHORT).predicted_error
        for made in (plain, hidden)
        for step in (1, 2)
    )
    for _ in range(3):
        plain.state, plain.client_states = hidden.state, list(hidden.client_states)
        before = hidden.state.tables
        for made in (plain, hidden):
            list(made.run(len(CAPACITIES)))
        np.testing.assert_allclose(hidden.state.tables, plain.state.tables, atol=predicted / least + 1e-7)
        np.testing.assert_allclose(hidden.state.dense, plain.state.dense, atol=predicted / least + 1e-7)
        for ours, theirs in zip(hidden.client_states, plain.client_states, strict=True):
            np.testing.assert_array_equal(ours[USER_VECTORS], theirs[USER_VECTORS])
        assert np.abs(hidden.state.tables - before).max() > 0.02


def test_a_small_device_uploads_only_its_view(train: Interactions) -> None:
    made = federation(train, "plain")
    full, small = made.run(2)
    layers = made.recipe.layout(1).length - 2 * train.n_items * 4
    assert full.bytes_up == 4 * (2 * train.n_items * 4 + layers)
    assert small.bytes_up == 4 * (2 * train.n_items + layers)
    assert full.survivors == small.survivors == COHORT


def test_paillier_is_refused(train: Interactions) -> None:
    with pytest.raises(CombinationError, match="cannot be combined"):
        federation(train, "paillier")
