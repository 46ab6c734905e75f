"""PFedCLR's table: runs under both protocols, on data in FilmTrust's format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.experiments.leaks import LEAK_WARNING
from bench.experiments.pfedclr import pfedclr_controls, pfedclr_flat, pfedclr_runs, pfedclr_split, pfedclr_table
from bench.experiments.runs import JobResult, path_of

USERS, ITEMS, EACH = 30, 160, 14


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Thirty users with 14 of 160 items, and one with 3 items, whom the paper excludes."""
    rng = np.random.default_rng(0)
    rows = [(user, item) for user in range(USERS) for item in rng.choice(ITEMS, EACH, replace=False)]
    rows += [(USERS, item) for item in (0, 1, 2)]
    (tmp_path / "filmtrust").mkdir()
    text = "".join(f"{user + 1} {item + 1} 3.5\n" for user, item in rows)
    (tmp_path / "filmtrust" / "ratings.txt").write_text(text)
    return tmp_path


def test_runs_under_both_protocols_are_measured_and_kept(
    data_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [replace(run, rounds=2) for run in pfedclr_runs(quick=True, protocol="clean")[:2]]
    assert [run.protocol for run in runs] == ["paper_protocol", "clean"]
    ticks: dict[str, int] = {}
    results = []
    for run in runs:
        run.execute(data_dir, tmp_path, ticks)
        results.append(JobResult(run, json.loads(path_of(run, tmp_path).read_text())))
    assert caplog.messages.count(LEAK_WARNING) == 1
    assert set(ticks.values()) == {2}
    for result in results:
        figures = result.figures
        assert figures["rounds"] == 2
        assert 0 <= figures["hr10_full"] <= figures["hr10"] <= 1
        assert [point["round"] for point in figures["curve"]] == [2]
        assert figures["bytes_up"] > 4 * 16 * 100
    assert pfedclr_table(results).row_count == 2
    flat = pfedclr_flat(results)
    assert flat[f"{runs[1].key}.round2.hr10"] == results[1].figures["hr10"]


def test_the_split_is_the_papers(data_dir: Path) -> None:
    data = pfedclr_split("filmtrust", data_dir)
    assert data.train.n_users == USERS
    for user in range(USERS):
        assert data.test_items[user] > data.train.positives(user).max()  # introduced last
    assert len(pfedclr_controls("filmtrust", data_dir).rows) == 8


def test_only_leaky_runs_have_published_figures() -> None:
    runs = pfedclr_runs(quick=False, protocol="clean")
    assert len({run.key for run in runs}) == len(runs)
    assert all(bool(run.published) == (run.protocol == "paper_protocol") for run in runs)
    for run in runs:
        if run.protocol == "clean":
            assert run.key.replace("clean", "paper_protocol") in {other.key for other in runs}
    assert all(not run.published for run in pfedclr_runs(quick=True, protocol="clean"))
