"""The benchmark's devices train the same model as a federation, also with absent clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.experiments.rfrec import Devices
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.federation import Federation
from protocols.recipes.registry import recipe
from protocols.recipes.rfrec import RFRec

USERS, ITEMS, ROUNDS = 9, 14, 6


@pytest.fixture(scope="module")
def data() -> Interactions:
    rng = np.random.default_rng(4)
    pairs = np.argwhere(rng.random((USERS, ITEMS)) < 0.4)
    ratings = rng.integers(1, 6, len(pairs)).astype(np.float32)
    return Interactions.from_pairs(pairs[:, 0], pairs[:, 1], n_users=USERS, n_items=ITEMS, ratings=ratings)


@pytest.mark.parametrize("cohort", [USERS, 4])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("rfrec", {"variant": "paper"}),
        ("rfrec", {"variant": "released"}),
        ("rfrecf", {"iterations": 100, "variant": "paper"}),
        ("rfrecf", {"iterations": 100, "variant": "released", "probability": 0.6}),
    ],
)
def test_the_same_model_as_a_federation(data: Interactions, name: str, changes: dict[str, Any], cohort: int) -> None:
    parameters = {"items": ITEMS, "dim": 3, **changes}
    clients = Federation(data, name, parameters, cohort_size=cohort, seed=2)
    made = recipe(name, parameters)
    assert isinstance(made, RFRec)
    devices = Devices(data, made, 2)
    for _ in range(ROUNDS):
        devices.round(np.sort(clients.cohort(made.round_spec(clients.task_seed, clients.state.round_number + 1))))
        list(clients.run(1))
    np.testing.assert_allclose(devices.state.item_factors, clients.state.item_factors, atol=1e-5)
    for user in range(USERS):
        scores = clients.half.scores(clients.state, clients.client_states[user], data.history(user))
        own = devices.predictions(np.full(ITEMS, user, np.int32), np.arange(ITEMS, dtype=np.int32))
        np.testing.assert_allclose(own, scores, atol=1e-4)
    start = made.initial_state(clients.task_seed).item_factors
    assert np.abs(devices.state.item_factors - start).max() > 1e-3


def test_a_device_of_several_users_trains_them_all(data: Interactions) -> None:
    made = recipe("rfrec", {"items": ITEMS, "dim": 3, "variant": "released"})
    assert isinstance(made, RFRec)
    devices = Devices(data, made, 0, blocks=4)
    before = devices.users.copy()
    for _ in range(3):
        devices.round(devices.able)
    assert devices.able.tolist() == [0, 1, 2, 3]
    assert (np.abs(devices.users - before).max(axis=1) > 0.01).all()
