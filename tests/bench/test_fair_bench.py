"""FAIR's benchmark ranks all users at once as their devices do, and the group with the most memory as the server."""

from __future__ import annotations

import numpy as np
import pytest

from bench.experiments.fair import equal_groups, ranked, whole_tables
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.evaluation.full_ranking import rank_all
from client_sdk.lab.federation import Federation
from client_sdk.training.fair import FairConfig
from protocols.recipes.fair import Fair, FairParameters, FairState

USERS, ITEMS, DIM = 20, 64, 8
TRAINING = FairConfig(learning_rate=0.02, epochs=2, batch_size=16)


@pytest.fixture(scope="module")
def train() -> Interactions:
    return synthetic(SyntheticConfig(users=USERS, items=ITEMS, positives=10))


def test_ranking_all_users_equals_ranking_each_with_the_clients_scores(train: Interactions) -> None:
    groups = equal_groups(USERS, 2)
    parameters = FairParameters(items=ITEMS, dim=DIM, capacities=(0, 2), max_interactions=40, reveal_weights=True)
    made = Federation(
        train, "fair", parameters.model_dump(), training=TRAINING, cohort_size=USERS // 2, user_groups=groups
    )
    list(made.run(4))
    test = synthetic(SyntheticConfig(users=USERS, items=ITEMS, positives=10, seed=5))
    for group in (0, 1):
        members = np.flatnonzero(groups == group)
        assert ranked(made, test, group, members) == rank_all(made.scores, train, test, k=20, users=members)
    assert isinstance(made.recipe, Fair)
    assert isinstance(made.state, FairState)
    view = made.recipe.view(made.state, 0)
    np.testing.assert_allclose(whole_tables(made.recipe, view), made.state.tables, atol=1e-6)
