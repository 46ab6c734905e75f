"""FAIR's benchmark federation equals the recipe's contributions; FedHM's factors are the best of their rank."""

from __future__ import annotations

import numpy as np
import pytest

from bench.experiments.fair import TABLE_2, fair_runs
from bench.experiments.fair_federation import (
    FairFederation,
    FedHMFederation,
    equal_groups,
    factors,
    rank_model,
    rank_of,
    whole_tables,
)
from client_sdk.lab.data.interactions import Interactions
from client_sdk.lab.data.synthetic import SyntheticConfig, synthetic
from client_sdk.lab.evaluation.full_ranking import rank_all
from client_sdk.training.fair import USER_VECTORS, FairConfig
from protocols.errors import ParameterError
from protocols.recipes.fair import FairParameters

USERS, ITEMS, DIM = 20, 64, 8
TRAINING = FairConfig(learning_rate=0.02, epochs=2, batch_size=16)


@pytest.fixture(scope="module")
def train() -> Interactions:
    return synthetic(SyntheticConfig(users=USERS, items=ITEMS, positives=10))


def parameters(*capacities: int, clip: float = 1.0) -> FairParameters:
    return FairParameters(
        items=ITEMS, dim=DIM, capacities=capacities, max_interactions=40, reveal_weights=True, clip=clip
    )


@pytest.mark.parametrize("clip", [1.0, 0.03])
def test_a_turn_equals_the_sum_of_the_contributions(train: Interactions, clip: float) -> None:
    made = FairFederation(train, parameters(0, 2, clip=clip), TRAINING, equal_groups(USERS, 2), (4, 3), seed=1)
    recipe, half, state = made.recipe, made.half, made.state
    client_states, clipped = list(made.client_states), 0
    for device_group, cohort in ((0, 4), (1, 3)):
        spec, view = recipe.round_spec(made.task_seed, device_group + 1), recipe.view(state, device_group)
        total = np.zeros(recipe.layout(spec.sum_index).length)
        for user in made.orders[device_group][:cohort]:
            rng = np.random.default_rng([1, 2, int(user), 1])
            local = half.contribute(spec, "c", view, train.history(int(user)), client_states[user], rng)
            total += local.blocks[0]
            clipped += local.contribution.clipped
            client_states[user] = local.client_state
        state = recipe.absorb(state, spec, total, cohort)
    assert list(made.run(1)) == [1]
    np.testing.assert_allclose(made.state.tables, state.tables, atol=1e-7)
    np.testing.assert_allclose(made.state.dense, state.dense, atol=1e-7)
    np.testing.assert_array_equal(made.users, np.stack([client_state[USER_VECTORS] for client_state in client_states]))
    assert made.clipped == clipped
    assert (clipped > 0) == (clip < 1)


def test_users_outside_every_group_take_no_part(train: Interactions) -> None:
    device_groups = np.where(np.arange(USERS) < 3, 0, -1)
    made = FairFederation(train, parameters(0), TRAINING, device_groups, (10,))
    before = made.users
    list(made.run(2))
    moved = np.abs(made.users - before).max(axis=(1, 2)) > 0
    np.testing.assert_array_equal(moved, device_groups == 0)


def test_ranking_all_users_equals_ranking_each_with_the_clients_scores(train: Interactions) -> None:
    made = FairFederation(train, parameters(1), TRAINING, np.zeros(USERS, dtype=int), (10,))
    list(made.run(2))
    test = synthetic(SyntheticConfig(users=USERS, items=ITEMS, positives=10, seed=5))
    view = made.recipe.view(made.state, 0)
    histories = [train.history(user) for user in range(USERS)]
    each = np.stack([made.half.scores(view, made.client_states[u], histories[u]) for u in range(USERS)])
    found = rank_model(made.users, whole_tables(made.recipe, view), view.dense, train, test)
    assert found == rank_all(lambda users: each[users], train, test)
    # with one device group the server's model is in its space
    assert made.rank(test).ndcg == pytest.approx(found.ndcg, abs=1e-3)


def test_factors_are_the_best_of_their_rank() -> None:
    table = np.random.default_rng(0).standard_normal((50, DIM)).astype(np.float32)
    for rank in (1, 3, 8):
        left, right = factors(table, rank)
        u, s, v = np.linalg.svd(table, full_matrices=False)
        np.testing.assert_allclose(left @ right, u[:, :rank] * s[:rank] @ v[:rank], atol=1e-4)
        np.testing.assert_allclose((left**2).sum(axis=0), (right**2).sum(axis=1), rtol=1e-3)


def test_fedhm_ranks_are_the_papers_and_an_eighth_has_none() -> None:
    assert [rank_of(359_014, 8, p) for p in (1, 2)] == [3, 1]
    with pytest.raises(ParameterError, match="cannot hold"):
        rank_of(359_014, 8, 3)
    assert [c for c, (_, _, fedhm) in TABLE_2.items() if fedhm is None] == [8, 16]


def test_fedhm_averages_its_devices_models(train: Interactions) -> None:
    def run(cohorts: tuple[int, int]) -> FedHMFederation:
        device_groups = equal_groups(USERS, 2)
        made = FedHMFederation(train, parameters(0), TRAINING, device_groups, cohorts, halvings=1, seed=1)
        list(made.run(1))
        return made

    mixed, small = run((3, 3)), run((0, 3))
    assert mixed.state.round_number == 1
    # only devices of rank r: a mean of three matrices of rank r
    table = small.state.tables[0].reshape(ITEMS, DIM)
    assert np.linalg.matrix_rank(table, tol=1e-5) <= 3 * rank_of(ITEMS, DIM, 1)
    start = FairFederation(train, parameters(0), TRAINING, equal_groups(USERS, 1), (1,), seed=1).state.tables
    assert np.abs(mixed.state.tables - start).max() > 0.01


def test_keys_of_runs_are_unique() -> None:
    keys = [run.key for run in fair_runs(quick=False, protocol="clean")]
    assert len(set(keys)) == len(keys)
    assert {"fair.fedavg", "fair.1x-64x.het", "fair.1x-4x.fedhm", "fair.20pct.full_trn"} <= set(keys)
    assert "fair.1x-64x.fedhm" not in keys
