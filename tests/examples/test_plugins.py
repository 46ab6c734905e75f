"""The recipe of examples/custom_recipe and the mechanism of examples/custom_mechanism, over a real server.

Each is installed from a package of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
from typer.testing import CliRunner

from aggregator_service.commands.task_control import tasks
from aggregator_service.tasks.creation import requested
from client_sdk import ArraysRound, Client, Identity, MemoryStore, Operator, Policy, task_request
from client_sdk.errors import InvalidParameters, PolicyRefused
from client_sdk.task import Task
from protocols import plugins
from protocols.errors import CombinationError, ParameterError
from protocols.messages import Schedule
from protocols.messages.tasks import OtherPlanView
from protocols.recipes.registry import recipe, recipe_entry, recipes
from protocols.recipes.state import state_as
from protocols.sums.registry import mechanism, mechanism_entry, mechanisms
from protocols.task_terms import carriers, check_combination
from tests.protocols.sums.conformance import MechanismConformance
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import TRIAL, SmallTask, enrolled_fleet, take_part_together

ROOT = Path(__file__).parents[2]
USERS, ROUNDS, ITEMS = 3, 2, 30
SHAPES = {"shapes": {"w": [4, 3], "t": [5, 2]}, "rows": ["t"], "reveal_rows": True, "clip": 0.5}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder into which both examples are installed, on the path of this process; their sources are beside it."""
    folder = tmp_path_factory.mktemp("plugins")
    packages = {"custom_recipe": "popularity_recipe", "custom_mechanism": "integers_mechanism"}
    for example in packages:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "examples" / example, folder / example, ignore=ignored)
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--python", sys.executable, "--offline"]
    how = ["--no-cache", "--no-deps", "--no-build-isolation", "--target", str(folder / "site")]
    command = [*uv, *how, *(str(folder / example) for example in packages)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "site")
        plugins._found.cache_clear()
        yield folder / "site"
    for name in [name for name in sys.modules if name.split(".")[0] in packages.values()]:
        del sys.modules[name]
    plugins._found.cache_clear()


@pytest.fixture(scope="module")
def server(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    """A server that has the packages too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(installed))
        with running_aggregator(tmp_path_factory.mktemp("server") / "data") as running:
            yield running


# --- the recipe -------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_packages(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process finds no plugins."""
    monkeypatch.setattr(plugins, "_found", lambda group: ())


def test_it_passes_the_battery(installed: Path) -> None:
    paths = os.pathsep.join([str(installed), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "tests"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=installed.parent / "custom_recipe", env=environment
    )
    assert done.returncode == 0 and "15 passed" in done.stdout, done.stdout + done.stderr


def test_a_task_of_it_completes_on_a_real_server(server: AggregatorProcess, operator: Operator) -> None:
    assert recipes()["popularity"] == "popularity_recipe.popularity:ENTRY"
    assert carriers("popularity") == carriers("fedmf")
    kind: Any = import_module("popularity_recipe.popularity").PopularityState
    histories = [np.arange(user, user + 9, dtype=np.int32) for user in range(USERS)]
    schedule = Schedule(rounds=5, cohort_size=USERS, start_clients=USERS)
    request = task_request(
        "owned", "popularity", "masked", schedule, {"items": ITEMS}, organiser=TRIAL.pin, seed=bytes(32)
    )
    task = SmallTask.of(operator, request, USERS)
    with ExitStack() as stack:
        made = [Client(server.url, Identity.generate(), MemoryStore(), Policy(trust_models=True)) for _ in range(USERS)]
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
        ("protocols.recipes.colr:FEDMF_ENTRY", "is no entry of a recipe called 'broken'"),
    ],
)
def test_an_entry_that_does_not_work_is_named(monkeypatch: pytest.MonkeyPatch, place: str, fault: str) -> None:
    monkeypatch.setattr(plugins, "_found", lambda group: (("broken", place),))
    with pytest.raises(ParameterError, match=fault):
        recipe("broken", {})
    assert recipe("fedmf", {"items": 3}).name == "fedmf"  # the others go on


# --- the mechanism ----------------------------------------------------------------------------------------------------


class TestIntegers(MechanismConformance):
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def from_the_example(cls, installed: Path) -> None:
        cls.mechanism = mechanism("integers")


def test_it_carries_the_recipes_that_its_entry_allows(installed: Path) -> None:
    assert "integers" in mechanisms() and mechanism_entry("integers").version == 1
    assert {name for name in ("arrays", "colr", "fedmf") if "integers" in carriers(name)} == {"arrays", "colr", "fedmf"}
    check_combination(recipe("arrays", SHAPES), "integers")
    with pytest.raises(CombinationError, match="cannot be combined with 'integers'"):
        check_combination("privirec", "integers")


def joined(server: AggregatorProcess, stack: ExitStack, invitation: str, count: int = USERS) -> list[Task]:
    policy = Policy(mechanisms=frozenset({"integers"}), trust_models=True)
    clients = (Client(server.url, Identity.generate(), MemoryStore(), policy) for _ in range(count))
    return [stack.enter_context(client).join(invitation=invitation) for client in clients]


