"""`hushrec demo`: errors before anything starts, signals that stop the server too, settings, the user's own file."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from client_sdk.api.wire import Pause, Program
from client_sdk.cli import app
from client_sdk.cli.demo import _delete_older_runs
from client_sdk.lab.data.columns import Columns
from client_sdk.lab.demo import ArmPoint, ArmResult, DemoRequest, DemoResult
from client_sdk.lab.demo.arms import arms_of, chosen_settings, evaluate_held_out, shared_setup
from client_sdk.lab.demo.report import render_report, result_table
from client_sdk.lab.demo.spectrum import SpectrumDemo
from client_sdk.lab.evaluation.controls import popularity_control
from client_sdk.lab.federation import Federation
from client_sdk.lab.fleet import Fleet
from client_sdk.lab.fleet_rounds import FleetOptions
from client_sdk.lab.local_server import ServerDidNotStart, is_in_use, run_server
from client_sdk.lab.measures import Advised, Measured
from protocols.errors import ParameterError
from tests.support.forked_programs import fork_programs
from tests.support.server import running_aggregator


def trained(hr: float, *rounds: int) -> ArmResult:
    values = {"HR@10": hr, "NDCG@10": 0.3}
    curve = tuple(ArmPoint(number, values, 1.0) for number in rounds)
    measured = Measured(values, np.array([hr, 0.0, 1.0]))
    return ArmResult("CoLR-4 encrypted", measured, 2048.0, 4096.0, 1.0, curve=curve, contributions=3)


def control(name: str = "popularity", users: int = 3) -> ArmResult:
    return ArmResult(name, Measured({"HR@10": 0.3, "NDCG@10": 0.1}, np.full(users, 0.3)), note="one list")


def made_result(
    arms: Sequence[ArmResult], plan: Mapping[str, object] | None = None, rounds: int = 1, usual_rounds: int = 0
) -> DemoResult:
    return DemoResult(
        "synthetic", 4, 5, 6, "colr", "ckks", rounds, 3, plan or {}, arms, "by hand", Advised(recipe="privirec-k"),
        usual_rounds, machine={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset", "nope"], "unknown data set 'nope': choose one of"),
        (["--dataset", "ml-100k", "--data-dir", "nowhere"], "ml-100k not found"),
        (["--recipe", "fedmf"], "the demo runs colr, privirec-k or privirec"),
        (["--rank", "20"], "rank 20 is greater than the dimension 16"),
        (["--cohort", "4000"], "greater than the 400 users"),
        (["--mechanism", "masked"], "this demo runs ckks or oneshot, not 'masked'"),
        (["--recipe", "privirec-k", "--dataset", "movielens-9"], "unknown data set 'movielens-9': choose one of film"),
        (["--recipe", "privirec-k", "--cohort", "9"], "privirec-k sums over all clients"),
        (["--recipe", "privirec-k", "--rank", "400"], "240 items have at most 240 vectors"),
        (["--recipe", "privirec-k", "--mechanism", "ckks"], "this demo runs masked, oneshot, plain sums, not 'ckks'"),
    ],
)
def test_invalid_options_fail_before_anything_is_written(tmp_path: Path, arguments: list[str], words: str) -> None:
    output = tmp_path / "out"
    done = CliRunner().invoke(app, ["demo", "--output", str(output), *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert words in done.stderr
    assert done.stdout == ""
    assert not output.exists()


_MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
from client_sdk.cli import main
main()
"""


