"""Tasks: starts from another task, what the API states of sums and parameters."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from aggregator_service.commands.task_control import tasks
from aggregator_service.tasks.plans import plan_task, task_terms
from aggregator_service.tasks.task_views import resolved_task, sum_view
from client_sdk import Client, Operator, Policy, task_request
from client_sdk.errors import DigestMismatch
from client_sdk.history import History
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.task import Task
from client_sdk.training import client_side
from client_sdk.training.factors import USER_FACTOR
from protocols.catalogue import Catalogue
from protocols.messages import Schedule
from protocols.recipes.factors import CountedFactors
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.spectral_start import Source, start_of, start_state
from protocols.recipes.state import state_as
from protocols.task_terms import carriers
from tests.support.server import AggregatorProcess
from tests.support.tasks import ITEMS, TRIAL, SmallTask, enrolled_fleet, interactions, joined, take_part_together
from tests.vectors.recipes import SMALL

USERS = 5
PLAIN = Policy(mechanisms=frozenset({"plain"}), min_cohort=2)


def run_fleet(server: AggregatorProcess, operator: Operator, task_id: str, mechanism: str) -> Any:
    """Run all rounds; return the terms and the model."""
    holder = operator.invite(task_id, role="holder").invitation if mechanism in ("ckks", "paillier") else None
    task = SmallTask(
        operator, task_id, "", operator.invite(task_id, uses=USERS).invitation, holder, mechanism != "plain"
    )
    with enrolled_fleet(server.url, task, interactions(USERS)) as fleet:
        assert fleet.run(is_complete)
        return fleet.clients[0].member.terms, fleet.model()


def is_complete(played: FleetRound) -> None:
    assert played.state == "complete", played.failure


@pytest.fixture(scope="module")
def source(server: AggregatorProcess, operator: Operator) -> Any:
    schedule = Schedule(rounds=4, cohort_size=USERS, start_clients=USERS)
    parameters = {"items": ITEMS, "components": 5, "iterations": 3, "reveal_gram": True, "min_owners": 1}
    task_id = operator.create_task(task_request("spectrum", "privirec-k", "plain", schedule, parameters)).task_id
    _, state = run_fleet(server, operator, task_id, "plain")
    return task_id, state


def create(
    server: AggregatorProcess,
    name: str,
    mechanism: str,
    source: str,
    *more: str,
    recipe: str = "fedmf",
    items: int | None = ITEMS,
    status: int = 0,
) -> Any:
    """Create a task that starts from another; its view, or with `status` the error."""
    arguments = [
        "create", name, "--recipe", recipe, "--mechanism", mechanism,
        *([] if items is None else ["-r", f"items={items}"]), "-s", f"cohort_size={USERS}",
        "--start-from", source, "--data-dir", str(server.data_dir), *more,
        *(["--organiser", TRIAL.pin.key, "--scope", TRIAL.pin.scope] if mechanism != "plain" else []),
    ]  # fmt: skip
    done = CliRunner().invoke(tasks, arguments)
    if status:
        assert done.exit_code, done.output
        return str(done.exception)
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


TWO = ("-r", "dim=4", "-s", "rounds=2")


@pytest.mark.parametrize("mechanism", sorted(carriers("fedmf")))
def test_a_task_of_any_mechanism_trains_on_from_a_start(
    server: AggregatorProcess, operator: Operator, source: Any, mechanism: str
) -> None:
    source_id, spectrum = source
    made = create(server, f"started-{mechanism}", mechanism, "spectrum", *TWO)
    assert made["recipe"]["parameters"]["start_from"]["task"] == source_id
    terms, model = run_fleet(server, operator, made["task_id"], mechanism)
    first = start_state(terms.recipe, Source(spectrum, 0.5))
    start = start_of(terms.recipe.parameters)
    assert start.digest == hashlib.sha256(terms.recipe.encode_state(first)).hexdigest()
    assert 0 < np.abs(model.item_factors - first.item_factors).max() < 1
    assert model.round_number == 2
    assert np.array_equal(model.item_counts, spectrum.item_degrees)


def test_a_started_task_recommends_before_its_first_round(
    server: AggregatorProcess, operator: Operator, source: Any
) -> None:
    """The state of round 0 ranks as the spectrum does: items that are often owned with those of the user come first."""
    made = create(server, "early-birds", "masked", "spectrum", *TWO)
    invitation = operator.invite(made["task_id"], uses=1).invitation
    task = SmallTask(operator, made["task_id"], "early-birds", invitation, None, True)
    own = interactions(USERS)[0]
    with joined(server.url, task, 1) as (part,):
        found = part.recommend(5, own)
        assert len(set(found.items.tolist()) - set(own.tolist())) == 5
        assert part.model().round_number == 0
        terms = part.terms
        first = state_as(start_state(terms.recipe, Source(source[1], 0.5)), CountedFactors)
        side = client_side(terms.recipe, None)
        history = History.of(own, ITEMS)
        prepared = side.prepare(terms.recipe.round_spec(terms.seed, 1), first, history, np.random.default_rng(0))
        expected = side.scores(first, prepared, history)
        # float32: a score near 0 is a difference of terms as large as the largest score
        largest = float(np.abs(expected).max())
        np.testing.assert_allclose(found.scores, expected[found.items], rtol=0, atol=1e-6 * largest)
        assert part.recommend(5, own, refresh=False).items.tolist() == found.items.tolist()


def test_a_task_with_a_privacy_block_starts_from_the_vectors_of_an_earlier_one(
    server: AggregatorProcess, operator: Operator, source: Any
) -> None:
    """The earlier one is plain and without noise; then one with noise is the earlier one."""
    for name, before in (("warm", "spectrum"), ("warmer", "warm")):
        how = [
            "-r", "components=4", "-s", f"start_clients={USERS}", "-s", "rounds=1", "-s", f"min_clients={USERS}",
            "--epsilon", "8", "--delta", "1e-4",
        ]  # fmt: skip
        made = create(server, name, "masked", before, *how, recipe="privirec-k")
        parameters = made["recipe"]["parameters"]
        assert (parameters["iterations"], parameters["degrees"]) == (1, False)
        terms, model = run_fleet(server, operator, made["task_id"], "masked")
        assert terms.recipe.parameters.start_digest == parameters["start_from"]["digest"]
        assert model.round_number == 1
        assert model.singular_values.any()
    assert "did not sum item degrees" in create(server, "colder", "plain", "warm", *TWO, status=1)


MORE = ITEMS + 3


def first_of(terms: Any, source: Source) -> Any:
    """Return the state of round 0, whose digest the terms have."""
    first = start_state(terms.recipe, source)
    assert start_of(terms.recipe.parameters).digest == hashlib.sha256(terms.recipe.encode_state(first)).hexdigest()
    return first


def test_a_catalogue_may_have_grown_when_a_task_starts_from_a_spectrum(
    server: AggregatorProcess, operator: Operator, source: Any
) -> None:
    made = create(server, "grown", "plain", "spectrum", *TWO, items=MORE)
    terms, model = run_fleet(server, operator, made["task_id"], "plain")
    first = first_of(terms, Source(source[1], 0.5))
    assert first.item_factors.shape == (MORE, 4) and not first.item_factors[ITEMS:].any()
    assert model.item_counts[:ITEMS].tolist() == source[1].item_degrees.tolist() and not model.item_counts[ITEMS:].any()
    how = ["-r", "components=4", "-s", f"start_clients={USERS}", "-s", "rounds=1", "-s", f"min_clients={USERS}"]
    noise = ["--epsilon", "8", "--delta", "1e-4"]
    made = create(server, "grown-noisy", "masked", "spectrum", *how, *noise, recipe="privirec-k", items=MORE)
    assert run_fleet(server, operator, made["task_id"], "masked")[1].basis.shape == (MORE, 4)
    fewer = create(server, "shrunk", "plain", "spectrum", *TWO, items=ITEMS - 1, status=1)
    assert "items may only be appended" in fewer


@pytest.mark.parametrize(("before", "recipe"), [("fedmf", "fedmf"), ("colr", "colr"), ("fedmf", "colr")])
def test_a_task_goes_on_from_the_item_factors_of_another_and_counts_anew(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, before: str, recipe: str
) -> None:
    name = f"{before}-before-{recipe}"
    parameters = {"items": ITEMS, "dim": 4, "item_bias": "counts", **({"rank": 2} if before == "colr" else {})}
    schedule = Schedule(rounds=3, cohort_size=USERS)
    earlier = operator.create_task(task_request(name, before, "plain", schedule, parameters)).task_id
    _, trained = run_fleet(server, operator, earlier, "plain")
    rank = ["-r", "rank=2"] if recipe == "colr" else []
    made = create(server, f"{name}-after", "plain", name, *rank, "-s", "rounds=2", recipe=recipe, items=MORE)
    assert made["recipe"]["parameters"]["dim"] == 4
    terms, model = run_fleet(server, operator, made["task_id"], "plain")
    first = first_of(terms, Source(trained, None))
    assert np.array_equal(first.item_factors[:ITEMS], trained.item_factors)
    assert not first.item_factors[ITEMS:].any() and not first.clients
    assert (model.clients, terms.recipe.parameters.counting) == (USERS, 1)
    assert model.item_counts[:ITEMS].tolist() == trained.item_counts.tolist()
    wrong = create(server, f"{name}-wide", "plain", name, *rank, "-r", "dim=5", recipe=recipe, status=1)
    assert "factors of length 5" in wrong
    assert "cannot start" in create(server, f"{name}-rfrec", "plain", name, recipe="rfrec", status=1)


@contextmanager
def two_parts(server: AggregatorProcess, invitation: str, homes: Path) -> Iterator[list[Task]]:
    """Two clients in a plain task, whose records are in `homes`-0 and `homes`-1."""
    with ExitStack() as stack:
        clients = [Client(server.url, policy=PLAIN, home=f"{homes}-{index}") for index in range(2)]
        yield [stack.enter_context(client).join(invitation=invitation) for client in clients]


def test_a_device_goes_on_with_its_user_factor(server: AggregatorProcess, operator: Operator, tmp_path: Path) -> None:
    schedule = Schedule(rounds=1, cohort_size=2, min_clients=2)
    parameters = {"items": ITEMS, "dim": 4}
    earlier = operator.create_task(task_request("kept", "fedmf", "plain", schedule, parameters)).task_id
    factors = []
    for task_id in (earlier, None):
        if task_id is None:
            how = ("-s", "min_clients=2", "--variant", "paper", "-s", "rounds=1")
            task_id = create(server, "kept-on", "plain", "kept", *how, items=MORE)["task_id"]
        invitation = operator.invite(task_id, uses=3).invitation
        with two_parts(server, invitation, tmp_path / "kept") as parts:
            factors.append([part.part.client_state() for part in parts])
            if task_id == earlier:
                take_part_together(parts, interactions(2))
                factors.append([part.part.client_state() for part in parts])
    assert factors[0] == [None, None]
    for before, after in zip(factors[1], factors[2], strict=True):
        assert np.array_equal(before[USER_FACTOR], after[USER_FACTOR]) and before[USER_FACTOR].any()


def trained_by_one(asked: Any) -> None:
    asked.contribute({name: array + 1 for name, array in asked.arrays().items()})


def test_rows_may_be_appended_to_the_arrays_of_another_task(
    server: AggregatorProcess, operator: Operator, tmp_path: Path
) -> None:
    schedule, shapes = Schedule(rounds=1, cohort_size=2, min_clients=2), {"items": [3, 2], "bias": [2]}
    earlier = operator.create_task(task_request("arrays-0", "arrays", "plain", schedule, {"shapes": shapes})).task_id
    invitation = operator.invite(earlier, uses=2).invitation
    with two_parts(server, invitation, tmp_path / "arrays") as parts:
        take_part_together(parts, [trained_by_one, trained_by_one])
        trained = parts[0].arrays()
    two = ("-s", "min_clients=2", "-s", "rounds=1")
    for name, more in (("arrays-1", ()), ("arrays-2", ("-r", 'shapes={"items":[5,2],"bias":[2]}'))):
        made = create(server, name, "plain", "arrays-0", *two, *more, recipe="arrays", items=None)
        rows = 5 if more else 3
        with Client(server.url, policy=PLAIN, home=tmp_path / name) as client:
            found = client.join(invitation=operator.invite(made["task_id"]).invitation).arrays()
        assert found["items"].shape == (rows, 2)
        assert np.array_equal(found["items"][:3], trained["items"]) and not found["items"][3:].any()
        assert np.array_equal(found["bias"], trained["bias"])
    less = ("-r", 'shapes={"items":[2,2],"bias":[2]}')
    assert "only rows may be appended" in create(
        server, "arrays-3", "plain", "arrays-0", *two, *less, recipe="arrays", items=None, status=1
    )


def test_a_catalogue_begins_with_that_of_the_task_that_it_starts_from(
    server: AggregatorProcess, operator: Operator, tmp_path: Path
) -> None:
    ids = [f"SKU-{number}" for number in range(ITEMS)]
    stock, schedule = Catalogue(ids, [""] * ITEMS), Schedule(rounds=1, cohort_size=2, min_clients=2)
    request = task_request("stock", "fedmf", "plain", schedule, {"items": ITEMS, "dim": 4}, catalogue=stock)
    task = operator.create_task(request, stock)
    with two_parts(server, operator.invite(task.task_id, uses=2).invitation, tmp_path / "stock") as parts:
        take_part_together(parts, [ids[:4], ids[2:7]])
    file = tmp_path / "items.csv"
    for lines, error in (([*ids, "new"], ""), ([*ids[1:], ids[0]], "begin with"), (ids[:-1], "begin with")):
        file.write_text("id,title\n" + "".join(f"{line},\n" for line in lines))
        more = ("--items", str(file), "-s", "min_clients=2", "-s", "rounds=2")
        made = create(server, f"stock-{len(lines)}", "plain", "stock", *more, items=None, status=bool(error))
        assert error in made if error else made["recipe"]["parameters"]["items"] == ITEMS + 1
    assert "begin with" in create(server, "no-stock", "plain", "stock", "-s", "min_clients=2", status=1)


def test_attack_another_initial_model_is_not_used(
    server: AggregatorProcess, operator: Operator, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stores another state of round 0 than the one in the terms, with the digest that it really has."""
    made = create(server, "crafted", "plain", "spectrum", *TWO)
    with Fleet(server.url, interactions(USERS), FleetOptions(seed=3)) as fleet:
        fleet.enrol(operator.invite(made["task_id"], uses=USERS).invitation, None, None)
        replace_snapshot(server.data_dir, made["task_id"])
        with pytest.raises(DigestMismatch):
            fleet.run()


