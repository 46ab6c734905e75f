"""Tasks: starts from another task, what the API states of sums and parameters."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from aggregator_service.commands.task_control import tasks
from aggregator_service.tasks.plans import plan_task, task_terms
from aggregator_service.tasks.task_views import resolved_task, sum_view
from client_sdk import Operator, task_request
from client_sdk.errors import DigestMismatch
from client_sdk.history import History
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions, FleetRound
from client_sdk.training import client_side
from protocols.messages import Schedule
from protocols.recipes.factors import CountedFactors
from protocols.recipes.registry import OWN as RECIPES
from protocols.recipes.spectral_start import Source, start_of, start_state
from protocols.recipes.state import state_as
from protocols.task_terms import carriers
from tests.support.server import AggregatorProcess
from tests.support.tasks import ITEMS, TRIAL, SmallTask, enrolled_fleet, interactions, joined
from tests.vectors.recipes import SMALL

USERS = 5


@pytest.fixture(scope="module")
def operator(server: AggregatorProcess) -> Iterator[Operator]:
    with Operator(server.url, server.operator_token) as found:
        yield found


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
    status: int = 0,
) -> Any:
    """Create a task that starts from another; its view, or with `status` the error."""
    arguments = [
        "create", name, "--recipe", recipe, "--mechanism", mechanism, "-r", f"items={ITEMS}",
        "-s", f"cohort_size={USERS}", "--start-from", source, "--data-dir", str(server.data_dir), *more,
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