def test_clients_train_a_model_of_their_own_over_it(server: AggregatorProcess, operator: Operator) -> None:
    schedule = Schedule(rounds=ROUNDS, cohort_size=USERS, start_clients=USERS)
    request = task_request("whole", "arrays", "integers", schedule, SHAPES, seed=bytes(32))
    with ExitStack() as stack:
        task = operator.create_task(request)
        OtherPlanView.model_validate(task.plan)
        schemas = httpx.get(f"{server.url}/openapi.json", timeout=60).json()["components"]["schemas"]
        plan_schema = {"$ref": "#/components/schemas/SumPlan", "components": {"schemas": schemas}}
        jsonschema.validate(task.plan, plan_schema)
        assert schemas["SumPlan"]["discriminator"]["mapping"]["integers"].endswith("/IntegersPlanView")
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**task.plan, "mechanism": "floats"}, plan_schema)
        parts = joined(server, stack, operator.invite(task.task_id, uses=USERS).invitation)
        first = parts[0].arrays()

        def trainer(user: int) -> Any:
            def change(asked: ArraysRound) -> None:
                table = np.zeros((5, 2))
                table[user : user + 2] = 0.25
                asked.contribute({"w": np.full((4, 3), 0.1 * user), "t": table})

            return change

        reports = take_part_together(parts, [trainer(user) for user in range(USERS)])
        assert [[report.round for report in mine] for mine in reports] == [[1, 2]] * USERS
        last = parts[0].arrays()
        np.testing.assert_allclose(last["w"], first["w"] + ROUNDS * 0.1, atol=1e-5)
        moved = np.array([0.25, 0.25, 0.25, 0.25, 0.0]) * ROUNDS  # the mean of those who touched a row
        np.testing.assert_allclose(last["t"], first["t"] + moved[:, np.newaxis], atol=1e-5)


def test_a_fleet_trains_on_items_in_a_task_of_the_command(server: AggregatorProcess, operator: Operator) -> None:
    made = CliRunner().invoke(
        tasks,
        ["create", "items", "--recipe", "fedmf", "--mechanism", "integers", "-r", "items=20", "-r", "dim=4",
         "-s", f"rounds={ROUNDS}", "-s", f"cohort_size={USERS}", "--data-dir", str(server.data_dir)],
    )  # fmt: skip
    assert made.exit_code == 0, (made.output, made.exception)
    task_id = json.loads(made.output)["task_id"]
    policy = Policy(mechanisms=frozenset({"integers"}), trust_models=True)
    task = SmallTask(operator, task_id, "items", operator.invite(task_id, uses=USERS).invitation, None, False)
    with enrolled_fleet(server.url, task, [[user, user + 5, 12] for user in range(USERS)], 1, policy=policy) as fleet:
        assert [report.survivors for report in fleet.run()] == [USERS] * ROUNDS
        assert all(scores.shape == (20,) for scores in fleet.scores())


def test_both_compare_versions(server: AggregatorProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: an operator with another version, and a client with another version."""
    request = task_request("versions", "arrays", "integers", Schedule(cohort_size=USERS), SHAPES)
    newer = request.model_copy(update={"mechanism": request.mechanism.model_copy(update={"version": 2})})
    with ExitStack() as stack:
        with pytest.raises(InvalidParameters, match="'integers' has version 2 on the other side and 1 here"):
            operator.create_task(newer)
        invitation = operator.invite(operator.create_task(request).task_id, uses=USERS).invitation
        (part,) = joined(server, stack, invitation, 1)
        assert part.terms.mechanism.name == "integers"
        entry = mechanism_entry("integers")
        monkeypatch.setattr(import_module("integers_mechanism"), "ENTRY", replace(entry, version=2))
        asked = (
            task_request("newer", "arrays", "integers", None, SHAPES),
            requested("newer", "arrays", SHAPES, "integers", {}, Schedule()),
        )
        assert [one.mechanism.version for one in asked] == [2, 2]
        with pytest.raises(
            ParameterError, match="'integers' has version 1 on the other side and 2 here: install the same"
        ):
            joined(server, stack, invitation, 1)


def test_a_client_must_name_it_in_its_policy_and_needs_its_package(
    server: AggregatorProcess, operator: Operator, request: pytest.FixtureRequest
) -> None:
    asked = task_request("policies", "arrays", "integers", Schedule(cohort_size=USERS), SHAPES)
    invitation = operator.invite(operator.create_task(asked).task_id, uses=USERS).invitation
    with (
        Client(server.url, Identity.generate(), MemoryStore()) as careful,
        pytest.raises(PolicyRefused, match="integers"),
    ):
        careful.join(invitation=invitation)
    request.getfixturevalue("without_packages")
    with (
        Client(server.url, Identity.generate(), MemoryStore(), Policy(trust_roster=True)) as bare,
        pytest.raises(
            ParameterError,
            match="'integers', which is not installed here: .* one of ckks, masked, oneshot, paillier, plain",
        ),
    ):
        bare.join(invitation=invitation)
