"""The programs in examples/ run: against a real server, as five organisations, and a two-tower model."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from client_sdk import Operator, Policy
from examples.cross_silo import coordinator, organisation
from examples.cross_silo import run as cross_silo
from examples.two_tower_numpy import two_tower
from examples.two_tower_numpy.run import run
from tests.support.forked_programs import fork_programs
from tests.support.server import running_aggregator
from tests.support.tasks import ITEMS, small_task

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_programs(monkeypatch, cross_silo)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    app, federation = import_module("background_app"), import_module("masked_federation")
    monkeypatch.setattr(federation, "ROUNDS", 1)
    monkeypatch.setattr(federation, "CLIENTS", 6)
    with running_aggregator(tmp_path / "data") as server:
        best = federation.main(server.url, server.operator_token)
        assert len(best) == 5
        assert not set(best) & set(federation.made_up_users()[0].tolist())
        with Operator(server.url, server.operator_token) as operator:
            task = small_task(operator, "background", users=3, mechanism="plain", rounds=1)
            policy = Policy(mechanisms=frozenset({"plain"}))
            apps = [
                app.App(server.url, task.invitation, [user, user + 10], tmp_path / f"app-{user}", policy=policy)
                for user in range(3)
            ]
        assert apps[0].recommend(3) is None  # before the first round
        for one in apps:
            one.start()
        for one in apps:
            assert one.wait(60)
            assert one.error is None
        found = apps[0].recommend(3)
        assert len(found.items) == 3
        assert set(found.items.tolist()) <= set(range(ITEMS)) - {0, 10}
        for one in apps:
            one.stop()
    assert "round 1: 6 survivors" in capsys.readouterr().out


# --- five organisations as processes, over CKKS sums; the compose file starts the same ones ---------------------------


COMPOSE = Path(cross_silo.__file__).with_name("compose.yaml")


@pytest.mark.slow
def test_five_organisations_train_one_model(tmp_path: Path) -> None:
    printed = cross_silo.run(tmp_path, rounds=4)
    for name, text in zip(coordinator.ORGANISATIONS, printed, strict=True):
        assert re.findall(r"^round (\d+)", text, re.M) == [*"1234"], text
        assert f"{name}: {coordinator.ORGANISATIONS[name]} users" in text, text
    first, last = (float(value) for value in re.findall(r"HR@10 ([\d.]+) before, ([\d.]+) after", printed[0])[0])
    assert last > first + 0.2  # 0.50 on average, deviation 0.07


def test_compose_matches_its_schema_and_names_the_programs() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    assert set(services) == {"server", "organiser", "coordinator", *coordinator.ORGANISATIONS}
    for name in coordinator.ORGANISATIONS:
        assert services[name]["entrypoint"][1:4] == ["-m", organisation.__name__, name]
    assert services["coordinator"]["entrypoint"][2] == coordinator.__name__
    assert f"--scope {coordinator.SCOPE} " in services["organiser"]["command"][0]


# --- the two-tower model ----------------------------------------------------------------------------------------------


def loss_of(arrays: two_tower.Arrays, history: np.ndarray, candidates: np.ndarray) -> float:
    user = arrays["user.weight"] @ arrays["items"][history].mean(axis=0) + arrays["user.bias"]
    logits = (arrays["items"][candidates] @ arrays["item.weight"].T + arrays["item.bias"]) @ user
    return float(np.log(np.exp(logits).sum()) - logits[0])


def test_gradients_are_those_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(0, 0.5, shape) for name, shape in two_tower.shapes(9, 3).items()}
    history, candidates, rate = np.array([1, 2, 5]), np.array([3, 0, 7]), 1e-6
    new = {name: array.copy() for name, array in arrays.items()}
    two_tower._step(new, history, candidates, rate)
    for name, array in arrays.items():
        place = tuple(rng.integers(0, side) for side in array.shape) if name != "items" else (5, 1)
        moved = {other: values.copy() for other, values in arrays.items()}
        moved[name][place] += 1e-5
        slope = (loss_of(moved, history, candidates) - loss_of(arrays, history, candidates)) / 1e-5
        step = (array[place] - new[name][place]) / rate
        np.testing.assert_allclose(step, slope, rtol=1e-2, atol=1e-4, err_msg=name)


def test_the_example_learns_over_masked_sums(tmp_path: Path) -> None:
    popularity, initial, *trained = run(tmp_path / "server", clients=16, items=60, rounds=2)
    assert len(trained) == 2
    assert trained[-1] > initial + 0.15 and popularity < 0.9