def test_ctrl_c_stops_the_demo_and_its_server_while_clients_enrol(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _MAIN, "demo", "--output", str(tmp_path)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        start_new_session=True,
    ) as demo:
        try:
            line = next(line for line in demo.stdout if "Aggregator at" in line)
            port = int(line.partition(",")[0].rpartition(":")[2])
            assert "CoLR-4 encrypted: enrolling 400 clients" in next(iter(demo.stdout))  # one line per event in a pipe
            time.sleep(0.2)  # so that hundreds of clients are queued
            demo.send_signal(signal.SIGINT)
            _, errors = demo.communicate(timeout=30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(demo.pid, signal.SIGKILL)  # the server too
    assert demo.returncode == 130, errors
    assert "Traceback" not in errors
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_closing_a_fleet_cancels_its_queued_clients() -> None:
    started: list[int] = []

    def client(index: int) -> Program[None]:
        started.append(index)
        yield Pause(0.2)

    fleet = Fleet("http://127.0.0.1:1", [[1]] * 50, FleetOptions(workers=1))

    def interrupted(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), fleet:
        fleet._run_all((partial(client, index) for index in range(50)), interrupted)
    assert len(started) <= 3


def test_report_shows_the_sum_plan_and_loads_nothing() -> None:
    plan = {"ring_degree": 4096, "bytes_per_value": None, "segment_errors": {"items/update": 1e-7 / 3}}
    page = render_report(made_result([trained(0.5, 1, 2, 3), control()], plan=plan))
    assert "<td>ring degree</td><td>4096</td>" in page
    assert "<td>segment errors items/update</td><td>3.333e-08</td>" in page
    assert "None" not in page
    assert page.count('role="img"') == 4
    assert "popularity" in page and not re.search("src=|<link", page), "nothing is loaded"


@pytest.mark.parametrize(
    ("rounds", "hr", "said"),
    [
        (20, 0.2, "round 20 of 200: popularity is still ahead"),
        (20, 0.4, "round 20 of 200: training is not finished"),
        (200, 0.2, "after 200 rounds popularity is still ahead"),
        (200, 0.4, ""),
    ],
)
def test_report_says_if_training_is_done(monkeypatch: pytest.MonkeyPatch, rounds: int, hr: float, said: str) -> None:
    monkeypatch.setattr("client_sdk.lab.demo.report.plots_available", lambda: False)
    result = made_result([trained(hr, rounds), control()], rounds=rounds, usual_rounds=200)
    page = render_report(result)
    assert result.unfinished == said
    assert (f"HR@10 of CoLR-4 encrypted; {said}</div>" in page) is bool(said)
    assert "the extra <code>plots</code>" in page and "<svg" not in page
    assert (said in str(result_table(result).caption)) if said else str(result_table(result).caption).endswith("round")


def test_data_of_a_running_demo_is_not_deleted(tmp_path: Path) -> None:
    finished, mine = tmp_path / "server-finished", tmp_path / "server-mine"
    finished.mkdir()
    mine.mkdir()
    with running_aggregator(tmp_path / "server-running") as running:
        assert is_in_use(running.data_dir)
        _delete_older_runs(tmp_path, mine)
        assert running.data_dir.exists() and not finished.exists()
    assert not is_in_use(running.data_dir)
    _delete_older_runs(tmp_path, mine)
    assert mine.exists() and not running.data_dir.exists()


def test_a_server_that_does_not_start_is_reported_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_programs(monkeypatch)
    server = run_server(tmp_path / "server", settings={"HUSHREC_LOG_FORMAT": "paper"})
    with pytest.raises(ServerDidNotStart, match=r"exited with code 1:\n.*HUSHREC_LOG_FORMAT"), server:
        raise AssertionError("it listens")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    users, items = np.nonzero(np.random.default_rng(0).random((40, 300)) < 0.3)
    rows = [f"{item};member {user};1" for user, item in zip(users, items, strict=True)]
    (tmp_path / "mine.txt").write_text("\n".join(rows) + "\n")
    return tmp_path / "mine.txt"


def test_cohort_is_at_most_all_users_and_some_of_many_users_are_clients(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    request = DemoRequest(str(path), columns=Columns(1, 0))
    shared, replaced = shared_setup(request, chosen_settings(request), said.append)
    assert (shared.settings.cohort, len(shared.identities), replaced) == (40, 40, 0)
    assert shared.data.train.user_ids[2] == "member 10"
    assert "separated by semicolons, no header; columns user=1,item=0 as --columns says" in said[0]
    large = DemoRequest(str(path), columns=Columns(1, 0), cohort=60)
    with pytest.raises(ParameterError, match="cohort of 60 is greater than the 40 users"):
        shared_setup(large, chosen_settings(large))
    monkeypatch.setattr("client_sdk.lab.demo.MOST_USERS", 20)
    shared, _ = shared_setup(request, chosen_settings(request), said.append)
    assert len(shared.identities) == 20
    assert said[-1] == "20 of 40 users, drawn with seed 0, are clients of the demo"
    made = SpectrumDemo(DemoRequest(str(path), recipe="privirec-k", columns=Columns(1, 0)), said.append)
    assert made.users.size == 20
    assert made.recipe.parameters.components <= made.train.n_items


def test_the_default_rounds_end_above_popularity_on_a_flat_curve() -> None:
    """The sums are added in this process without encryption, which changes them by less than a millionth."""
    request = DemoRequest()
    settings = chosen_settings(request)
    shared, _ = shared_setup(request, settings)
    arm = arms_of(request, settings)[0]

    parameters = {"items": shared.data.train.n_items, **arm.recipe_parameters}
    federation = Federation(
        shared.data.train, arm.recipe, parameters, "plain", {}, settings.training, shared.settings.cohort, request.seed
    )
    hr: dict[int, float] = {}
    for done in federation.run(settings.rounds):
        if done.number in (settings.rounds // 2, settings.rounds * 4 // 5, settings.rounds):
            scores = federation.scores(shared.data.train.active_users)
            hr[done.number] = evaluate_held_out(shared, shared.data.train.active_users, scores).hr
    half, late, last = hr.values()
    popularity = popularity_control(shared.data, shared.candidates).hr
    assert half > popularity
    assert last > popularity + 0.25
    assert abs(last - late) < 0.05
