"""Two runs of the demo with the same seed give the same figures, although every run makes new keys."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_sdk.lab.data.columns import Columns
from client_sdk.lab.demo.arms import Arm, SharedSetup, demo_identities, run_arm, task_seed
from client_sdk.lab.demo.results import DemoRequest
from client_sdk.lab.demo.run import arms_of, chosen_settings, shared_setup
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.local_server import DemoServer, run_server
from protocols.crypto.domain import repeatable_place
from protocols.recipes.base import FactorState
from protocols.recipes.state import state_as

ROUNDS, USERS, ITEMS = 3, 30, 300
Figures = list[tuple[int, float, float]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    users, items = np.nonzero(np.random.default_rng(0).random((USERS, ITEMS)) < 0.15)
    rows = [f"{user},{item}" for user, item in zip(users, items, strict=True)]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def prepared(data: Path, seed: int, dropout: float = 0.0) -> tuple[list[Arm], SharedSetup]:
    """The arms of a run and what they share, with keys of its own."""
    request = DemoRequest(str(data), columns=Columns(0, 1), rounds=ROUNDS, cohort=10, seed=seed, dropout=dropout)
    settings = chosen_settings(request)
    shared, _ = shared_setup(request, settings)
    return arms_of(request, settings), replace(shared, collect_seconds=1.0) if dropout else shared


def figures(server: DemoServer, arm: Arm, shared: SharedSetup) -> tuple[Figures, np.ndarray]:
    models = []

    def inspect(fleet: Fleet) -> None:
        models.append(state_as(fleet.model(), FactorState).item_factors.copy())

    named = replace(arm, name=f"{arm.name} {secrets.token_hex(4)}")  # a server has each name of a task once
    result, _ = run_arm(named, shared, server, None, inspect)
    return [(point.round_number, point.values["HR@10"], point.values["NDCG@10"]) for point in result.curve], models[0]


def test_the_same_seed_gives_the_same_figures(data: Path, tmp_path: Path) -> None:
    with run_server(tmp_path / "server") as server:
        for place, tolerance in ((1, 0.0), (0, 1e-3)):  # plain sums are exact; every CKKS sum has a new, small error
            runs = []
            for _ in range(2):
                arms, shared = prepared(data, 0)
                runs.append(figures(server, arms[place], shared))
            (first, model), (second, again) = runs
            assert [number for number, _, _ in first] == list(range(1, ROUNDS + 1))
            assert first == second
            np.testing.assert_allclose(model, again, atol=tolerance, rtol=0)
            if place == 1:
                arms, shared = prepared(data, 0)
                other_order = replace(shared, identities=shared.identities[::-1])
                curve, model_of_others = figures(server, arms[1], other_order)
                assert curve != first
                assert np.abs(model_of_others - model).max() > 1e-3


def test_the_same_seed_lets_the_same_clients_drop_out(data: Path, tmp_path: Path) -> None:
    with run_server(tmp_path / "server") as server:
        models = []
        for _ in range(2):
            arms, shared = prepared(data, 0, dropout=0.3)
            models.append(figures(server, arms[1], replace(shared, rounds=2))[1])
    np.testing.assert_array_equal(*models)


def test_identities_are_new_in_every_run_and_their_order_is_the_seeds() -> None:
    def order(seed: int) -> tuple[list[int], set[bytes]]:
        made = demo_identities(20, seed)
        keys = [one.public_key for one in made]
        return places(keys, seed), set(keys)

    (first, keys), (again, others), (other_seed, _) = order(0), order(0), order(1)
    assert sorted(first) == list(range(20))
    assert first == again != other_seed
    assert not keys & others


def places(keys: list[bytes], seed: int) -> list[int]:
    """Return the rank of each key in the order in which the server asks the clients of the demo's task."""
    found = [repeatable_place(task_seed(seed), key) for key in keys]
    return [sorted(found).index(place) for place in found]
