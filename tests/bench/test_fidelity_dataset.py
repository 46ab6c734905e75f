"""The fidelity runs of some systems take any data set: `--dataset path --columns ...`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.experiments.fidelity import SYSTEMS, fingerprint, main, on_dataset
from bench.experiments.runs import path_of
from client_sdk.lab.data.columns import Columns


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    users, items = np.nonzero(np.random.default_rng(0).random((20, 30)) < 0.5)
    rows = [f"{7 * item},u{user},{item % 9 / 2}" for user, item in zip(users, items, strict=True)]
    path = tmp_path / "My ratings.v2.csv"
    path.write_text("\n".join(["what,who,stars", *rows]) + "\n")
    return path


@pytest.mark.parametrize("system", ["colr", "topk", "rfrec", "rfrecf"])
def test_every_run_is_moved_once_and_has_no_published_figures(system: str, ratings: Path) -> None:
    moved = on_dataset(list(SYSTEMS[system].runs(quick=False, protocol="clean", seed=0)), str(ratings), None)
    assert moved
    assert len({run.key for run in moved}) == len(moved)
    assert all(run.key.startswith("myratings.") and run.dataset == str(ratings) for run in moved)
    assert not any(run.published for run in moved)


@pytest.mark.parametrize("system", ["fair", "pfedclr", "privirec"])
def test_systems_with_a_split_of_their_own_are_left_out(system: str, ratings: Path) -> None:
    assert not on_dataset(list(SYSTEMS[system].runs(quick=True, protocol="clean", seed=0)), str(ratings), None)


def test_ratings_of_a_file_have_their_own_range(ratings: Path, tmp_path: Path) -> None:
    columns = Columns("who", "what", "stars")
    runs = on_dataset(list(SYSTEMS["rfrec"].runs(quick=True, protocol="clean", seed=0)), str(ratings), columns)
    run = next(run for run in runs if run.key == "myratings.rfrec.released.users")
    run.execute(tmp_path, tmp_path, {})
    figures = json.loads(path_of(run, tmp_path).read_text())
    assert 0 < figures["rmse"] < 4


def test_results_are_kept_by_file_and_columns(ratings: Path) -> None:
    names = {fingerprint(str(ratings), columns) for columns in (None, Columns(0, 1))}
    ratings.write_text("another\n")
    assert len(names | {fingerprint(str(ratings), None)}) == 3


def test_a_bad_column_is_an_error(capsys: pytest.CaptureFixture[str], ratings: Path) -> None:
    arguments = ["--system", "rfrec", "--quick", "--dataset", str(ratings)]
    assert main([*arguments, "--columns", "user=who"]) == 1
    assert main([*arguments, "--columns", "user=who,item=nothing"]) == 1
    assert "no column named 'nothing'" in capsys.readouterr().out.replace("\n", " ")
