"""Running the benchmarks: figures that are missing, scripts that fail or are skipped, results, table and page."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import bench.run_all as run_all
from bench import registry
from bench.registry import Entry, absent, entries, markdown, read_results, verdicts
from bench.run_all import Job, jobs, main, run

FIGURES = {"ours.sign_us": 2.0, "machine.cores": 2}
WRITES = f"import json, sys; print('measuring'); json.dump({FIGURES}, open(sys.argv[-1], 'w'))"
FAILS = "import sys; print('half way'); sys.exit('no such processor')"
SCRIPTS = [job.name for job in jobs(Path("data"), quick=True)]


def job(name: str, code: str, missing: str = "") -> Job:
    return Job(name, (sys.executable, "-c", code), missing=missing)


def test_a_job_returns_its_figures_and_keeps_its_output(tmp_path: Path) -> None:
    outcome = run(job("signatures", WRITES), tmp_path)
    assert (outcome.state, outcome.note, outcome.figures) == ("done", "", FIGURES)
    assert (tmp_path / "signatures.log").read_text() == "measuring\n"


def test_a_job_fails_without_a_registered_figure(tmp_path: Path) -> None:
    outcome = run(job("signatures", WRITES.replace("sign_us", "sign_ns")), tmp_path)
    assert (outcome.state, outcome.note) == ("failed", "figure *_us is absent")


def test_a_failed_job_keeps_the_end_of_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    outcome = run(job("broken", FAILS), tmp_path)
    assert outcome.state == "failed"
    assert outcome.note.splitlines() == ["half way", "no such processor", "exit code 1"]
    assert run(job("silent", "pass"), tmp_path).note == "the script wrote no results"


def test_a_job_with_a_missing_requirement_is_skipped(tmp_path: Path) -> None:
    outcome = run(job("fidelity-colr", WRITES, "data sets"), tmp_path)
    assert (outcome.state, outcome.note) == ("skipped", "needs data sets")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("broken", "code"), [(False, 0), (True, 1)])
def test_results_table_and_page_are_written_even_if_a_script_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: bool, code: int
) -> None:
    chosen = [job("ckks", FAILS) if broken else job("signatures", WRITES), job("signatures", WRITES)]
    monkeypatch.setattr(run_all, "jobs", lambda *_: chosen)
    assert main(["--output", str(tmp_path)]) == code
    assert json.loads((tmp_path / "results.json").read_text()) == {"signatures": FIGURES}
    assert "| signatures | `ours.sign_us` | 2 µs |" in (tmp_path / "results.md").read_text()
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert ("no such processor" in page) == broken
    assert "ours.sign_us" in page
    assert str(tmp_path) in capsys.readouterr().out.replace("\n", "")


def test_only_selects_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_all, "jobs", lambda *_: [job("first", FAILS), job("signatures", WRITES)])
    assert main(["--output", str(tmp_path), "--only", "signatures"]) == 0
    assert main(["--output", str(tmp_path), "--only", "third"]) == 2


def test_a_quick_run_of_a_real_script(tmp_path: Path) -> None:
    assert main(["--output", str(tmp_path), "--only", "signatures"]) == 0
    figures = read_results(tmp_path)["signatures"]
    assert absent("signatures", figures) == []
    assert figures["ours.verify_us"] > 0


def test_the_committed_table_is_that_of_the_committed_results() -> None:
    assert (run_all.COMMITTED / "results.md").read_text(encoding="utf-8") == markdown(read_results(run_all.COMMITTED))


@pytest.mark.parametrize("script", [name for name in SCRIPTS if not name.startswith("fidelity")])
def test_every_registered_figure_has_a_committed_value(script: str) -> None:
    figures = read_results(run_all.COMMITTED)[script]
    assert entries(script)
    assert absent(script, figures) == []


def test_targets_are_met_missed_or_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ENTRIES, "made", [Entry("made", key, "", "<= 1.5", "") for key in "abc"])
    assert verdicts("made", {"a": 1.5, "b": 2.0}) == {
        "a (<= 1.5)": "1.5",
        "b (<= 1.5)": "2   MISSED",
        "c (<= 1.5)": "not measured",
    }


def test_every_script_exists_and_gets_quick_unless_the_run_is_full(tmp_path: Path) -> None:
    quick, full = jobs(tmp_path, quick=True), jobs(tmp_path, quick=False)
    assert {"ckks", "memory", "overhead", "fidelity-colr", "quality"} <= {job.name for job in quick}
    assert all("--quick" in job.command for job in quick)
    assert not any("--quick" in job.command for job in full)
    assert all(find_spec(job.command[2]) for job in quick)


def test_missing_requirements_are_known_before_anything_runs(tmp_path: Path) -> None:
    without = {job.name: job.missing for job in jobs(None, quick=False)}
    assert "DATA_DIR" in without["fidelity-colr"]
    assert "DATA_DIR" in without["quality"]
    assert without["ckks"] == ""
    given = {job.name: job for job in jobs(tmp_path, quick=True, peer_python=Path("peers/python"))}
    assert given["fidelity-colr"].missing == ""
    assert given["masked"].command[-2:] == ("--peer-python", "peers/python")