def replace_snapshot(data_dir: Path, task_id: str) -> None:
    with closing(sqlite3.connect(data_dir / "hushrec.db")) as rows:
        (key,) = rows.execute("SELECT blob_key FROM snapshots WHERE task_id = ?", (task_id,)).fetchone()
        (path,) = (path for path in data_dir.rglob("*") if path.is_file() and str(path).endswith(key))
        body = bytearray(path.read_bytes())
        body[0] ^= 1
        path.chmod(0o600)
        path.write_bytes(body)
        digest = hashlib.sha256(body).hexdigest()
        rows.execute("UPDATE snapshots SET digest = ? WHERE task_id = ?", (digest, task_id))
        rows.commit()


def test_what_cannot_be_started_from_is_refused(server: AggregatorProcess, operator: Operator, source: Any) -> None:
    schedule = Schedule(rounds=2, cohort_size=USERS)
    open_task = task_request(
        "still-open", "privirec-k", "plain", schedule, {"items": ITEMS, "components": 5, "reveal_gram": True}
    )
    operator.create_task(open_task)
    assert "only a complete task" in create(server, "early", "plain", "still-open", *TWO, status=1)
    sealed = task_request("sealed", "fedmf", "ckks", schedule, {"items": ITEMS}, organiser=TRIAL.pin)
    operator.create_task(sealed)
    assert "cannot open the sums" in create(server, "from-sealed", "plain", "sealed", *TWO, status=1)
    assert "singular vectors" in create(server, "too-long", "plain", "spectrum", "-r", "dim=6", status=1)
    start = {"task": "t_1", "round": 1, "snapshot": "0" * 64, "digest": "0" * 64}
    crafted = task_request(
        "by-hand", "fedmf", "plain", schedule, {"items": ITEMS, "item_bias": "counts", "start_from": start}
    )
    with pytest.raises(Exception, match="--start-from"):
        operator.create_task(crafted)


