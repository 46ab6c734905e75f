"""A model of the application's own over a real server: loops, callbacks, initial values, refusals."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from typer.testing import CliRunner

from aggregator_service.commands.task_control import tasks
from client_sdk import Operator, Policy, Rows, task_request
from client_sdk.errors import InvalidParameters, RoundLost
from client_sdk.lab.fleet_rounds import FleetRound
from client_sdk.rounds.events import ClipWarning, Event, RoundMissed, RoundReport, TrainingFailed
from client_sdk.task import Task
from client_sdk.training.arrays import ArraysRound
from protocols.errors import ParameterError
from protocols.messages import Schedule
from protocols.recipes.arrays import ArraysState
from protocols.recipes.state import state_as
from protocols.task_terms import carriers
from tests.support.server import AggregatorProcess
from tests.support.tasks import TRIAL, SmallTask, enrolled_fleet, joined, take_part_together

USERS, ROUNDS = 3, 2
PARAMETERS: dict[str, Any] = {
    "shapes": {"w": [4, 2], "table": [5, 3]}, "rows": ["table"], "max_weight": 10,
        "reveal_rows": True, "reveal_weights": True, "optimiser": "adam", "std": 0.1,
}  # fmt: skip
WEIGHTS = [1.0, 4.0, 10.0]
POLICY = Policy(mechanisms=frozenset({"ckks", "masked", "oneshot", "plain"}), trust_models=True, snapshot_every=1)


def create(operator: Operator, name: str, mechanism: str, parameters: dict[str, Any] | None = None) -> SmallTask:
    schedule = Schedule(rounds=ROUNDS, cohort_size=USERS, start_clients=USERS)
    organiser = None if mechanism == "plain" else TRIAL.pin
    own = PARAMETERS if parameters is None else parameters
    request = task_request(name, "arrays", mechanism, schedule, own, seed=bytes(32), organiser=organiser)
    return SmallTask.of(operator, request, USERS)


def update(arrays: dict[str, NDArray[np.float32]], user: int) -> dict[str, Any]:
    """What user `user` changes, from the arrays that it is given."""
    rows = np.array([user, 4])
    return {"w": 0.1 * (user + 1) - 0.5 * arrays["w"], "table": Rows(rows, 0.2 - arrays["table"][rows])}


def loop(part: Task, user: int) -> list[int]:
    rounds = []
    for round_ in part.rounds(poll_seconds=1.0):
        report = round_.contribute(update(round_.arrays(), user), weight=WEIGHTS[user])
        assert (report.round, report.clipped, report.scaled) == (round_.number, 0, 1.0)
        rounds.append(report.round)
    return rounds


def test_wrong_updates_are_refused_and_clipping_is_told(server: AggregatorProcess, operator: Operator) -> None:
    """Before anything is sealed: the client can still contribute, misses the round if it does not, and may leave."""
    parameters = {"shapes": {"a": [100], "b": []}, "clip": 0.5, "l2_clip": 6.0}
    task = create(operator, "refusals", "plain", parameters)
    change = {"a": np.zeros(100), "b": np.array(0.5)}
    events: list[Event] = []

    def others(part: Task) -> None:
        with pytest.raises(ZeroDivisionError):
            part.take_part(lambda round_: round_.contribute(change) if round_.number == 1 else 1 // 0)

    with joined(server.url, task, USERS, POLICY) as (first, *rest):
        waiting = [threading.Thread(target=others, args=(part,)) for part in rest]
        for thread in waiting:
            thread.start()
        for round_ in first.rounds(events.append, poll_seconds=0.5):
            if round_.number == 2:
                break
            with pytest.raises(ParameterError, match="array 'b' is missing"):
                round_.contribute({"a": change["a"]})
            report = round_.contribute({**change, "a": np.full(100, 1.0)})
            assert report.clipped == 100 and report.scaled == pytest.approx(6 / np.sqrt(100.25))
            with pytest.raises(RoundLost, match="already"):
                round_.contribute(change)
        for thread in waiting:
            thread.join(timeout=60)
            assert not thread.is_alive()
    assert any(isinstance(event, ClipWarning) and event.clipped == 100 for event in events)
    assert not any(isinstance(event, RoundMissed) for event in events)  # it has left, in its turn in round 2


def test_training_that_fails_cannot_be_told_from_training_that_works(
    server: AggregatorProcess, operator: Operator
) -> None:
    """A trainer raises, another gives values of which most exceed the clip: zeros are masked in their place."""
    schedule = Schedule(rounds=1, cohort_size=USERS, start_clients=USERS)
    parameters = {"shapes": {"w": [8]}, "std": 0.0}
    request = task_request("failing", "arrays", "masked", schedule, parameters, organiser=TRIAL.pin)
    task = SmallTask.of(operator, request, USERS)
    updates = [lambda: 1 // 0, lambda: np.full(8, 2.0), lambda: np.full(8, 0.5)]
    told: list[list[Event]] = [[] for _ in updates]

    def train(part: Task, user: int) -> list[RoundReport]:
        return part.take_part(lambda round_: round_.contribute({"w": updates[user]()}), told[user].append)

    with joined(server.url, task, USERS, POLICY) as parts:
        reports = [report for found in take_part_together(parts, range(USERS), train) for report in found]
        assert len({report.contribution_bytes for report in reports}) == 1 and len(reports) == USERS
        np.testing.assert_allclose(parts[0].arrays()["w"], np.full(8, 0.5 / USERS), atol=1e-4)
    reasons = [[event.reason for event in events if isinstance(event, TrainingFailed)] for events in told]
    assert reasons[0][0].startswith("ZeroDivisionError") and "8 values exceed the task's clip" in reasons[1][0]
    assert [len(found) for found in reasons] == [1, 1, 0]
    assert not any(isinstance(event, RoundMissed) for events in told for event in events)
    (round_,) = operator.rounds(task.task_id)
    assert (round_.state, round_.survivors, round_.refusals) == ("complete", USERS, {})


def test_other_interactions_and_other_recipes_are_refused(server: AggregatorProcess, operator: Operator) -> None:
    arrays = create(operator, "only-arrays", "plain")
    fedmf = SmallTask.of(operator, task_request("fedmf", "fedmf", "plain", recipe_parameters={"items": 9}), USERS)
    with joined(server.url, arrays, 1, POLICY) as (part,), joined(server.url, fedmf, 1, POLICY) as (other,):
        with pytest.raises(ParameterError, match="pass a function"):
            part.take_part([1, 2, 3])
        with pytest.raises(ParameterError, match="no named arrays"):
            other.arrays()
        with pytest.raises(ParameterError, match="interactions"):
            next(other.rounds())
    schedule = Schedule(rounds=2, cohort_size=USERS)
    with pytest.raises(InvalidParameters, match="set by the server"):
        given = {**PARAMETERS, "initial": {"digest": "0" * 64}}
        operator.create_task(task_request("stolen", "arrays", "plain", schedule, given))


def created(server: AggregatorProcess, path: Path, *more: str, mechanism: str = "masked") -> Any:
    return CliRunner().invoke(
        tasks,
        ["create", path.stem, "--recipe", "arrays", "--mechanism", mechanism, "--initial", str(path), "-s",
         f"cohort_size={USERS}", "-s", "rounds=2", "--data-dir", str(server.data_dir), *more,
         *(["--organiser", TRIAL.pin.key, "--scope", TRIAL.pin.scope] if mechanism != "plain" else [])],
    )  # fmt: skip


def test_a_task_begins_with_uploaded_values(server: AggregatorProcess, operator: Operator, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    given = {"w": rng.uniform(-1, 1, (4, 2)).astype(np.float32), "table": rng.uniform(-0.5, 0.5, (5, 3))}
    save_file(given, tmp_path / "uploaded.safetensors")
    consented = ("-r", "reveal_rows=true", "-r", "reveal_weights=true")
    done = created(server, tmp_path / "uploaded.safetensors", *consented, "-r", 'rows=["table"]', "-r", "max_weight=10")
    assert done.exit_code == 0, (done.output, done.exception)
    task_id = json.loads(done.output)["task_id"]
    invitation = operator.invite(task_id, uses=USERS).invitation
    with joined(server.url, SmallTask(operator, task_id, "uploaded", invitation, None, True), USERS, POLICY) as parts:
        for name, array in parts[0].arrays().items():
            np.testing.assert_array_equal(array, given[name].astype(np.float32))
        assert take_part_together(parts, range(USERS), loop) == [[1, 2]] * USERS
        assert np.abs(parts[0].arrays()["w"] - given["w"]).max() > 0.1
        with pytest.raises(ParameterError, match="no numbered items"):
            parts[0].recommend(3, interactions=[1])


@pytest.mark.parametrize("mechanism", sorted(carriers("arrays")))
def test_a_task_of_any_mechanism_trains_on_from_uploaded_values(
    server: AggregatorProcess, operator: Operator, tmp_path: Path, mechanism: str
) -> None:
    given = np.random.default_rng(0).uniform(-1, 1, (4, 2)).astype(np.float32)
    save_file({"w": given}, tmp_path / f"given-{mechanism}.safetensors")
    done = created(server, tmp_path / f"given-{mechanism}.safetensors", mechanism=mechanism)
    assert done.exit_code == 0, (done.output, done.exception)
    task_id = json.loads(done.output)["task_id"]
    holder = operator.invite(task_id, role="holder").invitation if mechanism in ("ckks", "paillier") else None
    invitation = operator.invite(task_id, uses=USERS).invitation
    task = SmallTask(operator, task_id, f"given-{mechanism}", invitation, holder, mechanism != "plain")

    def halve(asked: ArraysRound) -> None:
        asked.contribute({"w": -0.5 * asked.arrays()["w"]})

    def check(played: FleetRound) -> None:
        assert played.state == "complete", played.failure
        found = state_as(fleet.model(), ArraysState).values
        np.testing.assert_allclose(found, given.ravel() * 0.5**played.number, atol=1e-3)

    with enrolled_fleet(server.url, task, [halve] * USERS) as fleet:
        assert len(fleet.run(check)) == 2


def test_files_that_cannot_be_initial_values_are_refused(server: AggregatorProcess, tmp_path: Path) -> None:
    path = tmp_path / "given.safetensors"
    for values, more, fault in (
        (None, (), "cannot read"),
        (np.zeros(3, np.int64), (), "array 'w' holds I64"),
        (np.array([np.nan], np.float32), (), "array 'w' holds values that are not finite"),
        (np.zeros(3, np.float32), ("-r", 'shapes={"w": [4]}'), "array 'w' must have shape"),
    ):
        path.write_bytes(b"no model") if values is None else save_file({"w": values}, path)
        done = created(server, path, *more)
        assert done.exit_code and fault in str(done.exception), (fault, done.output, done.exception)
