"""Tasks that start from a complete `privirec-k` task, through the service: created by the command, run by clients."""

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
from typer.testing import CliRunner

from aggregator_service.commands.tasks import tasks
from client_sdk import Operator, task_request
from client_sdk.errors import DigestMismatch
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from protocols.messages import Schedule
from protocols.recipes.base import FactorState
from protocols.recipes.spectral_start import Source, start_of, start_state
from tests.support.organiser import TRIAL
from tests.support.server import AggregatorProcess, running_aggregator
from tests.support.tasks import ITEMS, interactions

USERS = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregatorProcess]:
    with running_aggregator(tmp_path_factory.mktemp("starts") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def operator(server: AggregatorProcess) -> Iterator[Operator]:
    with Operator(server.url, server.operator_token) as found:
        yield found


def run_fleet(server: AggregatorProcess, operator: Operator, task_id: str, mechanism: str) -> Any:
    """Run all rounds; return the terms and the model."""
    holder = operator.invite(task_id, role="holder").invitation if mechanism == "ckks" else None
    code = None if mechanism == "plain" else TRIAL.source
    with Fleet(server.url, interactions(USERS), FleetOptions(seed=3)) as fleet:
        fleet.enrol(operator.invite(task_id, uses=USERS).invitation, holder, code)
        if mechanism == "ckks":
            fleet.give_keys()
        played = list(fleet.run())
        assert played and all(each.state == "complete" for each in played)
        return fleet.clients[0].member.terms, fleet.model()


@pytest.fixture(scope="module")
def source(server: AggregatorProcess, operator: Operator) -> Any:
    """A complete masked privirec-k task: its id and its last state."""
    schedule = Schedule(rounds=4, cohort_size=USERS, start_clients=USERS)
    parameters = {"items": ITEMS, "components": 5, "iterations": 3}
    request = task_request("spectrum", "privirec-k", "masked", schedule, parameters, organiser=TRIAL.pin)
    task_id = operator.create_task(request).task_id
    _, state = run_fleet(server, operator, task_id, "masked")
    return task_id, state


def create(server: AggregatorProcess, name: str, mechanism: str, source: str, dim: int = 4, status: int = 0) -> Any:
    arguments = [
        "create", name, "--recipe", "fedmf", "--mechanism", mechanism, "-r", f"items={ITEMS}", "-r", f"dim={dim}",
        "-s", f"cohort_size={USERS}", "-s", "rounds=2", "--start-from", source, "--data-dir", str(server.data_dir),
        *(["--organiser", TRIAL.pin.key, "--scope", TRIAL.pin.scope] if mechanism != "plain" else []),
    ]  # fmt: skip
    done = CliRunner().invoke(tasks, arguments)
    if status:
        assert done.exit_code, done.output
        return str(done.exception)
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.output)


@pytest.mark.parametrize("mechanism", ["plain", "masked", "ckks"])
def test_every_mechanism_trains_on_from_the_announced_factors(
    server: AggregatorProcess, operator: Operator, source: Any, mechanism: str
) -> None:
    source_id, spectrum = source
    made = create(server, f"started-{mechanism}", mechanism, "spectrum")
    assert made["recipe"]["parameters"]["start_from"]["task"] == source_id
    terms, model = run_fleet(server, operator, made["task_id"], mechanism)
    first = start_state(terms.recipe, Source(spectrum, 0.5))
    assert isinstance(first, FactorState)
    start = start_of(terms.recipe.parameters)
    assert start is not None
    assert start.digest == hashlib.sha256(terms.recipe.encode_state(first)).hexdigest()
    moved = np.abs(model.item_factors - first.item_factors)
    assert 0 < moved.max() < 1
    assert model.round_number == 2
    assert np.array_equal(model.item_counts, spectrum.item_degrees)


def test_attack_another_initial_model_is_not_used(
    server: AggregatorProcess, operator: Operator, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stores another state of round 0 than the one in the terms, with the digest that it really has."""
    made = create(server, "crafted", "plain", "spectrum")
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
    open_task = task_request("still-open", "privirec-k", "plain", schedule, {"items": ITEMS, "components": 5})
    operator.create_task(open_task)
    assert "only a complete task" in create(server, "early", "plain", "still-open", status=1)
    sealed = task_request("sealed", "fedmf", "ckks", schedule, {"items": ITEMS}, organiser=TRIAL.pin)
    operator.create_task(sealed)
    assert "cannot open the sums" in create(server, "from-sealed", "plain", "sealed", status=1)
    assert "singular vectors" in create(server, "too-long", "plain", "spectrum", dim=6, status=1)
    start = {"task": "t_1", "round": 1, "snapshot": "0" * 64, "digest": "0" * 64}
    crafted = task_request(
        "by-hand", "fedmf", "plain", schedule, {"items": ITEMS, "item_bias": "counts", "start_from": start}
    )
    with pytest.raises(Exception, match="--start-from"):
        operator.create_task(crafted)