DOCUMENT = json.loads((Path(__file__).parents[3] / "openapi" / "openapi.json").read_text(encoding="utf-8"))
PAIRS = [(recipe, mechanism) for recipe in RECIPES for mechanism in sorted(carriers(recipe))]


def check(value: Any, schema: str) -> None:
    target = {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENT["components"]}
    Draft202012Validator(target).validate(value)


@pytest.mark.parametrize(("recipe", "mechanism"), PAIRS)
def test_a_small_task_of_each_pair(recipe: str, mechanism: str) -> None:
    terms = task_terms(recipe, SMALL.get(recipe, {"items": 5}), mechanism, {}, Schedule(cohort_size=20))
    resolved = resolved_task(terms).model_dump(mode="json")
    check(resolved, "ResolvedTask")
    plan = plan_task(terms)
    layout, values = resolved["main_sum"]["layout"], []
    scales = plan.sum_plan.segment_scales
    for block in layout["blocks"]:
        own = [[segment["clip"]] * segment["length"] for segment in block["segments"]]
        values += block["count"] * sum(own, [])
        for segment in block["segments"]:
            assert segment["scale"] == scales.get(f"{block['name']}/{segment['name']}")
    if not layout["chosen"]:
        bounds = np.concatenate([block.bounds() for block in plan.sum_plan.layout.blocks])
        assert values == bounds.tolist()
    assert len(values) == layout["length"] == plan.sum_plan.layout.length
    first = sum_view(terms, 1).model_dump(mode="json")
    check(first, "SumView")
    own_layout = plan.recipe.layout(1)
    participants = len(own_layout.blocks) if mechanism in ("ckks", "paillier") else 0
    assert first["layout"]["length"] == own_layout.length + participants
    assert resolved["recipe"]["parameters"] == plan.recipe.parameters.model_dump(mode="json")
