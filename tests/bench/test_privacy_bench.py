"""Quality under noise: sums without noise are those of the contributions, every method scores, what figures compare."""

from __future__ import annotations

import numpy as np
import pytest

from bench.experiments.privacy import exactly, figures_of, resampled, train_popularity, train_spectrum
from client_sdk.lab.data.interactions import Interactions, interaction_rows
from client_sdk.training.graph_filters import FILTERS
from client_sdk.training.privirec import components_of
from protocols.recipes.base import Local
from protocols.recipes.registry import recipe

ITEMS, USERS = 24, 60


@pytest.fixture(scope="module")
def train() -> Interactions:
    rng = np.random.default_rng(4)
    rows = rng.random((USERS, ITEMS)) < 0.3
    rows[np.arange(USERS), rng.integers(0, ITEMS, USERS)] = True
    return Interactions.from_pairs(*np.nonzero(rows), n_users=USERS, n_items=ITEMS)


def test_sums_without_noise_are_those_of_the_contributions(train: Interactions) -> None:
    given = {"components": 4, "iterations": 1, "item_exponent": 0.0, "degrees": False, "reveal_gram": True}
    made = recipe("privirec", {"items": ITEMS, **given}, noisy=True)
    state = made.initial_state(bytes(32))
    for number in range(1, made.steps + 1):
        spec = made.round_spec(bytes(32), number)
        parts = [made.contribute(state, spec, Local(train.positives(user))).vector for user in range(USERS)]
        state = made.absorb(state, spec, np.sum(parts, axis=0), USERS)
    np.testing.assert_allclose(exactly(made, train).gram, state.gram, atol=1e-4)


def test_resampled_clients_keep_most_of_their_rows(train: Interactions) -> None:
    many = resampled(train, 5000, 0)
    assert many.size / 5000 == pytest.approx(0.7 * train.size / USERS, rel=0.03)
    assert many.user_degrees().min() > 0


@pytest.mark.parametrize(("epsilon", "local"), [(None, False), (8.0, False), (8.0, True)])
def test_every_method_scores_all_users(train: Interactions, epsilon: float | None, local: bool) -> None:
    clients, earlier = resampled(train, 3000, 0), resampled(train, 2000, 1)
    for name, before in (("privirec", None), ("privirec-k", None), ("privirec-k", earlier)):
        if not (local and (name == "privirec" or before)) and not (epsilon is None and before):
            components = components_of(*train_spectrum(clients, name, epsilon, 0, local, before))
            scores = FILTERS["ease"].scores(components, interaction_rows(train))
            assert scores.shape == (USERS, ITEMS)
            assert np.isfinite(scores).all()
    counts = train_popularity(clients, epsilon, 0, local)
    assert np.corrcoef(counts, np.log(clients.item_degrees() + 1))[0, 1] > (0.2 if local else 0.8)


def test_figures_compare_with_no_noise_and_with_popularity() -> None:
    found = {
        "ml-1m.popularity.epsnone": {0: {"ndcg20": 0.02}},
        "ml-1m.privirec.eps2": {0: {"ndcg20": 0.03}},
        "ml-1m.privirec.epsnone": {0: {"ndcg20": 0.04}},
    }
    figures = figures_of(found)
    assert figures["ml-1m.privirec.eps2.kept"] == pytest.approx(0.75)
    assert figures["ml-1m.privirec.eps2.over_popularity"] == pytest.approx(1.5)
    assert "ml-1m.privirec.epsnone.kept" not in figures
