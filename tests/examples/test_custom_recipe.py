"""The recipe of examples/custom_recipe: installed as a package of its own, and played over a real server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_sdk import Client, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.errors import InvalidParameters
from protocols import plugins
from protocols.combinations import carriers
from protocols.errors import ParameterError
from protocols.messages import Schedule
from protocols.recipes.registry import OWN, recipe, recipe_entry, recipes
from protocols.recipes.state import state_as
from tests.support.organiser import TRIAL
from tests.support.plugins import installed_plugin
from tests.support.server import running_aggregator
from tests.support.tasks import SmallTask, take_part_together

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "custom_recipe"
ITEMS, USERS = 30, 3


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The example, and nothing else, on the path of this process."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    with installed_plugin(folder / "source", folder / "site", "popularity_recipe") as site:
        yield site


def test_without_its_package_the_recipe_is_unknown() -> None:
    code = "from protocols.recipes.registry import recipe; recipe('popularity', {'items': 3})"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT)
    assert "unknown recipe: choose one of arrays" in done.stderr


def test_it_passes_the_battery(installed: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "tests"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=installed.parent / "source", env=environment
    )
    assert done.returncode == 0 and "14 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("mechanism", ["plain", "masked"])
def test_a_task_of_it_completes_on_a_real_server(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    assert recipes()["popularity"] == "popularity_recipe.popularity:ENTRY"
    assert carriers("popularity") == carriers("fedmf")
    kind: Any = import_module("popularity_recipe.popularity").PopularityState
    monkeypatch.setenv("PYTHONPATH", str(installed))
    histories = [np.arange(user, user + 9, dtype=np.int32) for user in range(USERS)]
    with running_aggregator(tmp_path / "data") as server, Operator(server.url, server.operator_token) as operator:
        schedule = Schedule(rounds=5, cohort_size=USERS, start_clients=USERS)
        organiser = None if mechanism == "plain" else TRIAL.pin
        request = task_request(
            "owned", "popularity", mechanism, schedule, {"items": ITEMS}, organiser=organiser, seed=bytes(32)
        )
        task = SmallTask.of(operator, request, USERS)
        policy = Policy(mechanisms=frozenset({mechanism}))
        with ExitStack() as stack:
            made = [Client(server.url, Identity.generate(), MemoryStore(), policy) for _ in range(USERS)]
            parts = [task.join(stack.enter_context(client)) for client in made]
            reports = take_part_together(parts, histories)
            assert [len(mine) for mine in reports] == [1] * USERS  # one sum is enough
            expected = np.bincount(np.concatenate(histories), minlength=ITEMS) / USERS
            np.testing.assert_allclose(state_as(parts[0].model(), kind).shares, expected, atol=1e-6)
            assert parts[0].recommend(2).items.tolist() == [9, 10]
        # the operator's package may be another version than the server's
        other = request.model_copy(update={"recipe": request.recipe.model_copy(update={"version": 2})})
        with pytest.raises(InvalidParameters, match="version 2 on the other side and 1 here"):
            operator.create_task(other)


def test_two_packages_cannot_define_one_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_found", lambda group: (("colr", "elsewhere:ENTRY"),))
    with pytest.raises(ParameterError, match="'colr' of hushrec.recipes is defined twice"):
        recipe_entry("colr")


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("no_such_package.recipe:ENTRY", "cannot be loaded: No module named"),
        ("protocols.errors:ENTRY", "cannot be loaded: module 'protocols.errors' has no attribute"),
        ("protocols.recipes.fedmf:ENTRY", "is no entry of a recipe called 'broken'"),
    ],
)
def test_an_entry_that_does_not_work_is_named(monkeypatch: pytest.MonkeyPatch, place: str, fault: str) -> None:
    monkeypatch.setattr(plugins, "_found", lambda group: (("broken", place),))
    with pytest.raises(ParameterError, match=fault):
        recipe("broken", {})
    assert recipe("fedmf", {"items": 3}).name == "fedmf"  # the others go on


def test_client_and_server_compare_versions() -> None:
    assert recipe_entry("colr", 1).version == 1
    with pytest.raises(ParameterError, match="install the same version"):
        recipe("colr", {"items": 3}, version=2)
    assert {recipe_entry(name).version for name in OWN} == {1}
