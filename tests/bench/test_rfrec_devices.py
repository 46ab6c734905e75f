"""The benchmark's devices train the same model as a federation, also with absent clients; runs keep their figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.experiments.rfrec import Devices, RFRecRun, rfrec_runs, rfrecf_runs
from bench.experiments.runs import path_of
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


def test_a_run_keeps_its_errors_or_the_sum_in_which_it_diverged(tmp_path: Path, data: Interactions) -> None:
    rows = [f"{u + 1}\t{i + 1}\t{int(r)}\t0" for u, i, r in zip(data.users, data.items, data.ratings, strict=True)]
    (tmp_path / "u.data").write_text("\n".join(rows) + "\n")
    ticks: dict[str, int] = {}
    good = RFRecRun("released", "ml-100k", "rfrec", {"variant": "released", "dim": 3}, 20, dropped=50)
    good.execute(tmp_path, tmp_path, ticks)
    figures = json.loads(path_of(good, tmp_path).read_text())
    assert good.key == "ml100k.rfrec.released.users.dropped50"
    assert ticks == {good.key: 20}
    assert 0 < figures["mae"] < figures["rmse"] < 3
    assert [point["sums"] for point in figures["curve"]] == [10, 20]
    steep = {"variant": "paper", "dim": 3, "learning_rate": 5.0, "scaling": "raw"}
    bad = RFRecRun("paper", "ml-100k", "rfrec", steep, 50)
    bad.execute(tmp_path, tmp_path, ticks)
    figures = json.loads(path_of(bad, tmp_path).read_text())
    assert figures["diverged_at"] > 1
    assert "mae" not in figures


def test_keys_of_runs_are_unique() -> None:
    for runs in (rfrec_runs, rfrecf_runs):
        keys = [run.key for quick in (True, False) for run in runs(quick=quick, protocol="clean", seed=int(quick))]
        assert len(set(keys)) == len(keys)
