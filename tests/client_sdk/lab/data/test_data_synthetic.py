"""Synthetic data is identical on every machine, and contains preferences that popularity cannot predict."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from client_sdk.lab.data.published import load_dataset
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.evaluation import candidates_of, evaluate, popularity_control
from client_sdk.training.mf import MFConfig, init_user_factor, train_full
from protocols.errors import ParameterError


def digest(config: SyntheticConfig) -> str:
    made = synthetic(config)
    arrays = made.indptr, made.items, made.timestamps
    return hashlib.sha256(b"".join(array.astype("<i8").tobytes() for array in arrays)).hexdigest()


def test_default_data_is_identical_on_every_machine() -> None:
    assert digest(SyntheticConfig()) == "cb5346c07b2c87938d2368d1fd8ac3483dc297e2fe42912acc319379c376fabb"
    assert digest(SyntheticConfig(seed=1)) != digest(SyntheticConfig())


def test_shape_follows_the_configuration() -> None:
    made = synthetic(SyntheticConfig(users=150, items=200, positives=20))
    degrees = made.user_degrees()
    assert (made.n_users, made.n_items) == (150, 200)
    assert 10 <= degrees.min() <= degrees.max() <= 40
    assert 17 < degrees.mean() < 23
    assert np.unique(made.timestamps).size == made.size


def test_skew_makes_items_popular() -> None:
    flat = synthetic(SyntheticConfig(affinity=0, skew=0)).item_degrees()
    steep = synthetic(SyntheticConfig(affinity=0, skew=1.5)).item_degrees()
    assert flat.max() < 60 < 300 < steep.max()


@pytest.mark.parametrize(
    "wrong", [{"users": 0}, {"positives": 1}, {"items": 59}, {"affinity": float("nan")}, {"skew": -1.0}]
)
def test_invalid_configurations_are_refused(wrong) -> None:
    with pytest.raises(ParameterError):
        SyntheticConfig(**wrong)


def test_federated_matrix_factorisation_beats_popularity_clearly() -> None:
    data = load_dataset("synthetic")
    rng, dim, config = np.random.default_rng(0), 16, MFConfig(learning_rate=1.0)
    items = (rng.standard_normal((data.train.n_items, dim)) / 4).astype(np.float32)
    users = np.stack([init_user_factor(dim, rng) for _ in range(data.train.n_users)])
    order = rng.permutation(data.train.n_users)
    for number in range(60):
        change, touched = np.zeros_like(items), np.zeros((len(items), 1), dtype=np.float32)
        for user in order[np.arange(40 * number, 40 * number + 40) % order.size]:
            update = train_full(items, users[user], data.train.positives(user), len(items), config, rng)
            users[user] = update.user_factor
            change[update.items] += update.values
            touched[update.items] += 1
        items += change / np.maximum(touched, 1)
    candidates, replaced = candidates_of(data, rng)
    assert replaced == 0
    learned, control = evaluate(users, items, data, candidates), popularity_control(data, candidates)
    assert learned.hr > control.hr + 0.2
    assert learned.ndcg > 1.5 * control.ndcg
